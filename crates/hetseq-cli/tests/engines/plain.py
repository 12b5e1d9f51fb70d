"""Trains the model of waves.py in a plain PyTorch loop, with the samples of a run. Prints the losses.

    plain.py AUDIT_FILE SEED LR
"""
import json
import sys

import torch

from waves import Task

audit, seed, lr = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
task = Task({})
torch.manual_seed(seed)
model, data = task.model(), task.dataset("train")
optimizer = torch.optim.Adam(model.parameters(), lr=lr)
for line in open(audit):
    samples = json.loads(line)["samples"]
    x, y = data.x[samples], data.y[samples]
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
