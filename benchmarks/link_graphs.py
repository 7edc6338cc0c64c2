"""The bipartite graph of the link benchmark: 500,000 users, as many items, 10 million purchases, both ways.

Ends of an edge are drawn evenly, 64 float32 features per node, seeds are 200,000 of the edges.

usage: python benchmarks/link_graphs.py [bipartite] [small-bipartite]
Writes <graphs>/<name>/: a khop graph folder `graph`, and `users`, `items`, `x_user`, `x_item`, `seeds` in
plain .npy for the peers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import GRAPHS

import khop

SEED = 20_261_121
BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought_by", "user")


@dataclass(frozen=True)
class Spec:
    """The size of a graph."""

    nodes: int  # of each type
    edges: int
    width: int = 64
    seeds: int = 200_000


SPECS = {"small-bipartite": Spec(20_000, 400_000), "bipartite": Spec(500_000, 10_000_000)}


def make(name: str) -> Path:
    """Write one graph, unless it is there, and give its folder."""
    folder = GRAPHS / name
    if (folder / "graph" / "graph.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    spec = SPECS[name]
    rng = np.random.default_rng(SEED)
    users, items = rng.integers(0, spec.nodes, (2, spec.edges)).astype(np.int32)
    features = {t: rng.standard_normal((spec.nodes, spec.width), np.float32) for t in ("user", "item")}
    arrays = {"users": users, "items": items, "x_user": features["user"], "x_item": features["item"]}
    arrays["seeds"] = rng.permutation(spec.edges)[: spec.seeds]
    for column, array in arrays.items():
        np.save(folder / f"{column}.npy", array)
    khop.write_graph(
        folder / "graph",
        {t: khop.NodeTable(columns={"x": x}) for t, x in features.items()},
        {
            BUYS: khop.EdgeTable(users, items, reverse_of=BOUGHT_BY),
            BOUGHT_BY: khop.EdgeTable(items, users, reverse_of=BUYS),
        },
        threads=2,
    )
    return folder


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ["bipartite"]:
        print(make(wanted))
