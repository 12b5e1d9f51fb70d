"""Runs crates/hetseq-train/examples/bert_numbers.rs and compares its numbers with transformers.

Used by minilm.py and bert.py.
"""

import pathlib
import subprocess
import tempfile

import torch
from safetensors.torch import load_file, save_file


def ours(program, model, inputs):
    """Returns what hetseq computes. bert_numbers.rs documents the tensors of input and output."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        integers = {name: tensor.int() for name, tensor in inputs.items() if not tensor.is_floating_point()}
        save_file({name: tensor.contiguous() for name, tensor in (inputs | integers).items()}, scratch / "input.safetensors")
        subprocess.run([program, model, scratch / "input.safetensors", scratch / "output.safetensors"], check=True)
        return load_file(scratch / "output.safetensors")


def attention_mask(inputs):
    return (torch.arange(inputs["tokens"].shape[1]) < inputs["lengths"][:, None]).long()


def encode(trunk, inputs):
    """Returns the hidden states and pooled vectors of a BertModel."""
    out = trunk(inputs["tokens"], attention_mask=attention_mask(inputs), token_type_ids=inputs["segments"])
    return out.last_hidden_state, out.pooler_output


def largest_difference(ours, theirs):
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return (ours.double() - theirs.detach().double()).abs().max().item()


def gradients_of(numbers):
    return {name.removeprefix("gradient."): tensor for name, tensor in numbers.items() if name.startswith("gradient.")}


def distances(gradients, exact):
    """Returns each gradient's distance from `exact`, relative to the norm of `exact`.

    The gradient of a key's bias is zero except for rounding, because softmax is invariant to a
    shift of all its inputs. Its distance is relative to the norm of the key's weight gradient
    instead, which consists of the same terms."""
    assert gradients.keys() == exact.keys(), gradients.keys() ^ exact.keys()
    off = {}
    for name, gradient in gradients.items():
        assert gradient.shape == exact[name].shape, name
        norm = exact[name.replace("key.bias", "key.weight")].double().norm()
        assert norm > 0, f"the gradient of {name} is zero"
        off[name] = ((gradient.double() - exact[name].double()).norm() / norm).item()
    return off
