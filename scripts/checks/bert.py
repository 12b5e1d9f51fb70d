"""Writes text and shards, and compares what hetseq trained on them with transformers. Run by
scripts/check-bert."""

import json
import logging
import pathlib
import shutil
import subprocess
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertForPreTraining
from transformers.utils import logging as transformers_logging

from bert_numbers import attention_mask, distances, encode, gradients_of, largest_difference, ours
from hdf5 import FIELDS, write_shards, write_text
from tokenizer import read_shard, sentences_of

TOLERANCE = 1e-5
MODEL = {
    "model_type": "bert", "vocab_size": 2000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "max_position_embeddings": 128,
}
RUN = """
[run]
task = "bert-pretrain"
max_updates = 30
[task]
data = "set on the command line"
[batch]
global = 32
micro = 8
split = "equal"
[optim]
name = "adam"
lr = 0.002
"""


def write(scratch):
    write_text(scratch / "text.txt", 1)
    write_shards(scratch / "theirs")
    (scratch / "config.json").write_text(json.dumps(MODEL))
    (scratch / "run.toml").write_text(RUN)


def batch_of(paths, rows=None):
    """The first rows of shards as tensors. Masked positions are `row * positions + column`."""
    parts = []
    for path in paths:
        with h5py.File(path) as file:
            parts.append({field: file[field][:].astype(np.int64) for field in FIELDS})
    data = {field: torch.from_numpy(np.concatenate([part[field] for part in parts])[:rows]) for field in FIELDS}
    is_masked = data["masked_lm_positions"] > 0
    first = torch.arange(len(is_masked))[:, None] * data["input_ids"].shape[1]
    return {
        "tokens": data["input_ids"], "segments": data["segment_ids"], "lengths": data["input_mask"].sum(1),
        "masked_positions": (first + data["masked_lm_positions"])[is_masked], "masked_ids": data["masked_lm_ids"][is_masked],
        "next_sentence": data["next_sentence_labels"],
    }


def answer(model, batch):
    """Returns hidden states, logits at masked positions, next-sentence logits and loss sums."""
    hidden, pooled = encode(model.bert, batch)
    words, sentences = model.cls(hidden, pooled)
    words = words.flatten(0, 1)[batch["masked_positions"]]
    losses = [F.cross_entropy(logits, batch[labels], reduction="sum")
              for logits, labels in [(words, "masked_ids"), (sentences, "next_sentence")]]
    return hidden, words, sentences, losses


def load(directory):
    """Loads a model as users do. transformers must not log any warning."""
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logger = transformers_logging.get_logger()
    logger.addHandler(handler)
    model, info = BertForPreTraining.from_pretrained(directory, output_loading_info=True)
    logger.removeHandler(handler)
    assert not any(info.values()) and not warnings, (info, warnings)
    assert model.dtype == torch.float32
    return model.eval()


def gradients(model, batch):
    """Returns the gradients of the sum of both mean losses."""
    model.zero_grad()
    *_, losses = answer(model, batch)
    (losses[0] / len(batch["masked_ids"]) + losses[1] / len(batch["next_sentence"])).backward()
    return {name: tensor.grad.clone() for name, tensor in model.named_parameters()}


def check_checkpoint(run, shards, program):
    """Checks that transformers loads a checkpoint unchanged and computes the same numbers."""
    checkpoint = run / "checkpoints/last"
    model = load(checkpoint)
    batch = batch_of(shards, 24)
    numbers = ours(program, checkpoint, batch)
    assert numbers["missing"].item() == 0
    hidden, words, sentences, losses = answer(model, batch)
    is_real = attention_mask(batch).bool()
    off = {
        "hidden states": largest_difference(numbers["hidden"][is_real], hidden[is_real]),
        "masked logits": largest_difference(numbers["masked_logits"], words),
        "sentence logits": largest_difference(numbers["next_sentence_logits"], sentences),
        "losses": max(abs(ours.item() / theirs.item() - 1) for ours, theirs in zip(numbers["losses"], losses)),
    }
    assert max(off.values()) <= TOLERANCE, off
    # transformers' own loss, which needs that no position is masked twice.
    if len(set(batch["masked_positions"].tolist())) == len(words):
        labels = torch.full(batch["tokens"].shape, -100).flatten().index_put((batch["masked_positions"],), batch["masked_ids"])
        theirs = model(batch["tokens"], attention_mask(batch), batch["segments"], labels=labels.reshape(is_real.shape),
                       next_sentence_label=batch["next_sentence"]).loss.item()
        mean = (numbers["losses"] / torch.tensor([len(words), len(sentences)])).sum().item()
        assert abs(mean / theirs - 1) <= TOLERANCE, (mean, theirs)
    print(f"{run.name}: BertForPreTraining loads the checkpoint; largest errors: " + ", ".join(f"{off:.1e} ({what})" for what, off in off.items()))


def perturbed(model, std):
    """Adds noise to every parameter. Otherwise parameters such as biases or norms may be equal."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor += std * torch.randn(tensor.shape, generator=rng)
    return model


def check_gradients(scratch, run, shards, program):
    """Compares all gradients, on a perturbed checkpoint.

    After so few updates, attention is still almost uniform, and the gradients of queries and keys
    are small differences of large terms: PyTorch's own float32 then differs from its float64 by up
    to 4e-5."""
    model = perturbed(load(run / "checkpoints/last"), 0.1)
    model.save_pretrained(scratch / "perturbed")
    batch = batch_of(shards, 24)
    off = distances(gradients_of(ours(program, scratch / "perturbed", batch)), gradients(model, batch))
    worst = max(off, key=off.get)
    assert off[worst] <= TOLERANCE, (worst, off[worst])
    print(f"{run.name}, perturbed: {len(off)} gradients of both losses; largest relative error {off[worst]:.1e} ({worst})")


def check_tokenizer(scratch, run):
    tokenizer = AutoTokenizer.from_pretrained(run / "checkpoints/last")
    text = (scratch / "text.txt").read_text().split("\n")
    found = [sentence for path in (scratch / "compact").glob("*.tokens") for sentence in read_shard(path)]
    assert found and sorted(found) == sorted(sentences_of(text, tokenizer))
    # Shards of the same text have the same vocabulary, and the checkpoint has that of its data.
    for name in ["tokenizer.json", "vocab.txt"]:
        written = {(directory / name).read_bytes() for directory in [run / "checkpoints/last", scratch / run.name, scratch / "compact"]}
        assert len(written) == 1, name
    first, second = found_in(found, tokenizer, text[0]), found_in(found, tokenizer, text[1])
    pair = tokenizer(text[0], text[1])
    assert pair["input_ids"] == [tokenizer.cls_token_id, *first, tokenizer.sep_token_id, *second, tokenizer.sep_token_id]
    assert sum(pair["token_type_ids"]) == len(second) + 1
    print(f"{run.name}: AutoTokenizer loads the checkpoint: {len(found)} sentences, {sum(map(len, found))} tokens, all equal")


def found_in(found, tokenizer, line):
    ids = tokenizer.encode(line, add_special_tokens=False)
    assert ids in found
    return ids


def old_name(name):
    return name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def old_tensors(model):
    """Tensors as in files converted from TensorFlow: old names, transposed matrices, positions."""
    tensors = {old_name(name): tensor.t().contiguous().t() if tensor.dim() == 2 else tensor for name, tensor in model.state_dict().items()}
    assert not tensors["encoder.layer.0.output.dense.weight"].is_contiguous()
    return tensors | {"embeddings.position_ids": torch.arange(MODEL["max_position_embeddings"])[None]}


def write_forms(model, directory):
    """Writes the same weights in all formats in which models are published."""
    forms = {name: directory / name for name in ["safetensors", "parts", "pytorch", "pytorch-parts", "old", "half", "encoder"]}
    model.save_pretrained(forms["safetensors"])
    model.save_pretrained(forms["parts"], max_shard_size="200kB")
    assert len(list(forms["parts"].glob("*.safetensors"))) > 2 and (forms["parts"] / "model.safetensors.index.json").exists()
    for form, tensors, options in [("pytorch", model.state_dict(), {}), ("old", old_tensors(model), {"_use_new_zipfile_serialization": False})]:
        model.config.save_pretrained(forms[form])
        torch.save(tensors, forms[form] / "pytorch_model.bin", **options)
    model.config.save_pretrained(forms["pytorch-parts"])
    parameters, weight_map = list(model.named_parameters()), {}
    for part in range(3):
        torch.save(dict(parameters[part::3]), forms["pytorch-parts"] / f"pytorch_model-{part}.bin")
        weight_map |= {name: f"pytorch_model-{part}.bin" for name, _ in parameters[part::3]}
    (forms["pytorch-parts"] / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    half = BertForPreTraining.from_pretrained(forms["safetensors"], dtype=torch.bfloat16)
    half.save_pretrained(forms["half"])
    model.bert.save_pretrained(forms["encoder"])
    return forms, half


def evaluate(model, paths):
    """Returns the validation figures over whole shards, in float64."""
    model, batch = model.double(), batch_of(paths)
    with torch.no_grad():
        _, words, sentences, losses = answer(model, batch)
    mlm, nsp = losses[0].item() / len(words), losses[1].item() / len(sentences)
    right = [(logits.argmax(1) == batch[labels]).double().mean().item() for logits, labels in [(words, "masked_ids"), (sentences, "next_sentence")]]
    return {"samples": len(sentences), "loss": mlm + nsp, "mlm": mlm, "nsp": nsp, "perplexity": np.exp(mlm),
            "masked_accuracy": right[0], "next_sentence_accuracy": right[1]}


def check_forms(scratch, hetseq):
    """Checks that hetseq loads what transformers writes and starts from exactly these weights."""
    model = perturbed(load(scratch / "runs/hdf5/checkpoints/last"), 0.02)
    forms, half = write_forms(model, scratch / "forms")
    # The same shards for training and validation, so that both give the same loss.
    once = scratch / "once"
    once.mkdir()
    shards = sorted((scratch / "hdf5").glob("validation*.hdf5"))
    for at, shard in enumerate(shards):
        for split in ["training", "validation"]:
            shutil.copy(shard, once / f"{split}_{at}.hdf5")
    for form, directory in forms.items():
        written = (half if form == "half" else model).float()
        settings = [f"task.data={once}", "task.dropout=0", f"run.dir={scratch / 'runs' / form}"]
        expected = evaluate(written, shards)
        written = {name: tensor.float() for name, tensor in written.named_parameters()}
        figures = []
        if form != "encoder":
            output = call(hetseq, "eval", scratch, [*settings, f"task.config={directory}"], "--checkpoint", directory, "--json")
            figures.append(compare("eval", json.loads(output), expected))
        call(hetseq, "train", scratch, [*settings, f"task.init={directory}", f"batch.global={expected['samples']}", "run.max_updates=1", "optim.lr=0.0"])
        loaded = load_file(scratch / "runs" / form / "checkpoints/last/model.safetensors")
        assert loaded.keys() == written.keys()
        same = [name for name, tensor in written.items() if torch.equal(loaded[name], tensor)]
        if form == "encoder":
            assert set(written) - set(same) <= {name for name in written if name.startswith("cls.")} and len(same) < len(written)
        else:
            assert len(same) == len(written), set(written) - set(same)
            events = [json.loads(line) for line in open(scratch / "runs" / form / "metrics.jsonl")]
            first = next(event for event in events if event["event"] == "update")
            figures.append(compare("update 1", first, expected))
        print(f"{form}: hetseq starts from {len(same)} of {len(written)} parameters, bit for bit" + "".join(figures))


def compare(what, reported, expected):
    reported = reported | reported["terms"]
    off = {name: abs(reported[name] / value - 1) for name, value in expected.items() if name in reported}
    assert {"loss", "mlm", "nsp", "samples"} <= off.keys() and max(off.values()) <= TOLERANCE, (off, reported, expected)
    return f"; {what}: {len(off)} figures, largest error {max(off.values()):.1e}"


def call(hetseq, command, scratch, settings, *arguments):
    settings = [word for setting in settings for word in ["--set", setting]]
    done = subprocess.run([hetseq, command, scratch / "run.toml", *settings, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def main(what, scratch, hetseq=None, program=None):
    scratch = pathlib.Path(scratch)
    if what == "write":
        return write(scratch)
    transformers_logging.disable_progress_bar()
    for name, shards in [("compact", "hdf5/validation*"), ("hdf5", "hdf5/validation*"), ("theirs", "theirs/*test*")]:
        run, shards = scratch / "runs" / name, sorted(scratch.glob(f"{shards}.hdf5"))
        check_checkpoint(run, shards, program)
        check_gradients(scratch, run, shards, program)
        if name != "theirs":
            check_tokenizer(scratch, run)
    check_forms(scratch, hetseq)


if __name__ == "__main__":
    main(*sys.argv[1:])
