"""HetSeq for PyTorch: train your model on any mix of machines.

    class Task(hetseq.Task): ...            # data, model, loss: see hetseq.Task
    hetseq.run(Task, "run.toml")            # trains it: starts the `hetseq` binary
    hetseq.load(model, "runs/x")            # the trained weights in a plain PyTorch model

PyTorch and NumPy are imported when something here needs them.
"""
from .run import run
from .task import Task, higher, lower

__version__ = "0.1.0"
__all__ = ["Dropout", "Task", "freeze_batch_norm", "group_norm", "higher", "key_dropout", "load", "lower", "rng", "run", "sample_ids"]

_LAZY = {"Dropout": "dropout", "key_dropout": "dropout", "freeze_batch_norm": "batch_norm", "group_norm": "batch_norm", "load": "checkpoint",
         "rng": "sample_context", "sample_ids": "sample_context"}


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'hetseq' has no attribute {name!r}")
    import importlib
    return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)


def __dir__():
    return sorted([*globals(), *_LAZY])
