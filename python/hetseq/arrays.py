"""A batch as arrays in one file and a tree that says how they nest.

`data.py` packs what the user's `collate` returned, `device.py` unpacks it for `loss`. HetSeq forwards both
without looking at them. The tree is JSON in a string, so that no number in it changes on the way:
a list is a list, a plain value itself, and all else an object with a tag.
"""
import collections.abc
import dataclasses
import importlib
import json
import sys

import numpy as np

from .channel import map_file, memory_file
from .errors import EngineError

ALIGNMENT = 64
_NAMES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int16": "i16",
          "int32": "i32", "int64": "i64", "uint8": "u8", "bool": "bool"}
_DTYPES = {short: name for name, short in _NAMES.items()}


def pack(batch):
    """Returns the list of arrays, the tree, and the descriptor of a file with the arrays (or None)."""
    packer = _Packer()
    tree = json.dumps(packer.tree(batch, "batch"), separators=(",", ":"))
    return packer.arrays, tree, memory_file(packer.parts) if packer.arrays else None


class _Packer:
    def __init__(self):
        self.arrays, self.parts, self.length = [], [], 0

    def tree(self, value, path):
        torch = sys.modules.get("torch")
        if value is None or type(value) in (bool, int, float, str):
            return value
        if torch is not None and isinstance(value, torch.Tensor):
            return {"tensor": self.add_tensor(value, path)}
        if isinstance(value, np.ndarray):
            return {"array": self.add(value, str(value.dtype), path)}
        if isinstance(value, np.generic):
            return self.tree(value.item(), path)
        if type(value) is list:
            return [self.tree(item, f"{path}[{at}]") for at, item in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": [self.tree(item, f"{path}[{at}]") for at, item in enumerate(value)]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = [self.tree(getattr(value, field), f"{path}.{field}") for field in value._fields]
            return {"named": _class_name(value, path), "items": items}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value)]
            return {"data": _class_name(value, path), "items": [[field, self.tree(getattr(value, field), f"{path}.{field}")] for field in fields]}
        # Also what Hugging Face's tokenizers return, which arrives as a plain dict.
        if isinstance(value, collections.abc.Mapping):
            for key in value:
                if type(key) not in (str, int):
                    raise EngineError("data", f"{path} has the key {key!r}: keys of a batch must be strings or integers")
            return {"dict": [[key, self.tree(item, f"{path}[{key!r}]")] for key, item in value.items()]}
        raise EngineError("data", f"{path} is a {type(value).__name__}, which cannot be sent to a device. A batch may have dicts, lists, tuples, "
                          "named tuples and data classes of tensors, numbers, strings and None. Convert it in collate()")

    def add_tensor(self, tensor, path):
        import torch
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise EngineError("data", f"{path} is a sparse or quantized tensor, which cannot be sent to a device. Use to_dense() in collate()")
        if tensor.requires_grad:
            raise EngineError("data", f"{path} requires gradients: a batch is data. Use detach() in collate()")
        dtype = str(tensor.dtype).replace("torch.", "")
        # The flat bytes: NumPy has no bfloat16.
        data = tensor.detach().cpu().contiguous().reshape(-1)
        data = data.view(torch.int16) if dtype == "bfloat16" else data
        return self.add(data.numpy() if dtype in _NAMES else None, dtype, path, list(tensor.shape))

    def add(self, data, dtype, path, shape=None):
        if dtype not in _NAMES:
            raise EngineError("data", f"{path} has the type {dtype}. Arrays of a batch may be: {', '.join(_NAMES)}")
        padding = -self.length % ALIGNMENT
        if padding:
            self.parts.append(bytes(padding))
        self.length += padding
        shape = list(data.shape) if shape is None else shape
        self.arrays.append({"name": path, "dtype": _NAMES[dtype], "shape": shape, "offset": self.length})
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.parts.append(data)
        self.length += data.nbytes
        return len(self.arrays) - 1


def _class_name(value, path):
    kind = type(value)
    if "<locals>" in kind.__qualname__:
        raise EngineError("data", f"{path} is a {kind.__qualname__}: define this class at the top level of its file")
    return [kind.__module__, kind.__qualname__]


class Unpacker:
    """Makes batches of arrays and trees, on a device."""

    def __init__(self, device):
        self.device = device

    def unpack(self, arrays, tree, descriptor):
        """The batch. Closes the descriptor. Without a tree, the batch is a dict of tensors by name."""
        # Private: user code may write to its batch, and the file may be needed again after a failure.
        data = map_file(descriptor, private=True) if descriptor is not None else None
        views = [self._array(array, data) for array in arrays]
        if tree is None:
            return {array["name"]: self._tensor(view, array["dtype"]) for array, view in zip(arrays, views)}
        return self._build(json.loads(tree), views, arrays)

    def _build(self, tree, views, arrays):
        build = lambda part: self._build(part, views, arrays)
        if isinstance(tree, list):
            return [build(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        if "tensor" in tree:
            at = tree["tensor"]
            return self._tensor(views[at], arrays[at]["dtype"])
        if "array" in tree:
            return views[tree["array"]]
        if "tuple" in tree:
            return tuple(build(item) for item in tree["tuple"])
        if "dict" in tree:
            return {key: build(item) for key, item in tree["dict"]}
        if "named" in tree:
            return _class(tree["named"])(*[build(item) for item in tree["items"]])
        made = object.__new__(_class(tree["data"]))
        for field, item in tree["items"]:
            object.__setattr__(made, field, build(item))
        return made

    def _array(self, array, data):
        dtype = np.dtype("int16" if array["dtype"] == "bf16" else _DTYPES[array["dtype"]])
        shape = tuple(array["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return np.empty(shape, dtype)
        return np.frombuffer(data, dtype, count, array["offset"]).reshape(shape)

    def _tensor(self, view, dtype):
        import torch
        tensor = torch.from_numpy(view)
        tensor = tensor.view(torch.bfloat16) if dtype == "bf16" else tensor
        if self.device.type == "cpu":
            return tensor
        if self.device.type == "cuda":
            # From page-locked memory the copy does not block: the first operations are queued behind it.
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)


def _class(name):
    module, qualified = name
    found = sys.modules.get(module) or importlib.import_module(module)
    for part in qualified.split("."):
        found = getattr(found, part)
    return found
