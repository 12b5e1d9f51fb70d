"""Writes optimizers.json and schedules.json into the directory given; see oracle-optim.

Inputs are not stored: initial values and gradients come from `Stream`, which tests/golden/optimizers.rs
repeats exactly. Only what PyTorch and transformers answered is written.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import optimization as hf

SHAPES = {"dense.weight": [5, 7], "dense.bias": [7]}
STEPS = 20
RECORDED = [1, 5, 20]


class Stream:
    """A linear congruential generator whose values are dyadic, hence exact in f32 in any language.

    Value i is scaled by 2^-(i mod 8), so that the gradients span two orders of magnitude.
    """

    def __init__(self, seed):
        self.state = seed

    def take(self, count):
        values = []
        for i in range(count):
            self.state = (self.state * 1664525 + 1013904223) % 2**32
            values.append(((self.state >> 16) / 32768 - 1) / 2 ** (i % 8))
        return values


def numbers(tensors):
    """Nine significant digits name an f32 uniquely."""
    return [float(f"{x:.9g}") for t in tensors for x in t.detach().flatten().tolist()]


def record_optimizer(case):
    stream = Stream(case["seed"])
    parameters = []
    for shape in SHAPES.values():
        values = torch.tensor(stream.take(torch.Size(shape).numel()), dtype=torch.float32)
        parameters.append(torch.nn.Parameter(values.reshape(shape)))
    weight, bias = parameters

    config = case["config"]
    # Weights decay, biases do not: two groups, as everyone configures it in PyTorch.
    groups = [
        {"params": [weight], "weight_decay": config.get("weight_decay", 0.0)},
        {"params": [bias], "weight_decay": 0.0},
    ]
    if config["name"] == "sgd":
        optimizer = torch.optim.SGD(
            groups,
            lr=case["lr"],
            momentum=config["momentum"],
            nesterov=config.get("nesterov", False),
        )
    else:
        rule = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config["name"]]
        options = {key: config[key] for key in ("betas", "eps") if key in config}
        optimizer = rule(groups, lr=case["lr"], **options)

    after = {}
    for step in range(1, STEPS + 1):
        for parameter in parameters:
            values = torch.tensor(stream.take(parameter.numel()), dtype=torch.float32)
            parameter.grad = values.reshape(parameter.shape)
        if case["max_norm"] is not None:
            torch.nn.utils.clip_grad_norm_(parameters, case["max_norm"])
        optimizer.step()
        if step in RECORDED:
            after[step] = numbers(parameters)

    slots = [k for k in ("momentum_buffer", "exp_avg", "exp_avg_sq") if optimizer.state[weight].get(k) is not None]
    state = {slot: numbers(optimizer.state[p][slot] for p in parameters) for slot in slots}
    return {**case, "after": after, "state": state}


def optimizer_cases():
    def case(title, lr, max_norm=None, **config):
        return {"title": title, "lr": lr, "max_norm": max_norm, "config": config}

    cases = [
        case("sgd", 0.1, name="sgd", momentum=0.0),
        case("sgd, decay", 0.1, name="sgd", momentum=0.0, weight_decay=0.05),
        case("sgd, momentum", 0.05, name="sgd", momentum=0.9),
        case("sgd, momentum, decay, clipped", 0.05, 0.5, name="sgd", momentum=0.9, weight_decay=0.1),
        case("sgd, nesterov", 0.05, name="sgd", momentum=0.8, nesterov=True),
        case("sgd, nesterov, decay, clipped", 0.05, 0.5, name="sgd", momentum=0.8, nesterov=True, weight_decay=0.1),
        case("adam", 0.01, name="adam"),
        case("adam, decay, clipped", 0.01, 0.5, name="adam", weight_decay=0.1),
        case("adam, other betas and eps", 0.003, name="adam", betas=[0.8, 0.98], eps=1e-4),
        case("adamw", 0.01, name="adamw"),
        case("adamw, decay", 0.01, name="adamw", weight_decay=0.1),
        # Clipped in some steps only: the norm of these gradients lies around 1.6.
        case("adamw, decay, sometimes clipped", 0.01, 1.6, name="adamw", weight_decay=0.1, betas=[0.9, 0.98], eps=1e-6),
    ]
    return [{"seed": seed, **c} for seed, c in enumerate(cases, start=1)]


def record_schedule(kind, base_lr, warmup, total, end_lr=0.0, power=1.0):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base_lr)
    if kind == "constant":
        scheduler = hf.get_constant_schedule_with_warmup(optimizer, warmup)
    elif kind == "polynomial":
        scheduler = hf.get_polynomial_decay_schedule_with_warmup(optimizer, warmup, total, lr_end=end_lr, power=power)
    elif kind == "inverse-sqrt":
        scheduler = hf.get_inverse_sqrt_schedule(optimizer, warmup)
    elif end_lr == 0.0:
        scheduler = hf.get_cosine_schedule_with_warmup(optimizer, warmup, total)
    else:
        scheduler = hf.get_cosine_with_min_lr_schedule_with_warmup(optimizer, warmup, total, min_lr=end_lr)

    # Past its end the cosine of transformers rises again and ours does not: record up to the end.
    last = total if kind == "cosine" else total + total // 5
    updates = {round(last * i / 24) for i in range(25)}
    updates |= {0, 1, warmup - 1, warmup, warmup + 1, total - 1, total}
    factor = scheduler.lr_lambdas[0]
    points = [[u, base_lr * factor(u)] for u in sorted(updates) if 0 <= u <= last]
    config = {"kind": kind, "warmup_updates": warmup}
    if kind in ("polynomial", "cosine"):
        config |= {"end_lr": end_lr}
    if kind == "polynomial":
        config |= {"power": power}
    return {"config": config, "base_lr": base_lr, "total_updates": total, "points": points}


def schedule_cases():
    return [
        record_schedule("constant", 5e-4, 0, 1000),
        record_schedule("constant", 5e-4, 137, 1000),
        record_schedule("polynomial", 1e-4, 0, 1000),
        record_schedule("polynomial", 1e-4, 10_000, 1_000_000, end_lr=1e-7),
        record_schedule("polynomial", 3e-3, 50, 777, end_lr=1e-5, power=2.0),
        record_schedule("polynomial", 3e-3, 50, 777, power=0.5),
        record_schedule("inverse-sqrt", 7e-4, 0, 50_000),
        record_schedule("inverse-sqrt", 7e-4, 4000, 100_000),
        record_schedule("cosine", 6e-4, 0, 1000),
        record_schedule("cosine", 6e-4, 2000, 600_000),
        record_schedule("cosine", 6e-4, 33, 500, end_lr=6e-5),
    ]


def write(path, content):
    # One case per line: small, and a change shows up as the case it is in.
    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    lines = ",\n".join(json.dumps(case) for case in content)
    path.write_text(f'{{"versions": {json.dumps(versions)}, "cases": [\n{lines}\n]}}\n')
    print(f"{path.name}: {len(content)} cases, {path.stat().st_size} bytes")


def main():
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    write(directory / "optimizers.json", [record_optimizer(case) for case in optimizer_cases()])
    write(directory / "schedules.json", schedule_cases())


if __name__ == "__main__":
    main()
