"""The model on a device: gradients equal PyTorch's own, and models that cannot be trained are refused."""
import os
import unittest
import unittest.mock

import numpy as np
import torch
from torch import nn

from fake_host import layout, memory_file
import hetseq
from hetseq import model_state
from hetseq.errors import EngineError
from hetseq.replica import Replica
from hetseq.task_file import LoadedTask

CPU = torch.device("cpu")


class Stub(LoadedTask):
    """A task without a file."""

    def __init__(self, build, loss, compile=False):
        self.task = hetseq.Task({})
        self.task.model, self.task.loss = build, loss
        self.folder, self.compile = os.path.dirname(os.path.abspath(__file__)), compile


def squares(model, batch):
    return model(batch).square().sum()


class Placed:
    """A replica with its files."""

    def __init__(self, build, loss=squares, precision="f32", compile=False, device=CPU, frozen=()):
        self.replica = Replica(Stub(build, loss, compile), device, precision, seed=3)
        torch.manual_seed(3)
        described = [{"name": entry.name, "shape": list(entry.tensor.shape), "trainable": entry.trainable and entry.name not in frozen}
                     for entry in model_state.state_entries(build())]
        self.layout = layout(described)
        parameters, self.parameters = memory_file(self.layout["length"])
        gradients, self.gradients = memory_file(self.layout["trainable_length"], np.nan)
        torch.manual_seed(3)
        values = {entry.name: entry.tensor.detach().float().reshape(-1).numpy() for entry in model_state.state_entries(build())}
        for entry in self.layout["parameters"]:
            self.parameters[entry["offset"]:entry["offset"] + len(values[entry["name"]])] = values[entry["name"]]
        self.replica.place(self.layout, parameters, gradients)
        self.replica.load(self.layout["length"])

    def compute(self, *batches, scale=1.0, loss_scale=1.0, key=5):
        self.replica.begin()
        sums, first = 0.0, 0
        for batch in batches:
            sums += self.replica.micro_batch(batch, list(range(first, first + len(batch))), [len(batch)], [scale], loss_scale, key)[0]
            first += len(batch)
        self.overflow = self.replica.finish(len(batches), loss_scale)
        return sums

    def gradient(self, name):
        entry = next(entry for entry in self.layout["parameters"] if entry["name"] == name)
        return torch.tensor(self.gradients[entry["offset"]:entry["offset"] + int(np.prod(entry["shape"], dtype=int))]).view(entry["shape"])


def expected_gradients(build, loss, batch, scale=1.0):
    torch.manual_seed(3)
    model = build()
    (loss(model, batch) * scale).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def network():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


class Gradients(unittest.TestCase):
    def assert_close(self, placed, expected, tolerance=1e-6):
        for name, gradient in expected.items():
            wanted = torch.zeros_like(placed.gradient(name)) if gradient is None else gradient
            torch.testing.assert_close(placed.gradient(name), wanted, rtol=tolerance, atol=tolerance)

    def test_one_and_several_micro_batches_give_pytorchs_gradients(self):
        x, placed = torch.randn(6, 3), Placed(network)
        expected = expected_gradients(network, squares, x, 0.25)
        for batches in ([x], [x[:1], x[1:4], x[4:]], [x]):
            loss = placed.compute(*batches, scale=0.25)
            self.assert_close(placed, expected)
        torch.manual_seed(3)
        self.assertAlmostEqual(loss, squares(network(), x).item(), places=4)

    def test_an_update_without_micro_batches_has_zeros(self):
        placed = Placed(network)
        placed.compute(torch.randn(2, 3))
        self.assertEqual(placed.compute(), 0.0)
        self.assertEqual(np.abs(placed.gradients).max(), 0.0)

    def test_parameters_are_aligned_views_of_one_buffer(self):
        placed = Placed(network)
        parameters = list(placed.replica.model.parameters())
        self.assertEqual([parameter.data_ptr() % 64 for parameter in parameters], [0] * 4)
        self.assertEqual({parameter.untyped_storage().data_ptr() for parameter in parameters}, {placed.replica.flat.untyped_storage().data_ptr()})

    def test_gradients_are_written_to_the_file_itself(self):
        placed = Placed(network)
        placed.compute(torch.randn(2, 3))
        addresses = {parameter.grad.untyped_storage().data_ptr() for parameter in placed.replica.model.parameters()}
        self.assertEqual(addresses, {placed.replica.gradient_file.untyped_storage().data_ptr()})

    def test_only_the_first_values_are_loaded(self):
        placed = Placed(network, frozen=["0.weight"])
        placed.parameters[:] = 2.0
        placed.replica.load(placed.layout["trainable_length"])
        model = placed.replica.model
        self.assertTrue((model[2].weight == 2).all() and (model[0].bias == 2).all())
        self.assertFalse((model[0].weight == 2).any())
        placed.replica.load(placed.layout["length"])
        self.assertTrue((model[0].weight == 2).all())

    def test_frozen_parameters_have_no_gradient(self):
        def build():
            model = network()
            model[0].weight.requires_grad_(False)
            return model
        for placed in (Placed(build), Placed(network, frozen=["0.weight"])):
            self.assertEqual(placed.layout["trainable_length"], 17)
            x = torch.randn(4, 3)
            placed.compute(x)
            self.assertIsNone(placed.replica.model[0].weight.grad)
            expected = expected_gradients(network, squares, x)
            self.assert_close(placed, {name: gradient for name, gradient in expected.items() if name != "0.weight"})

    def test_tied_weights_are_one_parameter(self):
        def build():
            model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
            model[2].weight = model[0].weight
            return model
        placed = Placed(build)
        self.assertEqual([entry["name"] for entry in placed.layout["parameters"]], ["0.weight", "0.bias", "2.bias"])
        x = torch.randn(3, 4)
        placed.compute(x[:1], x[1:])
        self.assert_close(placed, expected_gradients(build, squares, x))
        self.assertIs(placed.replica.model[2].weight, placed.replica.model[0].weight)

    def test_buffers_are_loaded(self):
        def build():
            model = network()
            model.register_buffer("mean", torch.arange(3.0))
            model.register_buffer("table", torch.ones(2), persistent=False)
            model.register_buffer("ids", torch.arange(4))
            return model
        placed = Placed(build, lambda model, batch: squares(model, batch - model.mean))
        self.assertIn("mean", [entry["name"] for entry in placed.layout["parameters"]])
        self.assertNotIn("table", [entry["name"] for entry in placed.layout["parameters"]])
        placed.parameters[-3:] = [5, 6, 7]
        placed.replica.load(placed.layout["length"])
        self.assertEqual(placed.replica.model.mean.tolist(), [5, 6, 7])

    def test_unused_parameters_get_zeros(self):
        def build():
            model = network()
            model.unused = nn.Linear(2, 2)
            return model
        loss = lambda model, batch: squares(nn.Sequential(*list(model)[:3]), batch)
        placed, x = Placed(build, loss), torch.randn(4, 3)
        placed.compute(x)
        self.assert_close(placed, expected_gradients(build, loss, x))

    def test_parameters_used_by_some_micro_batches_only(self):
        loss = lambda model, batch: squares(model, batch) if len(batch) > 1 else model[0](batch).sum()
        placed, x = Placed(network, loss), torch.randn(4, 3)
        placed.compute(x[:1], x[1:])
        expected = expected_gradients(network, lambda model, x: loss(model, x[:1]) + loss(model, x[1:]), x)
        self.assert_close(placed, expected)
        placed.compute(x[:1])
        self.assertEqual(placed.gradient("2.weight").abs().max(), 0)

    def test_channels_last_stays(self):
        build = lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        placed, x = Placed(build), torch.randn(2, 3, 8, 8)
        self.assertTrue(placed.replica.model.weight.is_contiguous(memory_format=torch.channels_last))
        placed.compute(x[:1], x[1:])
        self.assert_close(placed, expected_gradients(build, squares, x), 1e-4)

    def test_weights_of_lower_precision_become_f32(self):
        placed = Placed(lambda: network().bfloat16())
        self.assertEqual({parameter.dtype for parameter in placed.replica.model.parameters()}, {torch.float32})
        placed.compute(torch.randn(2, 3))
        self.assertTrue(np.isfinite(placed.gradients).all())

    def test_a_separate_gradient_buffer_as_on_gpus(self):
        # The meta data of a GPU without one: the CPU under another name.
        class Gpu:
            type = "other"
            def __str__(self):
                return "cpu"
        x = torch.randn(6, 3)
        placed = Placed(network)
        replica = placed.replica
        replica.device = Gpu()
        real = torch.zeros
        try:
            torch.zeros = lambda *shape, device=None, **options: real(*shape, **options)
            replica._place_gradients([({"name": entry["name"], "offset": entry["offset"]}, replica.entries[entry["name"]].tensor, start)
                                      for entry, start in zip(placed.layout["parameters"], (0, 16, 32, 48))])
        finally:
            torch.zeros, replica.device = real, CPU
        self.assertIsNotNone(replica.gradient_buffer)
        # 15 values of 16, so the file's order differs from the buffer's after the first.
        self.assertEqual(len(replica.gradient_segments), 4)
        placed.gradients[:] = np.nan
        placed.compute(x[:2], x[2:])
        self.assert_close(placed, expected_gradients(network, squares, x))

    def test_nan_is_passed_on(self):
        placed = Placed(network)
        loss = placed.compute(torch.full((1, 3), float("nan")))
        self.assertTrue(np.isnan(loss) and np.isnan(placed.gradients).any())

    def test_a_loss_of_nothing_needs_no_gradient(self):
        placed = Placed(network, lambda model, batch: squares(model, batch) if len(batch) else 0.0)
        x = torch.randn(3, 3)
        placed.compute(x, x[:0])
        self.assert_close(placed, expected_gradients(network, squares, x))

    def test_a_compiled_model(self):
        called = []
        real = torch.compile
        try:
            torch.compile = lambda model: called.append(model) or (lambda x: model(x))
            placed, x = Placed(network, compile=True), torch.randn(2, 3)
        finally:
            torch.compile = real
        placed.compute(x)
        self.assertEqual(called, [placed.replica.model])
        self.assert_close(placed, expected_gradients(network, squares, x))

    def test_dropout_is_the_same_for_every_split(self):
        build = lambda: hetseq.key_dropout(nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2)))
        placed, x = Placed(build), torch.randn(6, 3)
        placed.compute(x)
        whole = placed.gradients.copy()
        placed.compute(x[:1], x[1:3], x[3:])
        np.testing.assert_allclose(placed.gradients, whole, rtol=1e-5, atol=1e-5)
        placed.compute(x, key=6)
        self.assertGreater(np.abs(placed.gradients - whole).max(), 0.1)

    def test_dropout_without_keys_repeats_in_a_repeated_micro_batch(self):
        placed, x = Placed(lambda: nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5))), torch.randn(6, 3)
        first = placed.compute(x)
        torch.rand(3)
        self.assertEqual(placed.compute(x), first)

    def test_models_are_seeded(self):
        parameters = [list(Placed(network).replica.model.parameters())[0].tolist() for _ in range(2)]
        self.assertEqual(*parameters)


class Precision(unittest.TestCase):
    def test_bf16_products_and_f32_gradients(self):
        seen = []
        def loss(model, batch):
            out = model(batch)
            seen.append(out.dtype)
            return out.square().sum()
        placed, x = Placed(network, loss, "bf16"), torch.randn(8, 3)
        placed.compute(x)
        self.assertEqual(seen, [torch.bfloat16])
        expected = expected_gradients(network, squares, x)["0.weight"]
        self.assertLess((placed.gradient("0.weight") - expected).abs().max(), 0.05 * expected.abs().max())
        self.assertGreater((placed.gradient("0.weight") - expected).abs().max(), 0)

    def test_f16_divides_by_the_loss_scale_and_reports_overflow(self):
        placed, x = Placed(network, precision="f16"), torch.randn(8, 3)
        loss = placed.compute(x, loss_scale=256.0)
        self.assertFalse(placed.overflow)
        expected = expected_gradients(network, squares, x)["0.weight"]
        self.assertLess((placed.gradient("0.weight") - expected).abs().max(), 0.05 * expected.abs().max())
        self.assertAlmostEqual(placed.compute(x, loss_scale=2.0**30), loss, places=3)
        self.assertTrue(placed.overflow)
        placed.compute(loss_scale=2.0**30)
        self.assertFalse(placed.overflow)


class Refused(unittest.TestCase):
    def assert_refused(self, text, build, loss=squares, batch=torch.ones(2, 3), times=1):
        with self.assertRaisesRegex(EngineError, text) as caught:
            placed = Placed(build, loss)
            for _ in range(times):
                placed.compute(batch)
        self.assertEqual(caught.exception.kind, "task")

    def test_batch_norm(self):
        build = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.assert_refused(r"BatchNorm1d \(1\), which mixes samples.*freeze_batch_norm.*group_norm", build)
        self.assert_refused("BatchNorm1d", lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)))
        self.assert_refused("InstanceNorm1d", lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True))
        Placed(lambda: hetseq.freeze_batch_norm(build())).compute(torch.randn(2, 3))
        Placed(lambda: hetseq.group_norm(build())).compute(torch.randn(2, 3))

    def test_sparse_gradients(self):
        self.assert_refused("gradient of weight is sparse", lambda: nn.Embedding(5, 2, sparse=True), batch=torch.tensor([1, 2]))

    def test_lazy_modules(self):
        self.assert_refused("weight has no shape yet", lambda: nn.LazyLinear(3))

    def test_buffers_that_change(self):
        class Counts(nn.Linear):
            def __init__(self):
                super().__init__(3, 2)
                self.register_buffer("seen", torch.zeros(()))
            def forward(self, x):
                self.seen += 1
                return super().forward(x)
        self.assert_refused("buffer seen changed in training", Counts)

    def test_no_trainable_and_complex_parameters(self):
        self.assert_refused("no parameter that requires gradients", lambda: nn.Linear(2, 2).requires_grad_(False))
        self.assert_refused("weight is complex", lambda: nn.Linear(2, 2, dtype=torch.complex64))

    def test_another_model_than_the_run(self):
        placed = Placed(network)
        for change, text in [({"name": "other"}, "only the model has: 0.weight; only the run has: other"), ({"shape": [3, 5]}, r"0.weight has the shape \[5, 3\], but \[3, 5\]")]:
            changed = dict(placed.layout, parameters=[{**placed.layout["parameters"][0], **change}, *placed.layout["parameters"][1:]])
            with self.assertRaisesRegex(EngineError, text):
                placed.replica.place(changed, memory_file(100)[0], memory_file(100)[0])

    def test_wrong_losses_name_the_place(self):
        model = network
        def mean_per_sample(model, batch):
            return model(batch).sum(1)
        self.assert_refused(r"test_replica.py:\d+, in mean_per_sample: returned a tensor of shape \[2\].*reduction=\"sum\"", model, mean_per_sample)
        for loss, text in [(lambda model, batch: None, "returned None"), (lambda model, batch: model(batch).sum().item(), "returned the float"),
                           (lambda model, batch: model(batch).sum().detach(), "has no gradient"), (lambda model, batch: torch.tensor(3), "of type torch.int64"),
                           (lambda model, batch: {"loss": squares(model, batch), "logits": 1}, "looks like a model's output"), (lambda model, batch: {}, "a dict with nothing"),
                           (lambda model, batch: (squares(model, batch), 7), r"is a sum over 7, but counts\(\) returned 2"), (lambda model, batch: (squares(model, batch), 2.5), "is 2.5: expected an integer")]:
            self.assert_refused(text, model, loss)

    def test_an_exception_names_the_users_line(self):
        def broken(model, batch):
            return model(batch)["nothing"]
        with open(os.devnull, "w") as nothing, unittest.mock.patch("sys.stderr", nothing):
            self.assert_refused(r"^test_replica.py:\d+, in broken: (TypeError|IndexError): ", network, broken)

    def test_out_of_memory_has_its_own_kind(self):
        for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), torch.OutOfMemoryError("CUDA out of memory. Tried")):
            def fail(model, batch):
                raise error
            placed = Placed(network, fail)
            with self.assertRaises(EngineError) as caught:
                placed.compute(torch.ones(2, 3))
            self.assertEqual(caught.exception.kind, "out-of-memory")
        def fail(model, batch):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        with open(os.devnull, "w") as nothing, unittest.mock.patch("sys.stderr", nothing), self.assertRaises(EngineError) as caught:
            Placed(network, fail).compute(torch.ones(2, 3))
        self.assertEqual(caught.exception.kind, "device")


class Helpers(unittest.TestCase):
    def test_frozen_batch_norm_stays_in_evaluation_mode(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        before = model.state_dict().keys()
        hetseq.freeze_batch_norm(hetseq.freeze_batch_norm(model)).train()
        self.assertFalse(model[1].training)
        self.assertTrue(model[0].training)
        x = torch.randn(5, 3)
        torch.testing.assert_close(model(x)[2:3], model(x[2:3]))
        self.assertEqual(model.state_dict().keys(), before)
        self.assertIsInstance(model[1], nn.BatchNorm1d)

    def test_group_norm_keeps_scale_and_bias(self):
        model = nn.Sequential(nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24))
        nn.init.uniform_(model[1].weight)
        weight = model[1].weight.clone()
        hetseq.group_norm(model)
        self.assertEqual((type(model[1]), model[1].num_groups), (nn.GroupNorm, 8))
        self.assertTrue(torch.equal(model[1].weight, weight))
        self.assertEqual(hetseq.group_norm(nn.BatchNorm2d(64), groups=20).num_groups, 16)


if __name__ == "__main__":
    unittest.main()
