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


def gradients_of(numbers):
    return {name.removeprefix("gradient."): tensor for name, tensor in numbers.items() if name.startswith("gradient.")}


def distances(gradients, exact):
    """How far each gradient is from `exact`, in parts of the norm. That of a key's bias is zero but for rounding, since a
    softmax does not see what all its inputs share: it is measured by the norm of the keys' weights, made of the same terms."""
    assert gradients.keys() == exact.keys(), gradients.keys() ^ exact.keys()
    off = {}
    for name, gradient in gradients.items():
        assert gradient.shape == exact[name].shape, name
        measure = exact[name.replace("key.bias", "key.weight")].double().norm()
        assert measure > 0, f"the gradient of {name} is zero"
        off[name] = ((gradient.double() - exact[name].double()).norm() / measure).item()
    return off
