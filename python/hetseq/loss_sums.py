"""Checks what the user's `loss` and `score` returned. Called by `replica.py`."""
import torch

from .data import as_count
from .errors import EngineError


def loss_sums(result, terms, counts, where, device, training):
    """The loss sums as f32 scalars, in the order of the terms.

    `where` is the place of the user's `loss`, for messages; `counts` are those of `Task.counts`.
    """
    if not isinstance(result, dict):
        if len(terms) > 1:
            raise _wrong(where, f"returned {_kind(result)}, but the task has several loss terms: return a dict with {', '.join(terms)}")
        result = {terms[0]: result}
    if set(result) != set(terms):
        hint = " It looks like a model's output: return the loss sum only." if "logits" in result else ""
        raise _wrong(where, f"returned a dict with {', '.join(map(str, result)) or 'nothing'}, but the loss terms are {', '.join(terms)}.{hint}")
    return [_loss_sum(result[term], term, count, where, device, training) for term, count in zip(terms, counts)]


def _loss_sum(value, term, count, where, device, training):
    if isinstance(value, tuple) and len(value) == 2:
        value, own = value
        own = as_count(own, term, where)
        if own != count:
            raise _wrong(where, f"the loss term {term!r} is a sum over {own}, but counts() returned {count} for the same batch. Both must count the same")
    if not isinstance(value, torch.Tensor):
        if count == 0 and isinstance(value, (int, float)):
            return torch.tensor(float(value), device=device)
        raise _wrong(where, f"returned {_kind(value)} for the loss term {term!r}: return a tensor with the sum over samples, or (sum, count)")
    if value.numel() != 1:
        raise _wrong(where, f"returned a tensor of shape {list(value.shape)} for the loss term {term!r}: return one number, the sum over samples, for example with "
                     'reduction="sum"')
    if not value.is_floating_point():
        raise _wrong(where, f"returned a tensor of type {value.dtype} for the loss term {term!r}: expected a floating-point number")
    # A micro-batch without anything to count, such as one without masked words, may have no gradient.
    if training and not value.requires_grad and count != 0:
        raise _wrong(where, f"the loss term {term!r} has no gradient. Was it detached, converted with item(), or computed under no_grad?")
    return value.reshape(()).float()


def score_sums(result, names, where):
    """The score sums as floats, in the order of their names."""
    if not isinstance(result, dict) or set(result) != set(names):
        given = ", ".join(map(str, result)) if isinstance(result, dict) else _kind(result)
        raise _wrong(where, f"returned {given}, but Task.scores names: {', '.join(names) or 'none'}. Return a dict with these names")
    sums = []
    for name in names:
        value = result[name]
        if getattr(value, "ndim", 0) and value.numel() != 1:
            raise _wrong(where, f"the score {name!r} has the shape {list(value.shape)}: return one number, the sum over samples")
        try:
            sums.append(float(value))
        except (TypeError, ValueError):
            raise _wrong(where, f"the score {name!r} is {_kind(value)}: return a number, the sum over samples") from None
    return sums


def _wrong(where, reason):
    return EngineError("task", f"{where}: {reason}")


def _kind(value):
    if value is None:
        return "None"
    return f"the {type(value).__name__} {value!r}" if isinstance(value, (int, float, str)) else f"an object of type {type(value).__name__}"
