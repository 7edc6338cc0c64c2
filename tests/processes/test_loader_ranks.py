"""Ranks share the batches of one run, whatever their number, and a state goes from some ranks to others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

from khop import EdgeTable, Loader, NeighborSampler, NodeTable, open_graph, write_graph

SEEDS, BATCH_SIZE, STEPS = 23, 5, 5

# What a rank does: it takes some steps of epoch 1 and writes down what it was given.
RANK = """
import datetime, json, sys
import torch
from khop import Loader, NeighborSampler, open_graph

folder, rank, world_size, steps = sys.argv[1], *map(int, sys.argv[2:])
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size,
    timeout=datetime.timedelta(seconds=60),
)
graph = open_graph(f"{folder}/graph")
loader = Loader(NeighborSampler(graph, [2, 2]), graph.split("train"), 5, shuffle=True, seed=8, columns=["x"])
batches = loader.epoch(1)
taken = [next(batches) for _ in range(steps)]
batches.close()
one = torch.ones(1)
found = [
    {"seeds": b.seeds.tolist(), "global": b.num_global_seeds, "share": b.global_mean(one).item()}
    for b in taken
]
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump({"steps": len(loader), "batches": found, "state": loader.state_dict()}, file)
torch.distributed.destroy_process_group()
"""


def write_ring(folder: Path) -> None:
    nodes = torch.arange(60)
    table = NodeTable(columns={"x": nodes.float()[:, None]}, splits={"train": nodes[:SEEDS] * 2})
    write_graph(
        folder / "graph", {"node": table}, {("node", "to", "node"): EdgeTable((nodes + 1) % 60, nodes)}
    )


def run_ranks(folder: Path, world_size: int, steps: int) -> list[dict[str, object]]:
    arguments = [[str(folder), str(rank), str(world_size), str(steps)] for rank in range(world_size)]
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, *of_rank]) for of_rank in arguments]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0] * world_size
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)]


def test_two_ranks_begin_an_epoch_and_one_process_ends_it(tmp_path: Path) -> None:
    write_ring(tmp_path)
    graph = open_graph(tmp_path / "graph")
    alone = Loader(NeighborSampler(graph, [2, 2]), graph.split("train"), BATCH_SIZE, shuffle=True, seed=8)
    expected = [batch.seeds.tolist() for batch in alone.epoch(1)]

    ranks = run_ranks(tmp_path, world_size=2, steps=3)
    assert [rank["steps"] for rank in ranks] == [STEPS] * 2
    shares = [rank["batches"] for rank in ranks]
    together = [[seed for of_rank in shares for seed in of_rank[step]["seeds"]] for step in range(3)]
    assert together == expected[:3]
    assert all(batch["global"] == BATCH_SIZE for of_rank in shares for batch in of_rank)
    assert shares[0][0]["share"] == torch.tensor(2 / BATCH_SIZE).item()

    assert ranks[0]["state"] == ranks[1]["state"]
    alone.load_state_dict(ranks[1]["state"])
    assert [batch.seeds.tolist() for batch in alone.epoch(1)] == expected[3:]
