"""`hetseq.load`: weights of a run in a plain PyTorch model."""
import json
import os
import struct
import tempfile
import unittest

import numpy as np
import torch
from torch import nn

import fake_host  # noqa: F401: sets the path
import hetseq


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        values = tensor.detach().numpy().astype(np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    head = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + data)


def network():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.register_buffer("scale", torch.rand(2))
    model.register_buffer("ids", torch.arange(2))
    return model


class Load(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_dir = folder.name
        self.checkpoint = os.path.join(folder.name, "checkpoints/step-10")
        os.makedirs(self.checkpoint)
        os.symlink("step-10", os.path.join(folder.name, "checkpoints/last"))
        self.trained = network()
        self.file = os.path.join(self.checkpoint, "model.safetensors")
        self.stored = {name: tensor for name, tensor in self.trained.state_dict().items() if name not in ("1.weight", "ids")}
        write_safetensors(self.file, self.stored)

    def test_runs_checkpoints_and_files_load(self):
        for path in (self.run_dir, self.checkpoint, self.file):
            model = network()
            self.assertIs(hetseq.load(model, path), model)
            for name, tensor in self.trained.state_dict().items():
                self.assertTrue(torch.equal(model.state_dict()[name], tensor), name)

    def test_the_file_is_what_safetensors_reads(self):
        try:
            from safetensors.torch import load_file
        except ImportError:
            self.skipTest("no package safetensors")
        from hetseq.checkpoint import read_safetensors
        ours, theirs = read_safetensors(self.file), load_file(self.file)
        self.assertEqual(ours.keys(), theirs.keys())
        self.assertTrue(all(torch.equal(ours[name], theirs[name]) for name in ours))

    def test_another_model_is_refused(self):
        with self.assertRaisesRegex(ValueError, r"Only the file has: \['0.bias', .*Only the model has: \['bias', 'weight'\]"):
            hetseq.load(nn.Linear(3, 3), self.run_dir)
        write_safetensors(self.file, {**self.stored, "0.bias": torch.ones(4)})
        with self.assertRaisesRegex(ValueError, r"0.bias has the shape \[4\], and \[3\]"):
            hetseq.load(network(), self.run_dir)
        with self.assertRaisesRegex(FileNotFoundError, "is no run directory"):
            hetseq.load(network(), self.run_dir + "/nothing")


if __name__ == "__main__":
    unittest.main()
