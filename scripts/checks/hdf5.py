"""Writes text and shards, and checks what hetseq reads and writes. Run by scripts/check-hdf5."""

import json
import pathlib
import random
import sys

import h5py
import numpy as np

FIELDS = {
    "input_ids": "<i4", "input_mask": "|i1", "segment_ids": "|i1",
    "masked_lm_positions": "<i4", "masked_lm_ids": "<i4", "next_sentence_labels": "|i1",
}


def write_text(path, megabytes):
    """Writes one sentence per line, with Zipf word frequencies; blank lines separate documents."""
    rng = random.Random(1)
    syllables = "ka lo mi sen tar u ber qui no sto la ri en do pha ge".split()
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(8000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    with open(path, "w") as file:
        while file.tell() < megabytes << 20:
            for _ in range(rng.randint(2, 40)):
                file.write(" ".join(rng.choices(words, weights, k=rng.randint(4, 40))).capitalize() + ".\n")
            file.write("\n")


def write_shards(directory):
    """Writes shards as NVIDIA's scripts do: h5py chooses the chunk sizes."""
    directory.mkdir()
    numbers = np.random.default_rng(1)
    for name, rows in [("wiki_training_0", 3000), ("wiki_training_1", 1), ("wiki_test_0", 777)]:
        length = numbers.integers(5, 129, rows)
        column = np.arange(128)
        mask = column < length[:, None]
        masked = numbers.integers(0, 4, rows)
        place = np.sort(np.stack([1 + 3 * numbers.permuted(np.arange(20)) % 19 for _ in range(rows)]) % length[:, None], axis=1)
        positions = np.where(np.arange(20) < masked[:, None], np.maximum(place, 1), 0)
        data = {
            "input_ids": numbers.integers(1, 2000, (rows, 128)) * mask,
            "input_mask": mask,
            "segment_ids": mask & (column >= (length // 2)[:, None]),
            "masked_lm_positions": positions,
            "masked_lm_ids": np.where(positions > 0, numbers.integers(1, 2000, (rows, 20)), 0),
            "next_sentence_labels": numbers.integers(0, 2, rows),
        }
        with h5py.File(directory / f"{name}.hdf5", "w") as file:
            for field, kind in FIELDS.items():
                file.create_dataset(field, data=data[field], dtype=kind, compression="gzip")


def sums(paths):
    """Returns the figures that `hetseq prep verify --json` prints for shards."""
    figures = {"samples": 0, "tokens": 0, "masked": 0, "next": 0, "ids_sum": 0, "masked_sum": 0}
    for path in paths:
        with h5py.File(path) as file:
            data = {field: file[field][:].astype(np.int64) for field in FIELDS}
        figures["samples"] += len(data["input_ids"])
        figures["tokens"] += int(data["input_mask"].sum())
        figures["masked"] += int((data["masked_lm_positions"] > 0).sum())
        figures["next"] += int(data["next_sentence_labels"].sum())
        weight = 1 + np.arange(data["input_ids"].shape[1])
        figures["ids_sum"] += int((data["input_ids"] * (weight + 1000 * data["segment_ids"])).sum())
        figures["masked_sum"] += int(((1 + data["masked_lm_positions"]) * data["masked_lm_ids"]).sum())
    return figures


def check_layout(path, length, predictions, special):
    with h5py.File(path) as file:
        assert set(file) == set(FIELDS), list(file)
        rows = len(file["input_ids"])
        for field, kind in FIELDS.items():
            shape = (rows,) if field.endswith("labels") else (rows, predictions if field.startswith("masked") else length)
            dataset = file[field]
            assert (dataset.dtype.str, dataset.shape, dataset.compression) == (kind, shape, "gzip"), (field, dataset)
        data = {field: file[field][:].astype(np.int64) for field in FIELDS}
    ids, mask, positions = data["input_ids"], data["input_mask"], data["masked_lm_positions"]
    tokens = mask.sum(1)
    assert (mask == (np.arange(length) < tokens[:, None])).all() and (ids[mask == 0] == special["[PAD]"]).all()
    assert (ids[:, 0] == special["[CLS]"]).all() and (ids[np.arange(rows), tokens - 1] == special["[SEP]"]).all()
    assert ((ids == special["[SEP]"]).sum(1) == 2).all()
    is_masked = positions > 0
    assert (positions < tokens[:, None]).all() and is_masked.any(1).all()
    there = np.take_along_axis(ids, positions, 1)[is_masked]
    labels = data["masked_lm_ids"][is_masked]
    hidden, kept = (there == special["[MASK]"]).mean(), (there == labels).mean()
    slack = 5 / np.sqrt(len(labels))
    assert abs(hidden - 0.8) < 0.4 * slack and abs(kept - 0.1) < 0.3 * slack + 0.002, (hidden, kept)
    assert (labels > max(special.values())).all(), "a special token was masked"


def main(what, scratch, megabytes=3):
    scratch = pathlib.Path(scratch)
    if what == "write":
        write_text(scratch / "text.txt", int(megabytes))
        write_shards(scratch / "theirs")
        return
    vocabulary = (scratch / "ours/vocab.txt").read_text().split("\n")
    special = {token: vocabulary.index(token) for token in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]}
    ours = sorted((scratch / "ours").glob("*.hdf5"))
    assert len(ours) >= 9, ours
    for path in ours:
        check_layout(path, 96, 15, special)
    print(f"h5py read {len(ours)} shards of hetseq: layout, types, padding and masks are correct")
    for name, splits in [("ours", {"train": "training*", "valid": "validation*"}), ("theirs", {"train": "*training*", "valid": "*test*"})]:
        reported = json.loads((scratch / f"{name}.json").read_text())
        for split, pattern in splits.items():
            expected = sums(sorted((scratch / name).glob(f"{pattern}.hdf5")))
            got = {key: reported[split][key] for key in expected}
            assert got == expected, (name, split, got, expected)
            print(f"hetseq read {name} ({split}): {expected['samples']} samples, {expected['tokens']} tokens, same as h5py")


if __name__ == "__main__":
    main(*sys.argv[1:])
