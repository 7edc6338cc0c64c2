"""Capacities of batches with static shapes for nodes, rows and edges, measured on a few ordinary batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import TypeVar

from khop.batch import Sample
from khop.sampling.sampler import Expansion
from khop.schema import EdgeType, NodeType

Type = TypeVar("Type", NodeType, EdgeType)
MEASURED = 16  # batches; see benchmarks/overflows.py
SLACK, SIGMAS = 1.05, 4.0
_ADDED_ROOM = 64  # added to a doubled capacity, for types that measured batches did not have


def room(counts: Sequence[int]) -> int:
    """Return the room for a number that some ordinary batches have.

    It is the larger of SLACK times their largest, and of their mean plus SIGMAS standard deviations.
    """
    most = math.ceil(max(counts) * SLACK)
    return most if len(counts) < 2 else max(most, math.ceil(fmean(counts) + SIGMAS * stdev(counts)))


@dataclass(frozen=True)
class BatchLimits:
    """The most nodes and edges of each type that a batch can have; types without an entry have no limit."""

    nodes: Mapping[NodeType, int]
    edges: Mapping[EdgeType, int]


@dataclass(frozen=True)
class Capacities:
    """The most nodes, rows and edges that a batch with static shapes holds, by hop and type."""

    nodes: tuple[Mapping[NodeType, int], ...]  # so far: seeds (with duplicates), after hop 1, ...
    rows: tuple[Mapping[NodeType, int], ...]  # expanded at hop 1, 2, ...
    edges: tuple[Mapping[EdgeType, int], ...]  # of all rows at hop 1, 2, ..., by edge types of fanout -1
    excluded: Mapping[EdgeType, int] = field(default_factory=dict)  # pairs of ends that carry no message
    links: Mapping[EdgeType, int] = field(default_factory=dict)  # seeds that are links

    @classmethod
    def measured(
        cls,
        samples: Iterable[Sample],
        seeds: Mapping[NodeType, int],
        node_types: Sequence[NodeType],
        expansion: Expansion,
        edges: Sequence[Mapping[EdgeType, Sequence[int]]],
    ) -> Capacities:
        """Return the room that ordinary samples need.

        `seeds` is the most seeds of a batch; `edges` are, by hop, the edges of types with a fanout of -1, a
        number for each batch.
        """
        blocks = [tuple(reversed(sample.blocks)) for sample in samples]
        if not blocks:
            raise ValueError("no samples to measure: sample a few batches first")
        num_hops = len(blocks[0])
        hops = [[of_sample[hop] for of_sample in blocks] for hop in range(num_hops)]
        nodes = [{t: seeds.get(t, 0) for t in node_types}]
        for hop in hops:
            after = _room([block.src_counts for block in hop])
            nodes.append({t: max(count, nodes[-1][t]) for t, count in after.items()})
        added = [_room([_difference(block.src_counts, block.dst_counts) for block in hop]) for hop in hops]
        rows = nodes[:-1] if expansion is Expansion.LAYERED else [nodes[0], *added][:num_hops]
        taken = tuple({t: room(counts) for t, counts in hop.items()} for hop in edges)
        return cls(tuple(nodes), tuple(rows), taken)

    def doubled(self, limits: BatchLimits) -> Capacities:
        """Return room for twice as many nodes, rows and edges, but not for more than a batch can have."""
        nodes, rows = (
            tuple(_doubled(level, limits.nodes) for level in levels) for levels in (self.nodes, self.rows)
        )
        edges = tuple(_doubled(hop, limits.edges) for hop in self.edges)
        return replace(self, nodes=nodes, rows=rows, edges=edges)

    def joined(self, other: Capacities) -> Capacities:
        """Return room for the batches of both."""
        levels = {
            name: tuple(map(_larger, getattr(self, name), getattr(other, name)))
            for name in ("nodes", "rows", "edges")
        }
        pairs, links = _larger(self.excluded, other.excluded), _larger(self.links, other.links)
        return Capacities(**levels, excluded=pairs, links=links)

    def holding(self, seeds: Mapping[NodeType, int], excluded: Mapping[EdgeType, int]) -> Capacities:
        """Return capacities with room for all seeds, duplicates included, and for all excluded pairs."""
        nodes = tuple({t: max(n, seeds.get(t, 0)) for t, n in level.items()} for level in self.nodes)
        # Nodes after a hop are also the rows of the next one, or more than those.
        rows = tuple({t: max(n, seeds.get(t, 0)) for t, n in hop.items()} for hop in self.rows)
        pairs = {t: max(self.excluded.get(t, 0), excluded.get(t, 0)) for t in {**self.excluded, **excluded}}
        return replace(self, nodes=nodes, rows=rows, excluded=pairs)

    def state(self) -> dict[str, list[dict[str, int]]]:
        """Return the capacities as plain values, for a checkpoint."""
        return {
            "nodes": [dict(level) for level in self.nodes],
            "rows": [dict(hop) for hop in self.rows],
            "edges": [_by_name(hop) for hop in self.edges],
            "excluded": [_by_name(self.excluded)],
            "links": [_by_name(self.links)],
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Sequence[Mapping[str, int]]], edge_types: Iterable[EdgeType]
    ) -> Capacities:
        """Return the capacities of `state`; ValueError if it names a missing edge type."""
        named = {" ".join(t): t for t in edge_types}
        (excluded,), (links,) = state["excluded"], state.get("links", [{}])
        edges = state.get("edges", [{} for _ in state["rows"]])  # earlier versions have neither
        unknown = [name for of_types in (excluded, links, *edges) for name in of_types if name not in named]
        if unknown:
            raise ValueError(
                f"capacities of edge type {unknown[0]!r}: the graph has {sorted(named)}; "
                "take the graph of the checkpoint, or measure capacities anew"
            )
        nodes, rows = (tuple(dict(hop) for hop in state[name]) for name in ("nodes", "rows"))
        taken = tuple({named[name]: count for name, count in hop.items()} for hop in edges)
        pairs, of_links = ({named[name]: n for name, n in of.items()} for of in (excluded, links))
        return cls(nodes, rows, taken, pairs, of_links)


def _larger(counts: Mapping[Type, int], others: Mapping[Type, int]) -> dict[Type, int]:
    return {t: max(counts.get(t, 0), others.get(t, 0)) for t in {**counts, **others}}


def _doubled(counts: Mapping[Type, int], limits: Mapping[Type, int]) -> dict[Type, int]:
    larger = {t: 2 * count + _ADDED_ROOM for t, count in counts.items()}
    return {t: min(count, limits.get(t, count)) for t, count in larger.items()}


def _by_name(counts: Mapping[EdgeType, int]) -> dict[str, int]:
    return {" ".join(edge_type): count for edge_type, count in counts.items()}


def _room(counts: Sequence[Mapping[Type, int]]) -> dict[Type, int]:
    return {t: room([of_sample[t] for of_sample in counts]) for t in counts[0]}


def _difference(more: Mapping[NodeType, int], fewer: Mapping[NodeType, int]) -> dict[NodeType, int]:
    return {t: count - fewer[t] for t, count in more.items()}
