"""A task for tests whose loss fails in a way that the first sample of the micro-batch chooses."""
import os
import subprocess

import torch
from torch import nn

import hetseq

print("garbage on stdout")
os.write(1, b"more garbage\n")
subprocess.run(["echo", "garbage of a child"])


class Task(hetseq.Task):
    scores = ("sum",)

    def dataset(self, split):
        return [torch.full((2,), float(i)) for i in range(100)]

    def model(self):
        return nn.Linear(2, 1)

    def loss(self, model, batch):
        loss = model(batch).sum()
        fault = hetseq.sample_ids()[0]
        if fault == 90:
            raise ValueError("bad batch")
        if fault == 91:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        if fault == 92:
            return loss * float("nan")
        if fault == 93:
            return loss.detach()
        if fault == 94:
            os.close(0)     # the user's code may do this: standard input is not the channel
        return loss

    def score(self, model, batch):
        return {"sum": [1, 2]} if hetseq.sample_ids()[0] == 95 else {"sum": batch.sum()}
