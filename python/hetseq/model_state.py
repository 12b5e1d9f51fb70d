"""The tensors of a model that HetSeq stores: names, shapes, and which are trained.

These are the parameters and the floating-point buffers of the `state_dict`, each once. `data.py`
describes them, `replica.py` places them on a device.
"""
import hashlib
from dataclasses import dataclass

import torch

from .errors import EngineError


@dataclass
class StateEntry:
    """One tensor of a model."""
    name: str
    tensor: torch.Tensor
    trainable: bool


def state_entries(model):
    """The stored tensors, in the order of the model. Tied weights appear once, under their first name."""
    entries, seen = [], set()
    for name, tensor, persistent in _tensors(model):
        if torch.nn.parameter.is_lazy(tensor):
            raise EngineError("task", f"the model's {name} has no shape yet (a lazy module). In model(), run one forward pass on an example before you return the model")
        if id(tensor) in seen or not persistent or not tensor.is_floating_point():
            continue
        seen.add(id(tensor))
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        entries.append(StateEntry(name, tensor, is_parameter and tensor.requires_grad))
        if tensor.requires_grad and not is_parameter:
            raise EngineError("task", f"the model's {name} is a buffer that requires gradients: make it a torch.nn.Parameter")
    if not any(entry.trainable for entry in entries):
        raise EngineError("task", "the model has no parameter that requires gradients")
    return entries


def _tensors(model):
    """Name, tensor and whether it is in the `state_dict`, of all parameters and buffers."""
    for path, module in model.named_modules():
        prefix = path + "." if path else ""
        for name, tensor in module._parameters.items():
            if tensor is not None:
                if tensor.is_complex():
                    raise EngineError("task", f"the model's {prefix}{name} is complex: use two real parameters (torch.view_as_complex)")
                yield prefix + name, tensor, True
        for name, tensor in module._buffers.items():
            if tensor is not None:
                yield prefix + name, tensor, name not in module._non_persistent_buffers_set


def fingerprint_of_rest(model):
    """A hash of what is not in `state_entries`: integer buffers, and the shapes of others.

    Not the values of floating-point tables that are computed when the model is built: their last bit
    may differ between machines.
    """
    digest = hashlib.sha256()
    for name, tensor, persistent in _tensors(model):
        if tensor.is_floating_point() and persistent:
            continue
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        if not tensor.is_floating_point() and not tensor.is_complex():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def group_settings(model, groups, where):
    """Checks the result of `Task.groups` and returns {id of parameter: (lr_scale, decays)}."""
    by_name = dict(model.named_parameters(remove_duplicate=False))
    known = {id(parameter): name for name, parameter in reversed(list(by_name.items()))}
    settings = {}
    for at, group in enumerate(groups):
        wrong = lambda reason: EngineError("task", f"{where}: group {at}: {reason}")
        if not isinstance(group, dict) or "params" not in group:
            raise wrong('expected a dict such as {"params": [...], "lr_scale": 0.1, "weight_decay": False}')
        unknown = set(group) - {"params", "lr_scale", "weight_decay"}
        if unknown:
            raise wrong(f"unknown keys: {', '.join(sorted(map(str, unknown)))}. Possible are params, lr_scale and weight_decay (True or False)")
        lr_scale, decays = group.get("lr_scale", 1.0), group.get("weight_decay")
        if isinstance(lr_scale, bool) or not isinstance(lr_scale, (int, float)) or not 0.0 <= lr_scale < float("inf"):
            raise wrong(f"lr_scale must be a number from 0, not {lr_scale!r}")
        if decays not in (None, True, False) or isinstance(decays, float):
            raise wrong(f"weight_decay must be True or False, not {decays!r}: how much weights decay is in the config, optim.weight_decay")
        params = group["params"]
        for parameter in [params] if isinstance(params, (str, torch.Tensor)) else params:
            if isinstance(parameter, str) and parameter not in by_name:
                raise wrong(f"the model has no parameter {parameter!r}")
            parameter = by_name[parameter] if isinstance(parameter, str) else parameter
            if id(parameter) not in known:
                raise wrong("params has something that is no parameter of the model or its name")
            if id(parameter) in settings:
                raise wrong(f"{known[id(parameter)]} is in two groups")
            settings[id(parameter)] = (float(lr_scale), decays)
    return settings
