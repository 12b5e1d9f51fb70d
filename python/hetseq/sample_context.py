"""Which samples the engine works on now, and their random keys.

`data.py` sets it around `__getitem__` and `collate`, `device.py` around `loss`. The user's code asks it
through `hetseq.rng` and `hetseq.sample_ids`, `dropout.py` for the keys of masks.
"""
import random

import numpy as np

from . import keys

_samples = None      # ids of the micro-batch, or None outside of one
_key = None          # epoch key while reading, update key while training, None while evaluating
_position = None     # of the sample that is being read
_dropout_keys = {}   # site -> keys of the micro-batch's samples
_known_sites = []    # sites used so far: hashed together, which is cheaper than one by one
_micro_batches = 0   # counts, so that Dropout modules notice a new one


def begin(samples, key):
    """Starts a micro-batch. `key` is None if nothing may be random (evaluation)."""
    global _samples, _key, _position, _micro_batches
    _samples, _key, _position = list(samples), key, None
    _dropout_keys.clear()
    _micro_batches += 1


def end():
    """Ends a micro-batch."""
    global _samples, _key, _position
    _samples = _key = _position = None
    _dropout_keys.clear()


def read_sample(position):
    """Says which sample of the micro-batch is read next, and seeds the global generators for it."""
    global _position
    _position = position
    seed_generators(keys.name(keys.index(_key, _samples[position]), "seed"))


def seed_generators(key):
    """Seeds `random`, NumPy and PyTorch's CPU generator."""
    import torch
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    # Not torch.manual_seed: it formats a stack trace per call as long as CUDA is not initialised.
    torch.default_generator.manual_seed(key)


def sample_ids():
    """The ids of the samples of the current micro-batch, in their order.

    Valid in `collate`, `counts`, `loss` and `score`.
    """
    if _samples is None:
        raise RuntimeError("hetseq.sample_ids() is valid in collate, counts, loss and score only")
    return list(_samples)


def rng(position=None):
    """A NumPy random generator for one sample, the same on every machine and for every split.

    Call `hetseq.rng()` in `__getitem__`, and `hetseq.rng(i)` in `collate` for the i-th of its samples. It
    depends on the seed, the epoch and the sample's id only. Outside of HetSeq, for example when you
    try a dataset in a notebook, it is an ordinary generator.
    """
    if _samples is None or _key is None:
        return np.random.default_rng()
    position = _position if position is None else position
    if position is None:
        raise RuntimeError("in collate, call hetseq.rng(i) for the i-th of its samples")
    return np.random.default_rng(keys.name(keys.index(_key, _samples[position]), "rng"))


def is_keyed():
    """Whether dropout has keys now."""
    return _key is not None


def micro_batch():
    """The number of the current micro-batch since the process started."""
    return _micro_batches


def dropout_keys(site):
    """The key of each sample at a dropout site, as an array of uint64."""
    if site not in _dropout_keys:
        if site not in _known_sites:
            _known_sites.append(site)
        # After the first micro-batch this runs once per micro-batch.
        sites = [known for known in _known_sites if known not in _dropout_keys]
        _dropout_keys.update(zip(sites, keys.site_keys(keys.sample_keys(_key, _samples), sites)))
    return _dropout_keys[site]
