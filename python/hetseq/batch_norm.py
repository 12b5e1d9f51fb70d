"""Batch norm, which mixes samples: refuses it, and the two ways to do without it.

In training mode, batch norm's result depends on how HetSeq cuts micro-batches, and its running
statistics would differ between machines. `replica.py` and `data.py` call `refuse`; users call the others.
"""
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from .errors import EngineError


def refuse(model):
    """Raises an error if a module of a model in training mode mixes samples or updates statistics."""
    for path, module in model.named_modules():
        mixes = isinstance(module, _BatchNorm) or isinstance(module, _InstanceNorm) and module.track_running_stats
        if mixes and module.training:
            raise EngineError("task", f"the model has {type(module).__name__} ({path}), which mixes samples in training, so the result would depend on how work is split. "
                              "In model(), call hetseq.freeze_batch_norm(model) to use its running statistics as constants (pre-trained models), "
                              "or hetseq.group_norm(model) to replace it by group norm (training from scratch)")


def freeze_batch_norm(model):
    """Makes batch norm use its running statistics as constants, also in training; returns the model.

    For pre-trained models. The scale and bias are still trained if they require gradients.
    """
    for module in model.modules():
        if isinstance(module, (_BatchNorm, _InstanceNorm)) and module.track_running_stats:
            kind = type(module)
            if not getattr(kind, "is_frozen", False):
                # A subclass, so that parameters, names and isinstance stay as they are.
                module.__class__ = type("Frozen" + kind.__name__, (kind,), {"train": _stay_in_evaluation_mode, "is_frozen": True})
            module.train(False)
    return model


def _stay_in_evaluation_mode(self, mode=True):
    return nn.Module.train(self, False)


def group_norm(model, groups=32):
    """Replaces every batch norm by group norm (Wu and He, 2018) and returns the model.

    Uses the largest power of two up to `groups` that divides the channels. Scale and bias are kept, and so
    are their names.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(module, name, _as_group_norm(child, groups))
    return _as_group_norm(model, groups) if isinstance(model, _BatchNorm) else model


def _as_group_norm(batch_norm, groups):
    channels = batch_norm.num_features
    divides = channels & -channels
    norm = nn.GroupNorm(min(divides, 1 << (max(groups, 1).bit_length() - 1)), channels, eps=batch_norm.eps, affine=batch_norm.affine)
    if batch_norm.affine:
        with torch.no_grad():
            norm.weight.copy_(batch_norm.weight)
            norm.bias.copy_(batch_norm.bias)
    return norm
