"""Seconds to the first batch and the first step of this process, as one line of JSON; see gpu.py.

usage: TRITON_CACHE_DIR=... python benchmarks/gpu_first.py [--nodes 200000] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial

import gpu_graph
import torch
import torch.nn.functional as F
from gpu_bench import BATCH, FANOUTS, HIDDEN

import khop


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    is_gpu = options.device == "cuda"
    finished = torch.cuda.synchronize if is_gpu else partial(int, 0)
    products = gpu_graph.products(options.nodes, device=options.device)
    graph = products.graph.on("cuda", topology="device", columns="device") if is_gpu else products.graph
    sampler = khop.NeighborSampler(graph, FANOUTS)
    loader = khop.Loader(sampler, products.train, BATCH, shuffle=True, columns=["x"], seed_columns=["y"])
    model = khop.models.SAGE.for_graph(products.graph, hidden=HIDDEN, layers=3, label="y").to(options.device)
    finished()
    begun = time.perf_counter()
    batch = next(iter(loader.epoch(0)))
    finished()
    made = time.perf_counter()
    losses = F.cross_entropy(model(batch), batch.seed_column("y"), reduction="none")
    batch.global_mean(losses).backward()
    finished()
    found = {"first batch": made - begun, "first batch and gradients": time.perf_counter() - begun}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
