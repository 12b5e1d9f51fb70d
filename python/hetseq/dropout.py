"""Dropout whose mask depends only on the update, the sample and the module's path.

So a model trains the same on one device and on many, however HetSeq cuts micro-batches, and a
resumed run repeats its masks. The bits are those of docs/engine-protocol.md, and of tasks in Rust.
Users put `Dropout` into their models; `replica.py` names the sites.
"""
import concurrent.futures

import numpy as np
import torch
from torch import nn

from . import sample_context
from .errors import EngineError
from .keys import mix32

_CHUNK = 1 << 15        # elements hashed at once on the CPU: they stay in the cache
_LARGE = 1 << 21        # elements from which threads pay off
_pool = None            # threads for masks on the CPU, made when first used


class Dropout(nn.Module):
    """A drop-in replacement for `torch.nn.Dropout`. The first dimension must be the sample.

    Element i of a sample (counted over all further dimensions) has the same mask in every micro-batch.
    If a dimension after the second is padded to the longest sample of the micro-batch, as in
    attention weights, pad to a fixed length instead, or masks depend on the padding. A module that is
    called several times in one forward pass draws another mask each time. Outside of HetSeq it is
    ordinary dropout.
    """

    def __init__(self, p=0.5, inplace=False):
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability must be between 0 and 1, not {p}")
        self.p, self.inplace = p, inplace
        self.site = None            # the module's path, set when HetSeq opens the model
        self._calls = (0, 0)        # number of a micro-batch, and calls in it so far

    def extra_repr(self):
        return f"p={self.p}"

    def forward(self, x):
        if not self.training or self.p == 0.0:
            return x
        if self.site is None or not sample_context.is_keyed():
            return nn.functional.dropout(x, self.p, True)
        return self._keyed(x)

    # Masks depend on Python state that a compiled graph would not see change.
    @torch.compiler.disable
    def _keyed(self, x):
        samples = len(sample_context.sample_ids())
        if x.dim() == 0 or x.shape[0] != samples:
            raise EngineError("task", f"hetseq.Dropout {self.site!r} got a tensor of shape {list(x.shape)} for {samples} samples: its first dimension must be "
                              "the sample. Reshape the tensor, or use torch.nn.Dropout here, which is right in expectation but not the same for every split")
        keep = keep_mask(sample_context.dropout_keys(self._call_site()), x[0].numel(), self.p, x.device)
        return _Apply.apply(x, keep.view(x.shape), keep_scale(self.p))

    def _call_site(self):
        micro_batch, calls = self._calls
        current = sample_context.micro_batch()
        calls = calls if micro_batch == current else 0
        if torch._C._current_graph_task_id() != -1:
            # In the backward pass, activation checkpointing repeats a part of the forward pass.
            if calls > 1:
                raise EngineError("task", f"hetseq.Dropout {self.site!r} is called {calls} times in one forward pass, and activation checkpointing repeats one of "
                                  "the calls: which one is not known. Use one Dropout module per call")
            return self.site
        self._calls = (current, calls + 1)
        return self.site if calls == 0 else f"{self.site}#{calls + 1}"


class _Apply(torch.autograd.Function):
    """`x * keep * scale`, keeping only one byte per element for the backward pass."""

    @staticmethod
    def forward(ctx, x, keep, scale):
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return torch.ops.aten.native_dropout_backward(x, keep, scale)

    @staticmethod
    def backward(ctx, gradient):
        keep, = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(gradient, keep, ctx.scale), None, None


def keep_scale(rate):
    """`1 / (1 - rate)`, rounded as in Rust. Nothing is kept if the rate is 1."""
    return float(np.float32(1) / (np.float32(1) - np.float32(rate))) if rate < 1.0 else 0.0


def threshold(rate):
    """Bits below this are dropped."""
    return min(int(float(np.float32(rate)) * 2.0**32), 2**32 - 1)


def keep_mask(keys, elements, rate, device):
    """The mask [sample, element] for the samples' keys, as a tensor of bool on the device."""
    if rate >= 1.0:
        return torch.zeros(len(keys), elements, dtype=torch.bool, device=device)
    if device.type == "cpu":
        return torch.from_numpy(_mask_on_cpu(keys, elements, threshold(rate)))
    return mask_on_device(keys, elements, threshold(rate), device)


def _mask_on_cpu(keys, elements, limit):
    low, high = (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    keep = np.empty((len(keys), elements), np.bool_)
    limit = np.uint32(limit)

    def fill(part):
        size = min(elements, _CHUNK)
        x, work = np.empty(size, np.uint32), np.empty(size, np.uint32)
        for first in range(0, elements, _CHUNK):
            numbers = np.arange(first, min(first + _CHUNK, elements), dtype=np.uint32)
            x, work = x[:len(numbers)], work[:len(numbers)]
            for sample in part:
                np.bitwise_xor(numbers, low[sample], out=x)
                mix32(x, work)
                np.bitwise_xor(x, high[sample], out=x)
                mix32(x, work)
                np.greater_equal(x, limit, out=keep[sample, first:first + len(numbers)])

    threads = min(torch.get_num_threads(), len(keys))
    if threads == 1 or keep.size < _LARGE:
        fill(range(len(keys)))
    else:
        # NumPy releases the interpreter lock while it computes.
        list(_threads().map(fill, [range(part, len(keys), threads) for part in range(threads)]))
    return keep


def _threads():
    global _pool
    if _pool is None:
        _pool = concurrent.futures.ThreadPoolExecutor(torch.get_num_threads(), "hetseq-dropout")
    return _pool


def mask_on_device(keys, elements, limit, device):
    """The same mask by operations on tensors, all of them on 32-bit integers, which GPUs are fast at."""
    words = torch.from_numpy(keys.view(np.int32).reshape(-1, 2).copy()).to(device)
    low, high = words[:, :1], words[:, 1:]
    x = torch.arange(elements, dtype=torch.int32, device=device)[None, :] ^ low
    x = _mix32_tensor(_mix32_tensor(x) ^ high)
    # Comparing unsigned integers as signed ones: flip the highest bit of both.
    sign = -(1 << 31)
    return (x ^ sign) >= _signed(limit ^ (1 << 31))


def _mix32_tensor(x):
    # Shifts of signed integers keep the sign, so its copies are masked away.
    x = (x ^ (x >> 16 & 0xFFFF)) * _signed(0x7FEB352D)
    x = (x ^ (x >> 15 & 0x1FFFF)) * _signed(0x846CA68B)
    return x ^ (x >> 16 & 0xFFFF)


def _signed(x):
    return x - (1 << 32) if x >= 1 << 31 else x


def key_dropout(model, skip=()):
    """Replaces every `torch.nn.Dropout` in a model by `hetseq.Dropout`, and returns the model.

    `skip` names modules that stay, for example because their first dimension is not the sample. Not
    replaced: `F.dropout` and the dropout inside attention, `torch.nn.MultiheadAttention` and recurrent
    layers, which are not modules; and `Dropout1d`, `Dropout2d`, `Dropout3d` and `AlphaDropout`.
    """
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            full = f"{path}.{name}" if path else name
            if type(child) is nn.Dropout and full not in skip:
                keyed = Dropout(child.p)
                keyed.train(child.training)
                setattr(module, name, keyed)
    return Dropout(model.p) if type(model) is nn.Dropout else model


def name_sites(model):
    """Gives each Dropout its module path."""
    for path, module in model.named_modules():
        if isinstance(module, Dropout):
            module.site = path


def unkeyed_dropout(model):
    """Paths of modules that drop at random without keys."""
    unkeyed = []
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rate = module.p
        elif isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
            rate = module.dropout
        else:
            continue
        if rate:
            unkeyed.append(path)
    return unkeyed
