"""A small task for tests: a network with dropout on random points."""
import torch
from torch import nn

import hetseq


class Points:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"x": torch.randn(5, generator=g), "y": torch.tensor(i % 3), "noise": torch.rand(()), "own": float(hetseq.rng().random())}

    def lengths(self):
        return [1 + i % 4 for i in range(self.count)]


class Task(hetseq.Task):
    paths = ["data"]
    scores = ("correct",)

    def dataset(self, split):
        return Points(40 if split == "train" else 12)

    def model(self):
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), hetseq.Dropout(self.config.get("dropout", 0.0)), nn.Linear(7, 3))

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), len(batch["y"])

    def score(self, model, batch):
        return {"correct": (model(batch["x"]).argmax(1) == batch["y"]).sum()}

    def metrics(self, sums):
        return {"accuracy": sums["correct"] / sums["samples"], "nll": hetseq.lower(sums["loss"] / sums["counts"]["loss"])}
