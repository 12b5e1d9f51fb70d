"""A small task for the tests of engines. The key `fault` makes it fail in one way."""
import os
import sys
import time

if os.environ.get("HETSEQ_TEST_FAULT") == "import":
    import a_module_that_is_missing  # noqa: F401

import torch

import hetseq


class Waves(torch.utils.data.Dataset):
    def __init__(self, samples, seed, fault):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.rand(samples, 8, generator=generator) * 2 - 1
        self.y = self.x.sum(1, keepdim=True).sin()
        self.fault, self.reads = fault, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.reads += 1
        if self.fault == "shrink" and self.reads > 300:
            raise IndexError(f"sample {index} is gone")
        return self.x[index], self.y[index]


class Task(hetseq.Task):
    scores = ("squares",)

    def __init__(self, config):
        super().__init__(config)
        self.fault, self.calls = config.get("fault", ""), 0

    def dataset(self, split):
        return Waves(360, 1, self.fault) if split == "train" else Waves(64, 2, self.fault)

    def model(self):
        layers = [torch.nn.Linear(8, 64), torch.nn.Tanh()]
        if self.fault == "batch-norm":
            layers.append(torch.nn.BatchNorm1d(64))
        return torch.nn.Sequential(*layers, hetseq.Dropout(self.config.get("dropout", 0.0)), torch.nn.Linear(64, 1))

    def loss(self, model, batch):
        self.calls += 1
        time.sleep(self.config.get("pause", 0.0))
        x, y = batch
        squares = (model(x) - y) ** 2
        if self.fault == "mean":
            return squares.mean()
        if self.fault == "count":
            return squares.sum(), len(x) + 1
        if self.calls > 50:
            if self.fault == "exception":
                raise ValueError("this batch is wrong")
            if self.fault == "nan":
                return squares.sum() * float("nan")
            if self.fault == "print":
                print("\x00\xff not a message", flush=True)
                sys.stdout.buffer.write(b"\xff\xff\xff\xff") if hasattr(sys.stdout, "buffer") else None
        return squares.sum()

    def score(self, model, batch):
        x, y = batch
        return {"squares": ((model(x) - y) ** 2).sum()}

    def metrics(self, sums):
        return {"rmse": hetseq.lower((sums["squares"] / max(sums["samples"], 1)) ** 0.5)}
