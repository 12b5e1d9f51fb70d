"""Identifies a task's code and data, so that ranks and resumed runs notice when they differ.

`data.py` calls it when it describes the task.
"""
import hashlib
import os
import sys

import numpy as np

from .errors import PACKAGE

SAMPLES = 16


def of_code(folder, file):
    """A hash of the task file and of the modules that it imported from its own folder.

    Blank lines and lines of comments do not count.
    """
    paths = {file}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and path.endswith(".py") and path.startswith(folder + os.sep) and "site-packages" not in path and not path.startswith(PACKAGE):
            paths.add(path)
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: os.path.relpath(path, folder)):
        digest.update(os.path.relpath(path, folder).encode() + b"\n")
        with open(path, "rb") as source:
            for line in source.read().splitlines():
                if line.strip() and not line.lstrip().startswith(b"#"):
                    digest.update(line.rstrip() + b"\n")
    return digest.hexdigest()[:16]


def of_samples(count, lengths, read):
    """A hash of the number of samples, their lengths, and up to 16 samples, spread over all.

    `read(i)` returns sample i.
    """
    digest = hashlib.sha256(f"{count};".encode())
    if lengths is not None:
        digest.update(np.asarray(lengths, "<u4").tobytes())
    for at in sorted({count * part // SAMPLES for part in range(SAMPLES)} | {count - 1}) if count else ():
        _add(digest, read(at))
    return digest.hexdigest()[:16]


def _add(digest, value):
    if isinstance(value, dict):
        for key in value:
            digest.update(f"{key}:".encode())
            _add(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)}[".encode())
        for item in value:
            _add(digest, item)
    elif isinstance(value, (bytes, bytearray)):
        digest.update(value)
    elif isinstance(value, float):
        digest.update(f"{value:.1e}".encode())
    elif value is None or isinstance(value, (str, int)):
        digest.update(repr(value).encode())
    elif hasattr(value, "detach") or isinstance(value, (np.ndarray, np.generic)):
        _add_array(digest, value)
    else:
        # Images and other objects: all that is known of every type.
        digest.update(f"{type(value).__name__} {getattr(value, 'size', '')}".encode())


def _add_array(digest, value):
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    value = np.asarray(value)
    digest.update(f"{list(value.shape)}".encode())
    if value.dtype.kind in "iub":
        digest.update(value.astype("<i8").tobytes())
    elif value.dtype.kind == "f" and value.size:
        # Two digits: decoders and vector units differ in the last bits between machines.
        digest.update(f"{np.abs(value.astype(np.float64)).mean():.1e}".encode())
