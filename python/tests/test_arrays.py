"""Batches survive the way from collate to a device; what cannot be sent is named by its path."""
import dataclasses
import math
import typing
import unittest

import numpy as np
import torch

import fake_host  # noqa: F401: sets the path
from hetseq.arrays import Unpacker, pack
from hetseq.errors import EngineError


class Pair(typing.NamedTuple):
    x: torch.Tensor
    note: str


@dataclasses.dataclass(frozen=True)
class Sample:
    ids: torch.Tensor
    weight: float


def round_trip(batch):
    arrays, tree, descriptor = pack(batch)
    return Unpacker(torch.device("cpu")).unpack(arrays, tree, descriptor)


class RoundTrip(unittest.TestCase):
    def test_every_dtype_and_shape(self):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool):
            for shape in ((), (3,), (2, 3), (0, 4), (2, 1, 3)):
                tensor = (torch.rand(shape) * 2).to(dtype)
                back = round_trip({"x": tensor, "y": torch.ones(5)})
                self.assertEqual((back["x"].dtype, back["x"].shape), (dtype, torch.Size(shape)))
                self.assertTrue(torch.equal(back["x"], tensor))
                self.assertTrue(torch.equal(back["y"], torch.ones(5)))

    def test_nesting_and_types(self):
        batch = {"a": [torch.arange(3), (1, 2.5, None, True)], 7: Pair(torch.ones(2), "ü"), "s": Sample(torch.zeros(2, 2), 0.1),
                 "n": np.arange(4, dtype=np.int32), "np": np.float64(0.1), "big": 2**70, "nan": math.nan, "empty": {}}
        back = round_trip(batch)
        self.assertEqual(list(back), list(batch))
        self.assertTrue(torch.equal(back["a"][0], torch.arange(3)))
        self.assertEqual(back["a"][1], (1, 2.5, None, True))
        self.assertIs(type(back[7]), Pair)
        self.assertEqual(back[7].note, "ü")
        self.assertIs(type(back["s"]), Sample)
        self.assertEqual((back["s"].weight, back["np"], back["big"], back["empty"]), (0.1, 0.1, 2**70, {}))
        self.assertIsInstance(back["n"], np.ndarray)
        self.assertTrue(math.isnan(back["nan"]))

    def test_other_strides_and_no_arrays(self):
        x = torch.arange(12).view(3, 4)
        self.assertTrue(torch.equal(round_trip(x.t()), x.t()))
        self.assertTrue(torch.equal(round_trip(x[:, 1:3]), x[:, 1:3]))
        self.assertEqual(round_trip([1, "a"]), [1, "a"])

    def test_arrays_are_aligned(self):
        arrays, _, _ = pack([torch.ones(3, dtype=torch.uint8), torch.ones(5), torch.ones(2, dtype=torch.float64)])
        self.assertEqual([array["offset"] % 64 for array in arrays], [0, 0, 0])

    def test_writing_to_a_batch_does_not_change_the_file(self):
        import os
        arrays, tree, descriptor = pack(torch.zeros(4))
        again = os.dup(descriptor)
        unpacker = Unpacker(torch.device("cpu"))
        unpacker.unpack(arrays, tree, descriptor).add_(1)
        self.assertEqual(unpacker.unpack(arrays, tree, again).sum(), 0)

    def test_arrays_of_a_task_in_rust_are_a_dict(self):
        arrays, _, descriptor = pack({"x": torch.ones(2, 3)})
        arrays[0]["name"] = "points"
        batch = Unpacker(torch.device("cpu")).unpack(arrays, None, descriptor)
        self.assertTrue(torch.equal(batch["points"], torch.ones(2, 3)))


class Refused(unittest.TestCase):
    def test_messages_name_the_path(self):
        class Local(typing.NamedTuple):
            x: int
        for batch, text in [({"a": [1, {"b": object()}]}, r"batch\['a'\]\[1\]\['b'\] is a object"), ([torch.ones(2, dtype=torch.complex64)], r"batch\[0\] has the type complex64"),
                            (Pair(torch.ones(2).to_sparse(), ""), r"batch.x is a sparse"), ({"x": np.array(["a"])}, r"batch\['x'\] has the type <U1"),
                            ({(1, 2): 3}, r"batch has the key \(1, 2\)"), (torch.ones(2, requires_grad=True), "batch requires gradients"),
                            (Local(1), "define this class at the top level")]:
            with self.assertRaisesRegex(EngineError, text) as caught:
                pack(batch)
            self.assertEqual(caught.exception.kind, "data")


if __name__ == "__main__":
    unittest.main()
