"""Times all-reduce with gloo through PyTorch. Run by scripts/bench-comm, once per rank."""
import argparse, json, statistics, time

import torch
from torch import distributed

parser = argparse.ArgumentParser()
parser.add_argument("--bytes", type=int, nargs="+", required=True)
parser.add_argument("--rounds", type=int, required=True)
arguments = parser.parse_args()
torch.set_num_threads(1)
distributed.init_process_group("gloo")
for size in arguments.bytes:
    seconds = []
    values = torch.empty(size // 4)
    for _ in range(arguments.rounds + 1):
        values.fill_(1.0)
        distributed.barrier()
        start = time.perf_counter()
        distributed.all_reduce(values)
        seconds.append(time.perf_counter() - start)
        assert values[0] == distributed.get_world_size()
    if distributed.get_rank() == 0:
        # The first one is warm-up: page faults, TCP windows.
        print(json.dumps({"bytes": size, "median_ms": 1e3 * statistics.median(seconds[1:])}), flush=True)
distributed.destroy_process_group()
