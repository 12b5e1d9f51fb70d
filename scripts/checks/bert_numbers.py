"""Runs crates/hetseq-train/examples/bert_numbers.rs and holds what it says against transformers. For minilm.py and bert.py."""

import pathlib
import subprocess
import tempfile

import torch
from safetensors.torch import load_file, save_file


def ours(program, model, inputs):
    """What hetseq computes: `inputs` and the answer as the program says them."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        integers = {name: tensor.int() for name, tensor in inputs.items() if not tensor.is_floating_point()}
        save_file({name: tensor.contiguous() for name, tensor in (inputs | integers).items()}, scratch / "input.safetensors")
        subprocess.run([program, model, scratch / "input.safetensors", scratch / "output.safetensors"], check=True)
        return load_file(scratch / "output.safetensors")


def attention_mask(inputs):
    return (torch.arange(inputs["tokens"].shape[1]) < inputs["lengths"][:, None]).long()


def encode(trunk, inputs):
    """Hidden states and pooled vectors of a BertModel."""
    out = trunk(inputs["tokens"], attention_mask=attention_mask(inputs), token_type_ids=inputs["segments"])
    return out.last_hidden_state, out.pooler_output


def largest_difference(ours, theirs):
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return (ours.double() - theirs.detach().double()).abs().max().item()


def compare_gradients(ours, named_parameters, tolerance):
    """The largest distance of two gradients, in parts of the norm. That of a key's bias is zero but for rounding, since a
    softmax does not see what all its inputs share: it is measured by the norm of the keys' weights, made of the same terms."""
    theirs = {name: tensor.grad for name, tensor in named_parameters if tensor.grad is not None}
    ours = {name.removeprefix("gradient."): tensor for name, tensor in ours.items() if name.startswith("gradient.")}
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    off = {}
    for name, gradient in theirs.items():
        assert gradient.shape == ours[name].shape, name
        measure = theirs[name.replace("key.bias", "key.weight")].double().norm()
        assert measure > 0, f"the gradient of {name} is zero"
        off[name] = ((ours[name].double() - gradient.double()).norm() / measure).item()
    worst = max(off, key=off.get)
    assert off[worst] <= tolerance, f"the gradient of {worst} is off by {off[worst]:.1e}"
    return len(off), off[worst], worst
