"""What do types cost a sampler? Time per sampled edge of a graph with 5 node types and 12 edge types, against
the same edges as one type.

The products-like graph, its nodes given types at random (shares 40, 25, 15, 12 and 8 %), and of its edges
those between 12 of the 25 pairs of types. Seeds are the same nodes in both, of all types. Fanouts are the
same numbers per edge type and as one type, so that rows are as long; or such that a batch has about as many
edges in both, where the typed graph has three times as many rows. Batch 1024, no replacement, one thread.
Rounds take turns; a figure is the median over rounds of the median over batches.

usage: python benchmarks/typed.py [--graph products] [--rounds 5] [--batches 20]
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from common_arguments import parsed
from harness import Figure, report

import khop
from khop.draw import DrawKey, Purpose

SHARES = {"person": 0.40, "paper": 0.25, "field": 0.15, "venue": 0.12, "place": 0.08}
# Sources and destinations; both directions of five pairs, and two among themselves.
PAIRS = (
    ("person", "person"), ("paper", "paper"),
    ("person", "paper"), ("paper", "person"), ("person", "field"), ("field", "person"),
    ("paper", "venue"), ("venue", "paper"), ("paper", "place"), ("place", "paper"),
    ("person", "venue"), ("venue", "person"),
)  # fmt: skip
BATCH = 1024
# Fanouts of the typed graph, and of the same as one type.
FANOUTS = {
    "the same fanouts": ([5, 4, 2], [5, 4, 2]),
    "wide fanouts, the same": ([10, 10, 5], [10, 10, 5]),
    "as many edges per batch": ([5, 4, 2], [15, 10, 5]),
}


@dataclass(frozen=True)
class Case:
    """A sampler and the seeds of its batches."""

    sampler: khop.NeighborSampler
    seeds: list[khop.Seeds]

    def ns_per_edge(self) -> tuple[float, float]:
        """Median over the batches, and the median number of edges."""
        times, edges = [], []
        for step, seeds in enumerate(self.seeds):
            key = DrawKey.of(0, Purpose.HOP, 0, step)
            begun = time.perf_counter()
            sample = self.sampler.sample(seeds, key)
            seconds = time.perf_counter() - begun
            edges.append(num_edges(sample))
            times.append(seconds / edges[-1])
        return median(times) * 1e9, median(edges)


def num_edges(sample: khop.Sample) -> int:
    """Edges drawn: those of the subgraph where there is one, of which blocks are views."""
    holders = sample.blocks if sample.subgraph is None else (sample.subgraph,)
    return sum(edges.indices.numel() for holder in holders for edges in holder.adjacencies.values())


def make(folder: Path) -> tuple[Path, Path]:
    """Write the typed graph and the same edges as one type, unless they are there, and give their folders."""
    typed, plain = folder / "typed", folder / "untyped"
    if (typed / "graph.json").exists() and (plain / "graph.json").exists():
        return typed, plain
    indptr, indices = np.load(folder / "indptr.npy"), np.load(folder / "indices.npy", mmap_mode="r")
    kinds = np.random.default_rng(7).choice(len(SHARES), indptr.size - 1, p=list(SHARES.values()))
    names = list(SHARES)
    local = np.empty(kinds.size, np.int64)
    train = np.load(folder / "train.npy")
    nodes = {}
    for number, name in enumerate(names):
        ids = np.flatnonzero(kinds == number)
        local[ids] = np.arange(ids.size)
        nodes[name] = khop.NodeTable(ids.size, splits={"train": local[train[kinds[train] == number]]})
    destinations = np.repeat(np.arange(kinds.size, dtype=np.int32), np.diff(indptr))
    sources = indices.astype(np.int32)
    pair = (kinds[sources] * len(names) + kinds[destinations]).astype(np.int8)
    edges = {}
    kept = np.zeros(pair.size, bool)
    for source, destination in PAIRS:
        chosen = pair == names.index(source) * len(names) + names.index(destination)
        kept |= chosen
        ends = (local[of_edges[chosen]] for of_edges in (sources, destinations))
        edges[(source, "to", destination)] = khop.EdgeTable(*ends)
    khop.write_graph(typed, nodes, edges, threads=2)
    del edges
    # Seeds in the order of the types, so that both graphs take the same nodes of the same batch.
    ordered = np.concatenate([train[kinds[train] == number] for number in range(len(names))])
    node = khop.NodeTable(kinds.size, splits={"train": ordered})
    khop.write_graph(
        plain, {"node": node}, {("node", "to", "node"): khop.EdgeTable(sources[kept], destinations[kept])}
    )
    return typed, plain


def cases(
    folder: Path, expansion: khop.Expansion, fanouts: tuple[list[int], list[int]], batches: int
) -> dict[str, Case]:
    """Both graphs, with the same seeds."""
    typed, plain = (khop.open_graph(path) for path in make(folder))
    by_type = typed.split("train")
    ordered = plain.split("train")["node"]
    sizes = [ids.numel() for ids in by_type.values()]
    of_typed, of_plain = [], []
    for step in range(batches):
        chosen = torch.randperm(ordered.numel(), generator=torch.Generator().manual_seed(step))[:BATCH]
        of_plain.append(seeds_of({"node": ordered[chosen]}))
        mine, start = {}, 0
        for (name, ids), size in zip(by_type.items(), sizes, strict=True):
            inside = chosen[(chosen >= start) & (chosen < start + size)] - start
            mine[name], start = ids[inside], start + size
        of_typed.append(seeds_of(mine))
    by_edge_type, as_one = fanouts
    return {
        "typed": Case(khop.NeighborSampler(typed, by_edge_type, expansion=expansion), of_typed),
        "one type": Case(khop.NeighborSampler(plain, as_one, expansion=expansion), of_plain),
    }


def seeds_of(nodes: Mapping[str, torch.Tensor]) -> khop.Seeds:
    """Seeds at the positions of their order."""
    return khop.Seeds(nodes, {name: torch.arange(ids.numel()) for name, ids in nodes.items()})


def compared(name: str, expansion: khop.Expansion, folder: Path, rounds: int, batches: int) -> Figure:
    """One pair of fanouts, in one expansion."""
    found: dict[str, list[tuple[float, float]]] = {"typed": [], "one type": []}
    both = cases(folder, expansion, FANOUTS[name], batches)
    for case in both.values():
        case.ns_per_edge()  # warm
    for _ in range(rounds):
        for kind, case in both.items():
            found[kind].append(case.ns_per_edge())
    ratios = sorted(a / b for (a, _), (b, _) in zip(found["typed"], found["one type"], strict=True))
    notes = {
        kind: {
            "fanouts": fanouts,
            "edges per batch": of_kind[-1][1],
            "ns per edge": round(median(value for value, _ in of_kind), 2),
        }
        for (kind, of_kind), fanouts in zip(found.items(), FANOUTS[name], strict=True)
    }
    return Figure(
        f"typed over one type, time per sampled edge, {name}, {expansion}",
        round(median(ratios), 3),
        "x",
        spread=(round(ratios[0], 3), round(ratios[-1], 3)),
        notes=notes,
    )


def main() -> None:
    arguments = parsed(__doc__)
    torch.set_num_threads(1)
    folder, rounds, batches = Path(arguments.graph), arguments.rounds, arguments.batches
    figures = [compared(name, kind, folder, rounds, batches) for name in FANOUTS for kind in khop.Expansion]
    report("typed", figures)


if __name__ == "__main__":
    main()
