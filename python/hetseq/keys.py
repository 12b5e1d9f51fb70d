"""Keyed random numbers, bit for bit those of the Rust crate `hetseq-random`.

A key is a 64-bit number: a path (seed, update, sample, site) hashed. There is no state, so a number
does not depend on which process asks for it. `dropout.py` and `sample_context.py` call this module.
The functions on plain integers define the keys; those on NumPy arrays do the same for many at once.
"""
import numpy as np

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
ROOT = 0x6865747365712E31
FIRST, SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)


def mix(x):
    """The SplitMix64 finalizer."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def root(seed):
    """The root key of a seed."""
    return mix(seed & MASK ^ ROOT)


def index(key, i):
    """The i-th child: an epoch, an update, a sample."""
    return mix((key << 23 | key >> 41) & MASK ^ mix((i + GOLDEN) & MASK))


def name(key, text):
    """The child called `text`: a module, a kind of augmentation."""
    text = text.encode()
    key = index(key, len(text))
    for byte in text:
        key = index(key, byte)
    return key


def _mix_array(x):
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def sample_keys(key, samples):
    """`index(key, sample)` of each sample, as an array of uint64."""
    key = np.uint64((key << 23 | key >> 41) & MASK)
    return _mix_array(key ^ _mix_array(np.asarray(samples, np.uint64) + np.uint64(GOLDEN)))


def site_keys(keys, sites):
    """`name(key, site)` of each site (rows) and key (columns), as an array of uint64.

    All sites are hashed together, one byte position at a time: the cost is that of the longest.
    """
    texts = [site.encode() for site in sites]
    longest = max(map(len, texts))
    # Column 0 is the length, column j the j-th byte; the end of shorter sites is never used.
    words = np.zeros((len(texts), longest + 1), np.uint64)
    for row, text in zip(words, texts):
        row[0] = len(text)
        row[1:len(text) + 1] = np.frombuffer(text, np.uint8)
    words = _mix_array(words + np.uint64(GOLDEN))
    ends = np.array([len(text) for text in texts])
    hashed = np.repeat(np.asarray(keys, np.uint64)[None, :], len(texts), 0)
    for column in range(longest + 1):
        rotated = (hashed << np.uint64(23)) | (hashed >> np.uint64(41))
        further = _mix_array(rotated ^ words[:, column, None])
        hashed = np.where((ends >= column)[:, None], further, hashed)
    return hashed


def bits(key, elements):
    """32 random bits for each element (an array of numbers) of a key."""
    x = np.asarray(elements, np.uint32) ^ np.uint32(key & 0xFFFFFFFF)
    mix32(x, np.empty_like(x))
    x ^= np.uint32(key >> 32)
    mix32(x, np.empty_like(x))
    return x


def mix32(x, work):
    """The hash of an element, in place. `work` is an array like `x` that is overwritten."""
    for shift, factor in ((16, FIRST), (15, SECOND)):
        np.right_shift(x, np.uint32(shift), out=work)
        np.bitwise_xor(x, work, out=x)
        np.multiply(x, factor, out=x)
    np.right_shift(x, np.uint32(16), out=work)
    np.bitwise_xor(x, work, out=x)
