"""Draws asked of a graph folder, and khop's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

import khop
from khop.draw import DrawKey, Frontier, Positives, UniformNegatives
from khop.graph.features.store import Rows
from khop.graph.rule import Hop, Rule
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.schema import EdgeType, NodeType

KEY = DrawKey(0x1234_5678_9ABC_DEF1)
CITES = ("paper", "cites", "paper")
BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought_by", "user")


@dataclass(frozen=True)
class Draw:
    """Two hops from some nodes, and the columns of what the first one reached."""

    name: str
    seeds: Mapping[NodeType, tuple[int, ...]] | str  # or the name of a split
    fanout: int
    rule: Rule = Uniform()
    until: int | None = None


@dataclass(frozen=True)
class ExactNegatives:
    """Destinations that are no partners of some sources."""

    name: str
    edge_type: EdgeType
    sources: tuple[int, ...]
    per_positive: int = 5


RowQuery = Draw | ExactNegatives
Answer = list[tuple[object, ...]]  # of plain values, compared as they are

_PAPERS = {"paper": (3, 0, 17, 36, 9, 3)}
_SHOP = {"user": (2, 18, 7), "item": (0, 22, 11)}
QUESTIONS: Mapping[str, tuple[RowQuery, ...]] = {
    "papers": (
        Draw("uniform", _PAPERS, 2),
        Draw("with replacement", _PAPERS, 3, Uniform(replacement=True)),
        Draw("all neighbors", _PAPERS, -1),
        Draw("of a split", "train", 2),
        Draw("weighted", _PAPERS, 2, Weighted("weight")),
        Draw("weighted with replacement", _PAPERS, 3, Weighted("weight", replacement=True)),
        Draw("temporal", _PAPERS, 2, Temporal("time"), until=60),
        Draw(
            "temporal, latest in a window",
            _PAPERS,
            2,
            Temporal("time", TemporalStrategy.LATEST, (40, -5)),
            until=70,
        ),
        Draw("temporal, weighted", _PAPERS, 2, Temporal("time", inner=Weighted("weight")), until=80),
        ExactNegatives("exact negatives", CITES, (1, 30, 8)),
    ),
    "shop": (
        Draw("typed", _SHOP, 2),
        Draw("typed, all neighbors", _SHOP, -1),
        Draw("typed, of a split", "train", 3),
        Draw("typed, weighted", _SHOP, 2, Weighted("price")),
        Draw("typed, temporal", _SHOP, 2, Temporal("time"), until=30),
        Draw("typed, temporal in a window", _SHOP, 3, Temporal("time", window=(20, 0)), until=35),
        ExactNegatives("typed, exact negatives", BUYS, (1, 18, 8)),
    ),
}


def answer(path: Path, question: RowQuery) -> Answer:
    """Open the folder anew and draw; ValueError where it can not be."""
    graph = khop.open_graph(path)
    if isinstance(question, ExactNegatives):
        sources = torch.tensor(question.sources)
        links = Positives(sources, torch.arange(sources.numel()))
        rule = UniformNegatives(question.per_positive, exact=True)
        negatives = graph.sample_negatives(question.edge_type, rule, links, KEY)
        return [tuple(row) for row in negatives.tolist()]
    if isinstance(question.seeds, str):
        seeds = {t: ids[:7].tolist() for t, ids in graph.split(question.seeds).items()}
    else:
        seeds = {t: list(ids) for t, ids in question.seeds.items()}
    found: Answer = []
    for number in (1, 2):
        frontier = {t: _frontier(ids, question.until) for t, ids in seeds.items()}
        fanouts = dict.fromkeys(graph.schema.edge_types, question.fanout)
        drawn = graph.sample_hop(frontier, Hop(number, fanouts, question.rule, edge_ids=True), KEY)
        reached: dict[NodeType, set[int]] = {}
        for edge_type, of_type in sorted(drawn.items()):
            assert of_type.edges is not None
            nodes = of_type.nodes.tolist()
            found.append((number, edge_type, of_type.offsets.tolist(), nodes, of_type.edges.tolist()))
            reached.setdefault(edge_type[0], set()).update(nodes)
        if number == 1:
            wanted = {t: Rows(torch.tensor(sorted(nodes)), ("x",)) for t, nodes in reached.items() if nodes}
            rows = graph.features.gather(wanted)
            found += [(t, of_type["x"].numpy().tobytes()) for t, of_type in sorted(rows.items())]
        seeds = {t: sorted(nodes) for t, nodes in reached.items()}
    return found


def _frontier(ids: list[int], until: int | None) -> Frontier:
    limits = None if until is None else torch.full((len(ids),), until)
    return Frontier(torch.tensor(ids, dtype=torch.int64), limits)
