"""How long does a layer's mean over neighbors take, forward and backward, beside torch's ways to say it?

A block like that of ogbn-products' input layer: 650,000 edges into 115,000 rows from 417,000 sources. The
peers: `index_add` over messages, and a product with a sparse CSR matrix. `ratio` is the peer's time over
khop's. "backward" is the gradient of the sources, as every layer but the first needs it. On one thread, time
is the processor's, in which other work on the machine does not count; on several it is the wall's.

    python benchmarks/segment.py [--rounds 7] [--threads 1 2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from khop.kernels.segment import segment_mean, transpose

EDGES, ROWS, SOURCES = 650_000, 115_000, 417_000
Mean = Callable[[Tensor], Tensor]


def contenders(indptr: Tensor, indices: Tensor) -> dict[str, Mean]:
    """The same mean, said in three ways."""
    degrees, wide = indptr.diff(), indices.long()
    rows = torch.repeat_interleave(degrees)
    share = 1 / degrees.clamp(min=1).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse CSR is in beta state
        matrix = torch.sparse_csr_tensor(indptr, wide, share[rows], (ROWS, SOURCES))
    return {
        "khop": lambda x: segment_mean(x, indptr, indices),
        "index_add": lambda x: x.new_zeros(ROWS, x.shape[1]).index_add(0, rows, x[wide]) * share.unsqueeze(1),
        "sparse.mm": lambda x: torch.sparse.mm(matrix, x),
    }


def milliseconds(action: Callable[[], object]) -> float:
    """The time of one call."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    action()
    return 1000 * (clock() - started)


def backward(out: Tensor, x: Tensor, gradient: Tensor) -> Callable[[], object]:
    """The gradient of x, ready to be computed."""
    return lambda: torch.autograd.grad(out, x, gradient, retain_graph=True)


def measure(means: dict[str, Mean], width: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians per stage and contender; a round has all of them, so that a slow minute meets all alike."""
    random = torch.Generator().manual_seed(width)
    x = torch.randn(SOURCES, width, generator=random)
    gradient = torch.randn(ROWS, width, generator=random)
    times: dict[str, dict[str, list[float]]] = {
        stage: {name: [] for name in means} for stage in ("forward", "backward")
    }
    for number in range(rounds + 1):
        for name, mean in means.items():
            leaf = x.clone().requires_grad_()
            took = milliseconds(lambda mean=mean: mean(x)), milliseconds(backward(mean(leaf), leaf, gradient))
            if number > 0:  # the first round finds cold memory
                times["forward"][name].append(took[0])
                times["backward"][name].append(took[1])
    return {
        stage: {name: statistics.median(found) for name, found in by.items()} for stage, by in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    random = torch.Generator().manual_seed(0)
    indptr = torch.arange(ROWS + 1) * EDGES // ROWS
    indices = torch.randint(SOURCES, (EDGES,), generator=random, dtype=torch.int32)
    torch.set_num_threads(1)
    turning = statistics.median(milliseconds(lambda: transpose(indptr, indices, SOURCES)) for _ in range(9))
    print(json.dumps({"figure": "transposing the edges", "value": round(turning, 2), "unit": "ms"}))
    means = contenders(indptr, indices)
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for width in (47, 100, 256):
            for stage, medians in measure(means, width, arguments.rounds).items():
                for name, value in medians.items():
                    figure = f"segment_mean {stage}, {width} columns, {threads} threads: {name}"
                    ratio = None if name == "khop" else round(value / medians["khop"], 2)
                    print(
                        json.dumps({"figure": figure, "value": round(value, 2), "unit": "ms", "ratio": ratio})
                    )


if __name__ == "__main__":
    main()
