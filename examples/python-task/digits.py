"""Handwritten digits in PyTorch, trained by HetSeq: a complete task in one file.

    hetseq prep digits --out data/mnist              # or copy MNIST's four idx files there
    hetseq train examples/python-task/digits.toml    # or: python examples/python-task/digits.py

There is no training loop, no optimizer, no device and no sampler here: HetSeq does all that, on one
machine or on many. docs/pytorch.md explains each method.
"""
import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import hetseq


class Digits(torch.utils.data.Dataset):
    """Images and labels in MNIST's idx files, gzipped or not."""

    def __init__(self, folder, part, augment):
        self.augment = augment
        self.images = read_idx(Path(folder), f"{part}-images-idx3-ubyte")
        self.labels = read_idx(Path(folder), f"{part}-labels-idx1-ubyte")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        # A random shift by up to two pixels. HetSeq seeds NumPy, PyTorch and `random` for each sample and
        # epoch, so the shift is the same on whichever machine the sample is read.
        shift = np.random.randint(-2, 3, size=2) if self.augment else (0, 0)
        image = np.roll(self.images[index], shift, axis=(0, 1)).astype(np.float32) / 255
        return torch.from_numpy(image)[None], int(self.labels[index])


def read_idx(folder, name):
    """An array of bytes in the idx format: two zeros, a type, the number of dimensions, their sizes, data."""
    path = folder / name
    if path.exists():
        data = path.read_bytes()
    else:
        with gzip.open(folder / f"{name}.gz") as file:
            data = file.read()
    dimensions = data[3]
    shape = np.frombuffer(data, ">u4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


class ConvNet(nn.Module):
    """No batch norm, which mixes samples. SiLU and strides instead of ReLU and max pooling: at their
    kinks, a rounding difference between two splits of the work would grow."""

    def __init__(self, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.fc1, self.fc2 = nn.Linear(32 * 7 * 7, 128), nn.Linear(128, 10)
        # As nn.Dropout, but each sample has the same mask on every machine. One module per use.
        self.dropout1, self.dropout2 = hetseq.Dropout(dropout), hetseq.Dropout(dropout)

    def forward(self, x):
        x = F.silu(self.conv2(F.silu(self.conv1(x))))
        x = F.silu(self.fc1(self.dropout1(x.flatten(1))))
        return self.fc2(self.dropout2(x))


class Task(hetseq.Task):
    paths = ["data"]            # this key of the [task] table is a path
    scores = ("correct",)       # sums that `score` returns

    def __init__(self, config):
        self.data, self.dropout = config["data"], config.get("dropout", 0.1)

    def dataset(self, split):
        return Digits(self.data, {"train": "train", "valid": "t10k"}[split], augment=split == "train")

    def model(self):
        return ConvNet(self.dropout)

    def loss(self, model, batch):
        images, labels = batch
        # The sum, not the mean: HetSeq divides by the number of samples of the whole update.
        return F.cross_entropy(model(images), labels, reduction="sum")

    def score(self, model, batch):
        images, labels = batch
        return {"correct": (model(images).argmax(1) == labels).sum()}

    def metrics(self, sums):
        return {"accuracy": sums["correct"] / sums["samples"]}


if __name__ == "__main__":
    hetseq.run(Task, Path(__file__).with_name("digits.toml"))
