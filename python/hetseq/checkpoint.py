"""Loads the weights of a checkpoint into a plain PyTorch model: `hetseq.load`."""
import json
import struct
from pathlib import Path

import numpy as np
import torch


def load(model, path):
    """Loads trained weights into a model and returns it.

    `path` is a run directory (its best checkpoint, else its last one), a checkpoint, or a file
    `model.safetensors`. Names are those of the model's `state_dict`. Each tensor of the model must be in the
    file, except tied weights, which are stored once, and integer buffers, which are not stored.
    """
    file = find_weights(path)
    tensors = read_safetensors(file)
    own = model.state_dict(keep_vars=True)
    unknown = sorted(tensors.keys() - own.keys())
    loaded = {id(own[name]) for name in tensors if name in own}
    missing = sorted(name for name, tensor in own.items() if id(tensor) not in loaded and tensor.is_floating_point())
    if unknown or missing:
        raise ValueError(f"{file} is of another model. Only the file has: {unknown[:5]}. Only the model has: {missing[:5]}")
    with torch.no_grad():
        for name, value in tensors.items():
            if own[name].shape != value.shape:
                raise ValueError(f"{file}: {name} has the shape {list(value.shape)}, and {list(own[name].shape)} in the model")
            own[name].copy_(value)
    return model


def find_weights(path):
    """The file of weights that a path means."""
    path = Path(path)
    folders = [path, path / "checkpoints/best", path / "checkpoints/last", path / "best", path / "last"]
    for file in [path, *[folder / "model.safetensors" for folder in folders]]:
        if file.is_file():
            return file
    raise FileNotFoundError(f"{path} is no run directory with a checkpoint, no checkpoint and no model.safetensors")


def read_safetensors(file):
    """The tensors of a file by name. Without the package `safetensors`, which is not needed for f32."""
    with open(file, "rb") as source:
        length, = struct.unpack("<Q", source.read(8))
        header = json.loads(source.read(length))
        data = np.fromfile(source, np.uint8)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "I64": torch.int64,
                 "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}[entry["dtype"]]
        start, end = entry["data_offsets"]
        tensors[name] = torch.from_numpy(data[start:end].copy()).view(dtype).view(entry["shape"])
    return tensors
