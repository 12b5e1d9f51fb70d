"""Times a BERT training step in PyTorch, the same work as `hetseq bench step --config NAME`. Run by
scripts/bench-pytorch and scripts/bench-engine; bert_task.py trains the same model with HetSeq.

Forward, backward and Adam (fused, PyTorch's fastest) on masked tokens: no padding, no next-sentence
prediction. Prints one JSON line.
"""
import argparse, json, resource, statistics, time

import torch
from torch import nn
from torch.nn import functional

# vocabulary, width, layers, heads, tokens per sequence, sequences, masked tokens per sequence
GEOMETRIES = {
    "tiny": (512, 64, 2, 2, 32, 4, 5),
    "small": (30522, 256, 4, 4, 128, 16, 20),
    "base2": (30522, 768, 2, 12, 128, 8, 20),
    "base": (30522, 768, 12, 12, 128, 8, 20),
}
EPSILON = 1e-12


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.rate, self.dropout = heads, dropout, nn.Dropout(dropout)
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first_norm, self.second_norm = nn.LayerNorm(width, eps=EPSILON), nn.LayerNorm(width, eps=EPSILON)

    def forward(self, x):
        by_head = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = by_head(self.query(x)), by_head(self.key(x)), by_head(self.value(x))
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.rate).transpose(1, 2).flatten(2)
        x = self.first_norm(x + self.dropout(self.output(mixed)))
        return self.second_norm(x + self.dropout(self.down(functional.gelu(self.up(x)))))


class Bert(nn.Module):
    def __init__(self, words, width, layers, heads, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.words, self.positions, self.segments = nn.Embedding(words, width), nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=EPSILON)
        self.bias = nn.Parameter(torch.zeros(words))

    def loss(self, tokens, segments, masked, labels, reduction="mean"):
        positions = self.positions.weight[: tokens.shape[1]]
        hidden = self.blocks(self.dropout(self.norm(self.words(tokens) + self.segments(segments) + positions)))
        at_masks = hidden.flatten(0, 1)[masked]
        at_masks = self.transform_norm(functional.gelu(self.transform(at_masks)))
        return functional.cross_entropy(functional.linear(at_masks, self.words.weight, self.bias), labels, reduction=reduction)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=GEOMETRIES, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    words, width, layers, heads, tokens, sequences, masked = GEOMETRIES[arguments.config]
    model = Bert(words, width, layers, heads, arguments.dropout)
    loss = torch.compile(model.loss) if arguments.compile else model.loss
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    batch = (
        torch.randint(words, (sequences, tokens)),
        (torch.arange(tokens) >= tokens // 2).long().repeat(sequences, 1),
        torch.cat([row * tokens + torch.randperm(tokens)[:masked] for row in range(sequences)]),
        torch.randint(words, (sequences * masked,)),
    )
    seconds = []
    for step in range(arguments.warmup + arguments.steps):
        if step == arguments.warmup:
            cpu = time.process_time()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss(*batch).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    seconds, cpu = seconds[arguments.warmup :], time.process_time() - cpu
    print(json.dumps({
        "engine": f"pytorch {torch.__version__}", "config": arguments.config, "threads": arguments.threads,
        "step_ms": 1e3 * statistics.median(seconds), "best_ms": 1e3 * min(seconds), "cpu_ms": 1e3 * cpu / arguments.steps,
        "tokens_per_s": sequences * tokens / statistics.median(seconds),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }))


if __name__ == "__main__":
    main()
