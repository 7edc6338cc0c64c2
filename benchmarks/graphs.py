"""Benchmark graphs: degree-corrected random graphs with communities, by stub matching; fixed seed.

1. Degrees are Lomax distributed (tail exponent 2.3), scaled to the wanted mean and capped.
2. Half of a node's stubs is matched inside its community, the rest over the whole graph (a configuration
model).
3. Self loops and duplicates are dropped, edges stand in both directions, node ids carry no locality.
Labels are classes of communities; features are a class center plus unit noise, so that a model can learn.

usage: python benchmarks/graphs.py [small] [medium] [products] ...   (default: products)
Writes <graphs>/<name>/: a khop graph folder `graph`, and the same edges as `indptr`, `indices`, `x`, `y`,
`train` in
plain .npy for the peers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import khop

try:
    from benchmarks.harness import GRAPHS
except ImportError:  # run as a script
    from harness import GRAPHS  # type: ignore[no-redef]

TAIL = 2.3
SEED = 20_261_121
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Spec:
    """The size of a graph."""

    nodes: int
    mean_degree: float
    max_degree: int = 20_000
    community: int = 2000
    width: int = 100
    classes: int = 47
    train: int = 8_000
    inside: float = 0.5  # share of stubs matched inside the community


SPECS = {
    "tiny": Spec(5_000, 20.6, 500, 500),
    "small": Spec(100_000, 20.6, 5_000, 1000),
    "medium": Spec(1_000_000, 25.4, community=1500, train=80_000),
    "products": Spec(2_449_029, 51.4, train=196_615),
    "clustered": Spec(2_449_029, 51.4, train=196_615, inside=0.9),
}


def degrees(spec: Spec, rng: np.random.Generator) -> Ids:
    """Target degrees: Lomax, capped, with the wanted mean."""
    weights = rng.pareto(TAIL, spec.nodes)
    for _ in range(4):  # the cap lowers the mean
        weights = np.minimum(weights * (spec.mean_degree / weights.mean()), spec.max_degree)
    return np.maximum(1, np.floor(weights + rng.random(spec.nodes))).astype(np.int64)


def match_inside(stubs: Ids, community: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Pairs of stubs of the same community, at random."""
    shuffled = stubs[rng.permutation(stubs.size)]
    ordered = shuffled[np.argsort(community[shuffled], kind="stable")]
    left, right = ordered[: ordered.size & ~1 : 2], ordered[1::2]
    same = community[left] == community[right]
    return left[same], right[same]


def match_anywhere(stubs: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Pairs of stubs over the whole graph, at random."""
    shuffled = rng.permutation(stubs)
    return shuffled[: shuffled.size & ~1 : 2], shuffled[1::2]


def csc(spec: Spec, rng: np.random.Generator, community: Ids) -> tuple[Ids, Ids]:
    """indptr and indices of the symmetrised graph, sources ascending within a row."""
    degree = degrees(spec, rng)
    inside = np.minimum(rng.binomial(degree, spec.inside), spec.community // 10)
    ids = np.arange(spec.nodes)
    a, b = match_inside(np.repeat(ids, inside), community, rng)
    c, d = match_anywhere(np.repeat(ids, degree - inside), rng)
    left, right = np.concatenate([a, c]), np.concatenate([b, d])
    del a, b, c, d
    edges = np.concatenate([left * spec.nodes + right, right * spec.nodes + left])
    edges = edges[np.concatenate([left, left]) != np.concatenate([right, right])]
    del left, right
    edges.sort()
    edges = edges[np.concatenate([[True], edges[1:] != edges[:-1]])]
    indptr = np.zeros(spec.nodes + 1, np.int64)
    np.cumsum(np.bincount(edges // spec.nodes, minlength=spec.nodes), out=indptr[1:])
    return indptr, edges % spec.nodes


def make(name: str) -> Path:
    """Write one graph, unless it is there, and give its folder."""
    folder = GRAPHS / name
    if (folder / "graph" / "graph.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    spec = SPECS[name]
    rng = np.random.default_rng(SEED)
    num_communities = max(1, spec.nodes // spec.community)
    community = rng.integers(0, num_communities, spec.nodes)
    indptr, indices = csc(spec, rng, community)
    y = rng.integers(0, spec.classes, num_communities)[community]
    centres = 0.5 * rng.standard_normal((spec.classes, spec.width), dtype=np.float32)
    x = rng.standard_normal((spec.nodes, spec.width), dtype=np.float32)
    for start in range(0, spec.nodes, 1 << 18):  # in pieces: centres[y] would double the memory
        x[start : start + (1 << 18)] += centres[y[start : start + (1 << 18)]]
    train = np.sort(rng.permutation(spec.nodes)[: spec.train])
    for column, array in (("indptr", indptr), ("indices", indices), ("x", x), ("y", y), ("train", train)):
        np.save(folder / f"{column}.npy", array)
    destinations = np.repeat(np.arange(spec.nodes), np.diff(indptr))
    nodes = khop.NodeTable(
        columns={"x": x, "x16": torch.from_numpy(x).half(), "y": y},
        splits={"train": train},
        num_classes={"y": spec.classes},
    )
    edges = {("node", "to", "node"): khop.EdgeTable(indices, destinations)}
    khop.write_graph(folder / "graph", {"node": nodes}, edges, threads=2)
    return folder


def parts(graph: Path, count: int, fanouts: Sequence[int] = (), batch_size: int = 1024) -> Path:
    """The graph in so many parts by khop's own method, beside it; cut unless it is there.

    With fanouts, its book says what share of a batch's nodes is to be expected remote.
    """
    name = f"parts-{count}" + (f"-{'-'.join(map(str, fanouts))}-{batch_size}" if fanouts else "")
    folder = graph.parent / name
    if not (folder / "partition.json").exists():
        khop.partition_graph(graph, folder, count, fanouts=fanouts, batch_size=batch_size)
    return folder


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ["products"]:
        print(make(wanted))
