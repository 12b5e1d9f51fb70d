"""Benchmarks reading samples from shards, in Python and in hetseq. Run by scripts/bench-data."""

import json
import pathlib
import random
import subprocess
import sys
import time

import h5py

KEYS = ["input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels"]
ROUNDS, SECONDS = 5, 2.0


def python_samples_per_second(paths, rows, rng):
    """Reads samples in random order, as a global shuffle does, and opens the file for each one."""
    started, samples = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        path, row = rng.choice(rows)
        with h5py.File(paths[path], "r") as file:
            [file[key][row] for key in KEYS]
        samples += 1
    return samples / (time.perf_counter() - started)


def main(hetseq, scratch):
    scratch = pathlib.Path(scratch)
    paths = sorted((scratch / "hdf5").glob("training*.hdf5"))
    rows = []
    for at, path in enumerate(paths):
        with h5py.File(path) as file:
            rows += [(at, row) for row in range(len(file["input_ids"]))]
    rng = random.Random(1)
    sides = ["compact", "compact with opening", "hdf5", "hdf5 with opening"]
    rates = {side: [] for side in ["python", *sides]}
    # Interleaved, so that a slowdown of the machine affects all sides.
    for _ in range(ROUNDS):
        rates["python"].append(python_samples_per_second(paths, rows, rng))
        command = [hetseq, "bench", "data", scratch / "compact", scratch / "hdf5", "--rounds", "1", "--seconds", str(SECONDS), "--json"]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        for line in map(json.loads, lines):
            rates[line["kind"]].append(line["samples_per_second"])
            rates[line["kind"] + " with opening"].append(line["first_epoch_samples_per_second"])
    median = lambda values: sorted(values)[len(values) // 2]
    report = {"samples": len(rows), "shards": len(paths), "rounds": ROUNDS, "python": {"samples_per_second": round(median(rates["python"]))}}
    for side in sides:
        ratio = median([ours / python for ours, python in zip(rates[side], rates["python"])])
        report[side] = {"samples_per_second": round(median(rates[side])), "times_python": round(ratio, 1)}
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
