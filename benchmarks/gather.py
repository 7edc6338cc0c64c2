"""How long does gathering rows take? khop's kernel against torch.index_select and x[ids], same threads.

417,000 random rows of a table with 2.45 M rows of 100 numbers (a products-like batch), into new memory and
into a reused
buffer. `value` is GB/s of rows read; `ratio` is khop over the peer at the same task.

usage: python benchmarks/gather.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from harness import Figure, report

from khop.kernels.gather import gather

ROWS, WANTED, WIDTH = 2_449_029, 417_000, 100


def gigabytes_per_second(action: Callable[[], torch.Tensor]) -> float:
    action()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        out = action()
        times.append(time.perf_counter() - started)
    return out.numel() * out.element_size() / statistics.median(times) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(ROWS, WIDTH, generator=generator)
    ids = torch.randperm(ROWS, generator=generator)[:WANTED]
    figures = []
    for dtype in (torch.float32, torch.float16):
        x = table.to(dtype)
        out = torch.empty(WANTED, WIDTH, dtype=dtype)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            actions: dict[str, Callable[[], torch.Tensor]] = {
                "khop": lambda x=x, threads=threads: gather(x, ids, threads=threads),
                "khop, reused buffer": lambda x=x, out=out, threads=threads: gather(
                    x, ids, out=out, threads=threads
                ),
                "torch.index_select": lambda x=x: torch.index_select(x, 0, ids),
                "torch.index_select, reused buffer": lambda x=x, out=out: torch.index_select(
                    x, 0, ids, out=out
                ),
                "x[ids]": lambda x=x: x[ids],
            }
            speeds: dict[str, list[float]] = {name: [] for name in actions}
            for _ in range(rounds):
                for name, action in actions.items():
                    speeds[name].append(gigabytes_per_second(action))
            medians = {name: statistics.median(found) for name, found in speeds.items()}
            case = f"gather {str(dtype).removeprefix('torch.')}, {threads} thread{'s' * (threads > 1)}"
            for name, value in medians.items():
                own = medians["khop, reused buffer" if "reused" in name else "khop"]
                peer = None if name.startswith("khop") else name
                ratio = None if peer is None else round(own / value, 2)
                figures.append(Figure(f"{case}: {name}", round(value, 2), "GB/s", peer, ratio))
    report("gather", figures)


if __name__ == "__main__":
    main()
