"""The model of synthetic_bert.py as a task of HetSeq, on random tokens: measures what HetSeq adds to a
step of PyTorch. Run by scripts/bench-engine with bert_task.toml."""
import torch
from synthetic_bert import GEOMETRIES, Bert

import hetseq


class RandomSequences:
    """Random tokens, of which some are masked: a function of the sample's number."""

    def __init__(self, geometry, count):
        self.words, _, _, _, self.tokens, _, self.masked = GEOMETRIES[geometry]
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return (torch.randint(self.words, (self.tokens,), generator=generator), torch.randperm(self.tokens, generator=generator)[:self.masked],
                torch.randint(self.words, (self.masked,), generator=generator))

    def lengths(self):
        return [self.tokens] * self.count


class Task(hetseq.Task):
    def __init__(self, config):
        self.geometry = config.get("geometry", "small")
        self.dropout = config.get("dropout", 0.0)

    def dataset(self, split):
        return RandomSequences(self.geometry, 4096) if split == "train" else None

    def model(self):
        words, width, layers, heads = GEOMETRIES[self.geometry][:4]
        model = Bert(words, width, layers, heads)
        if self.dropout:
            # One per block, on its output: to measure keyed dropout.
            model.blocks = torch.nn.Sequential(*[torch.nn.Sequential(block, hetseq.Dropout(self.dropout)) for block in model.blocks])
        return model

    def collate(self, samples):
        tokens, masked, labels = zip(*samples)
        tokens = torch.stack(tokens)
        rows, length = tokens.shape
        return {
            "tokens": tokens,
            "segments": (torch.arange(length) >= length // 2).long().repeat(rows, 1),
            "masked": torch.cat([row * length + positions for row, positions in enumerate(masked)]),
            "labels": torch.cat(labels),
        }

    def loss(self, model, batch):
        return model.loss(batch["tokens"], batch["segments"], batch["masked"], batch["labels"], reduction="sum"), len(batch["labels"])


if __name__ == "__main__":
    hetseq.run(Task, "scripts/bench/bert_task.toml")
