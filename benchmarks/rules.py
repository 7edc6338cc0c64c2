"""What do weights and times cost? Nanoseconds per sampled edge, one thread, layered [15,10,5], batch 1024.

The graph gets random weights and random times, rows sorted by time; seeds get random times, so that half of a
row is allowed on average. Temporal sampling needs a tree per seed, where nodes are shared by fewer: it is
compared with uniform sampling of disjoint trees, weighted sampling with uniform sampling of shared nodes, and
of trees. A limit leaves some rows fewer edges than are wanted, and a batch costs something by itself: every
rule gets as many seeds as it takes to draw as many edges as its peer draws from 1024. Rules take turns, batch
by batch; `ratio` is the rule's time per edge over the uniform one's.

usage: python benchmarks/rules.py [--graph products] [--rounds 5] [--batches 20]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from common_arguments import Arguments, parsed
from harness import Figure, report

import khop
from khop.draw import DrawKey, Purpose
from khop.graph.rule import Rule
from khop.graph.store import CscGraph
from khop.kernels.edge_arrays import sort_rows
from khop.kernels.memory import pooled
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.schema import ColumnSpec

EDGE = ("node", "to", "node")
FANOUTS, BATCH_SIZE = [15, 10, 5], 1024
WARMING = 5  # batches that do not count and say how many seeds each rule needs
LATEST_TIME = 1 << 40
RULES: Mapping[str, tuple[Rule, bool]] = {  # name -> (rule, whether every seed has a tree of its own)
    "uniform": (Uniform(), False),
    "weighted": (Weighted("weight"), False),
    "weighted, replacement": (Weighted("weight", replacement=True), False),
    "uniform, disjoint": (Uniform(), True),
    "weighted, disjoint": (Weighted("weight"), True),
    "temporal": (Temporal("time"), True),
    "temporal, window": (Temporal("time", window=(LATEST_TIME // 4, 0)), True),
    "temporal, latest": (Temporal("time", TemporalStrategy.LATEST), True),
    "temporal and weighted": (Temporal("time", inner=Weighted("weight")), True),
}


def peer_of(name: str) -> str:
    """What the rule is compared with."""
    return "uniform, disjoint" if RULES[name][1] else "uniform"


def with_columns(folder: Path) -> tuple[CscGraph, torch.Tensor]:
    """The graph with weights and times of its edges, in memory, and the training nodes."""
    opened = khop.open_graph(folder)
    assert isinstance(opened.topology, CscGraph)
    csc = opened.topology.edges[EDGE]
    generator = torch.Generator().manual_seed(0)
    times = torch.randint(LATEST_TIME, (csc.num_edges,), generator=generator)
    order = sort_rows(csc, times, threads=2)[1]
    times = torch.index_select(times, 0, order, out=pooled((csc.num_edges,), torch.int64))
    weights = torch.rand(csc.num_edges, generator=generator) + 0.01
    specs = {EDGE: {"time": ColumnSpec("int64", ()), "weight": ColumnSpec("float32", ())}}
    schema = replace(opened.schema, columns=specs)
    columns = {EDGE: {"time": times, "weight": weights}}
    graph = CscGraph(schema, opened.topology.counts, {EDGE: csc}, columns=columns)
    return graph, opened.split("train")["node"]


def seconds_per_edge(sampler: khop.NeighborSampler, seeds: khop.Seeds, step: int) -> tuple[float, int]:
    """Of one batch, with its edges."""
    started = time.perf_counter()
    sample = sampler.sample(seeds, DrawKey.of(0, Purpose.HOP, 0, step))
    seconds = time.perf_counter() - started
    edges = sum(a.indices.numel() for block in sample.blocks for a in block.adjacencies.values())
    return seconds / edges, edges


def seeds_of(rule: Rule, train: torch.Tensor, count: int, generator: torch.Generator) -> khop.Seeds:
    """So many training nodes, with times where the rule wants them."""
    chosen = train[torch.randint(train.numel(), (count,), generator=generator)]
    plain = khop.Seeds({"node": chosen}, {"node": torch.arange(count)})
    if not isinstance(rule, Temporal):
        return plain
    return replace(plain, times={"node": torch.randint(LATEST_TIME, (count,), generator=generator)})


def measured(arguments: Arguments) -> dict[str, tuple[list[float], int]]:
    """Per rule: nanoseconds per edge of every batch, and the edges of the last."""
    graph, train = with_columns(Path(arguments.graph) / "graph")
    samplers = {
        name: khop.NeighborSampler(graph, FANOUTS, rule=rule, trees="disjoint" if disjoint else "merged")
        for name, (rule, disjoint) in RULES.items()
    }
    generator = torch.Generator().manual_seed(1)
    found: dict[str, tuple[list[float], int]] = {name: ([], 0) for name in RULES}
    seeds, drawn = dict.fromkeys(RULES, BATCH_SIZE), dict.fromkeys(RULES, 0)
    for step in range(-WARMING, arguments.rounds * arguments.batches):
        for name, (rule, _) in RULES.items():
            wanted = seeds_of(rule, train, seeds[name], generator)
            seconds, edges = seconds_per_edge(samplers[name], wanted, step + WARMING)
            if step >= 0:
                found[name] = ([*found[name][0], 1e9 * seconds], edges)
                continue
            drawn[name] += edges
            if step == -1:
                seeds[name] = round(BATCH_SIZE * drawn[peer_of(name)] / drawn[name])
    return found


def main() -> None:
    torch.set_num_threads(1)
    found = measured(parsed(__doc__))
    medians = {name: statistics.median(values) for name, (values, _) in found.items()}
    figures = []
    for name, (values, edges) in found.items():
        low, _, high = statistics.quantiles(values, n=4)
        base = peer_of(name)
        figures.append(
            Figure(
                figure=f"{name}, time per edge",
                value=round(medians[name], 2),
                unit="ns/edge",
                peer=None if name == base else base,
                ratio=None if name == base else round(medians[name] / medians[base], 3),
                spread=(round(low, 2), round(high, 2)),
                notes={"edges": edges, "ms_per_batch": round(medians[name] * edges / 1e6, 2)},
            )
        )
    report("rules", figures)


if __name__ == "__main__":
    main()
