"""Fine-tunes BERT with transformers and PyTorch by the recipe of a hetseq run. Run by
scripts/check-fine-tuning.

Reads RUN/config.toml, the resolved config of the run: both sides have the same data, hyperparameters
and seed. Prints one JSON line per update and per validation, with the names of metrics.jsonl.

With `--same-samples`, every update takes the samples that hetseq took (RUN/audit-rank-0.jsonl, written
with debug.audit). Without it, an epoch is a random permutation, and its last batch may be smaller.
"""

import argparse
import json
import pathlib
import time
import tomllib

import torch
from seqeval.metrics import accuracy_score as label_accuracy
from seqeval.metrics import f1_score as entity_f1
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import AutoTokenizer, BertForSequenceClassification, BertForTokenClassification
from transformers import get_polynomial_decay_schedule_with_warmup
from transformers.utils import logging

IGNORED = -100
VALID_BATCH = 64


def lines_of(path):
    return pathlib.Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")


class Words:
    """`token-classification`: samples are pairs of a word list and a tag list."""

    model = BertForTokenClassification
    pipeline = "ner"

    @staticmethod
    def read(path):
        samples = [([], [])]
        for line in lines_of(path):
            if line.strip():
                word, *_, tag = line.split("\t")
                samples[-1][0].append(word)
                samples[-1][1].append(tag.strip())
            elif samples[-1][0]:
                samples.append(([], []))
        return [sample for sample in samples if sample[0]]

    @staticmethod
    def labels(samples):
        return ["O", *sorted({tag for _, tags in samples for tag in tags} - {"O"})]

    @staticmethod
    def encode(words, tokenizer, max_length):
        """Returns the ids and the position of each word's first token."""
        # A word without tokens (a lone control character) would have no prediction. hetseq also
        # replaces it.
        words = [word if tokenizer.tokenize(word) else tokenizer.unk_token for word in words]
        encoded = tokenizer(words, is_split_into_words=True)
        ids, owners = encoded["input_ids"], encoded.word_ids()
        assert len(ids) <= max_length, "a sentence is too long; hetseq would split it into windows"
        return ids, [owners.index(word) for word in range(len(words))]

    @staticmethod
    def targets(ids, positions, tags, numbers):
        targets = [IGNORED] * len(ids)
        for position, tag in zip(positions, tags):
            targets[position] = numbers[tag]
        return targets

    @staticmethod
    def predictions(logits, positions, labels):
        return [labels[number] for number in logits[positions].argmax(-1).tolist()]

    @staticmethod
    def scores(expected, predicted):
        return {"f1": entity_f1(expected, predicted), "accuracy": label_accuracy(expected, predicted)}


class Texts:
    """`sequence-classification`: samples are pairs of a text and a label."""

    model = BertForSequenceClassification
    pipeline = "text-classification"

    @staticmethod
    def read(path):
        header, *rows = (line.split("\t") for line in lines_of(path))
        assert header == ["text", "label"], header
        return [(text, label) for text, label in rows]

    @staticmethod
    def labels(samples):
        return sorted({label for _, label in samples})

    @staticmethod
    def encode(text, tokenizer, max_length):
        return tokenizer(text, truncation=True, max_length=max_length)["input_ids"], None

    @staticmethod
    def targets(ids, positions, label, numbers):
        return numbers[label]

    @staticmethod
    def predictions(logits, positions, labels):
        return labels[logits.argmax().item()]

    @staticmethod
    def scores(expected, predicted):
        positive = sorted(set(expected))[1]
        return {
            "accuracy": accuracy_score(expected, predicted), "f1": f1_score(expected, predicted, pos_label=positive),
            "matthews": matthews_corrcoef(expected, predicted),
        }


TASKS = {"token-classification": Words, "sequence-classification": Texts}


def padded(rows, filling):
    longest = max(map(len, rows))
    return torch.tensor([row + [filling] * (longest - len(row)) for row in rows])


def inputs_of(encoded, pad):
    ids = [ids for ids, _ in encoded]
    return {"input_ids": padded(ids, pad), "attention_mask": padded([[1] * len(row) for row in ids], 0)}


@torch.inference_mode()
def all_logits(model, encoded, pad):
    """Returns the logits of each sample."""
    model.eval()
    found = []
    for at in range(0, len(encoded), VALID_BATCH):
        found += model(**inputs_of(encoded[at:at + VALID_BATCH], pad)).logits
    return found


def start(task, init, labels, dropout=None):
    """Returns the model of a directory, with a classifier for these labels."""
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}
    rates = {} if dropout is None else {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    # The report about the new classifier and the unused heads is expected here.
    logging.set_verbosity_error()
    model = task.model.from_pretrained(init, **names, **rates)
    logging.set_verbosity_warning()
    return model


def optimizer_of(model, config, total):
    """Returns hetseq's AdamW and schedule: weight decay applies to matrices only."""
    assert config["name"] == "adamw" and config["schedule"]["kind"] == "polynomial", config
    named = list(model.named_parameters())
    decayed = [tensor for name, tensor in named if tensor.ndim >= 2 and not name.endswith("bias")]
    others = [tensor for name, tensor in named if tensor.ndim < 2 or name.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": config["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    # The fused one is the fastest.
    optimizer = torch.optim.AdamW(groups, lr=config["lr"], betas=config["betas"], eps=config.get("eps", 1e-8), fused=True)
    schedule = config["schedule"]
    return optimizer, get_polynomial_decay_schedule_with_warmup(
        optimizer, schedule["warmup_updates"], schedule.get("total_updates", total), schedule["end_lr"], schedule["power"])


def random_batches(samples, batch, epochs):
    for epoch in range(epochs):
        order = torch.randperm(samples).tolist()
        yield from ((epoch + 1, order[at:at + batch]) for at in range(0, samples, batch))


def same_batches(run):
    """Yields the samples that the ranks of a hetseq run took in each update."""
    for line in lines_of(run / "audit-rank-0.jsonl"):
        update = json.loads(line)
        yield update["epoch"], update["samples"]


def emit(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


def train(run, same_samples):
    config = tomllib.loads((run / "config.toml").read_text())
    task, keys, optim = TASKS[config["run"]["task"]], config["task"], config["optim"]
    torch.manual_seed(config["run"]["seed"])
    tokenizer = AutoTokenizer.from_pretrained(keys["init"])
    pad, length = tokenizer.pad_token_id, keys["max_seq_length"]
    samples, valid = task.read(keys["train"]), task.read(keys["valid"])
    labels = task.labels(samples)
    numbers = {label: number for number, label in enumerate(labels)}
    encoded, valid_encoded = ([task.encode(text, tokenizer, length) for text, _ in of] for of in (samples, valid))
    targets = [task.targets(*row, label, numbers) for row, (_, label) in zip(encoded, samples)]
    model = start(task, keys["init"], labels, keys.get("dropout"))

    batch, epochs = int(str(config["batch"]["global"]).split()[0]), config["run"]["max_epochs"]
    per_epoch = -(-len(samples) // batch)
    total = min(epochs * per_epoch, config["run"].get("max_updates", epochs * per_epoch))
    optimizer, schedule = optimizer_of(model, optim, total)

    def validate(update, epoch):
        began = time.perf_counter()
        logits = all_logits(model, valid_encoded, pad)
        predicted = [task.predictions(row, positions, labels) for row, (_, positions) in zip(logits, valid_encoded)]
        scores = task.scores([label for _, label in valid], predicted)
        emit("valid", update=update, epoch=epoch, seconds=time.perf_counter() - began, **scores)

    batches = same_batches(run) if same_samples else random_batches(len(samples), batch, epochs)
    for update, (epoch, chosen) in zip(range(1, total + 1), batches):
        began = time.perf_counter()
        model.train()
        of_batch = [targets[sample] for sample in chosen]
        expected = padded(of_batch, IGNORED) if task is Words else torch.tensor(of_batch)
        loss = model(**inputs_of([encoded[sample] for sample in chosen], pad), labels=expected).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optim["clip_norm"])
        lr = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        emit("update", update=update, epoch=epoch, loss=loss.item(), grad_norm=norm.item(), lr=lr,
             samples=len(chosen), seconds=time.perf_counter() - began)
        if update % per_epoch == 0 or update == total:
            validate(update, epoch)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--same-samples", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    train(arguments.run, arguments.same_samples)
