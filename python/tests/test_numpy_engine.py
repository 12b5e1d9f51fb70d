"""examples/numpy-engine against PyTorch's gradients and the package's dropout."""
import os
import sys
import unittest

import numpy as np
import torch

from fake_host import Host, REPOSITORY, floats, layout, memory_file
from hetseq import keys
from hetseq.dropout import keep_mask, keep_scale

ENGINE = REPOSITORY / "examples/numpy-engine/engine.py"
SHAPES = {"first": (64, 1), "second": (64, 64), "last": (1, 64)}


class NumpyEngine(unittest.TestCase):
    def test_it_has_at_most_80_lines_and_needs_numpy_only(self):
        source = ENGINE.read_text()
        self.assertLessEqual(len(source.splitlines()), 80)
        self.assertNotIn("import hetseq", source)

    def test_losses_and_gradients_are_those_of_pytorch(self):
        names = [{"name": f"{layer}.{part}", "shape": list(shape if part == "weight" else shape[:1]), "trainable": True}
                 for layer, shape in SHAPES.items() for part in ("weight", "bias")]
        placed = layout(names)
        values = np.random.default_rng(1).normal(size=placed["length"]).astype(np.float32) * 0.3
        points = np.random.default_rng(2).normal(size=(7, 2)).astype(np.float32)
        samples, rate, key = [3, 9, 4, 100, 7, 0, 2], 0.3, 12345678901234567890
        with Host(command=[sys.executable, str(ENGINE)], environment={"PYTHONPATH": ""}) as host:
            hello, _ = host.start({"dropout": rate}, task="curve")
            self.assertEqual((hello["protocol"], hello["engine"]), (1, "numpy"))
            parameters, _ = memory_file(placed["length"], values)
            gradients, found = memory_file(placed["length"], np.nan)
            host.ask("layout", [parameters, gradients], **placed, terms=[{"name": "loss", "weight": 1.0}])
            host.ask("load", count=placed["length"])

            def ask(do, parts, **fields):
                host.send(do, micro=len(parts), **fields)
                for part in parts:
                    file, _ = memory_file(2 * len(part), np.concatenate([points[part, 0], points[part, 1]]))
                    arrays = [{"name": name, "dtype": "f32", "shape": [len(part), 1], "offset": at * 4 * len(part)} for at, name in enumerate("xy")]
                    host.send("micro", [file], samples=[samples[at] for at in part], counts=[len(part)], arrays=arrays, tree=None)
                    os.close(file)
                for number in range(len(parts)):
                    self.assertEqual(host.receive(), {"done": number + 1})
                return host.answer()

            weights = {}
            for entry in placed["parameters"]:
                size = int(np.prod(entry["shape"]))
                weights[entry["name"]] = torch.tensor(values[entry["offset"]:entry["offset"] + size]).view(entry["shape"]).requires_grad_()

            def loss(mask):
                x, y = torch.tensor(points[:, :1]), torch.tensor(points[:, 1:])
                layer = lambda name, x: torch.nn.functional.linear(x, weights[name + ".weight"], weights[name + ".bias"])
                return ((layer("last", mask * torch.tanh(layer("second", torch.tanh(layer("first", x))))) - y)**2).sum()

            mask = keep_mask(keys.sample_keys(key, samples), 64, rate, torch.device("cpu")) * keep_scale(rate)
            expected = loss(mask)
            (expected * 0.25).backward()
            for parts in ([list(range(7))], [[0], [1, 2, 3], [4, 5, 6]], []):
                answer = ask("compute", parts, update=1, scales=[0.25], loss_scale=1.0, update_key=key)
                self.assertAlmostEqual(floats(answer["losses"])[0], expected.item() if parts else 0.0, places=4)
                for entry in placed["parameters"]:
                    gradient = weights[entry["name"]].grad.numpy().ravel() * bool(parts)
                    np.testing.assert_allclose(found[entry["offset"]:entry["offset"] + gradient.size], gradient, rtol=1e-4, atol=1e-5)
            answer = ask("evaluate", [[0, 1, 2], [3, 4, 5, 6]])
            self.assertAlmostEqual(floats(answer["scores"])[0], loss(1.0).item(), places=4)
            self.assertEqual(host.ask("stop"), {})
            self.assertEqual(host.process.wait(10), 0)


if __name__ == "__main__":
    unittest.main()
