"""Capacities of batches with static shapes for nodes, rows and edges, measured on a few ordinary batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from khop.batch import Sample
from khop.sampling.sampler import Expansion
from khop.schema import EdgeType, NodeType

Type = TypeVar("Type", NodeType, EdgeType)
SLACK = 1.05  # sizes of random batches differ by less: their largest in an epoch is about 1.03 of the mean


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
        edges: Sequence[Mapping[EdgeType, int]],
        slack: float = SLACK,
    ) -> Capacities:
        """Return the maxima of ordinary samples times the slack.

        `seeds` is the most seeds of a batch; `edges`, by hop, the most edges of types with a fanout of -1.
        """
        blocks = [tuple(reversed(sample.blocks)) for sample in samples]
        if not blocks:
            raise ValueError("no samples to measure: sample a few batches first")
        num_hops = len(blocks[0])
        hops = [[of_sample[hop] for of_sample in blocks] for hop in range(num_hops)]
        nodes = [{t: seeds.get(t, 0) for t in node_types}]
        for hop in hops:
            after = _most([block.src_counts for block in hop], slack)
            nodes.append({t: max(count, nodes[-1][t]) for t, count in after.items()})
        added = [
            _most([_difference(block.src_counts, block.dst_counts) for block in hop], slack) for hop in hops
        ]
        rows = nodes[:-1] if expansion is Expansion.LAYERED else [nodes[0], *added][:num_hops]
        room = tuple({t: math.ceil(count * slack) for t, count in hop.items()} for hop in edges)
        return cls(tuple(nodes), tuple(rows), room)

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


def _by_name(counts: Mapping[EdgeType, int]) -> dict[str, int]:
    return {" ".join(edge_type): count for edge_type, count in counts.items()}


def _most(counts: Sequence[Mapping[Type, int]], slack: float) -> dict[Type, int]:
    return {t: math.ceil(max(of_sample[t] for of_sample in counts) * slack) for t in counts[0]}


def _difference(more: Mapping[NodeType, int], fewer: Mapping[NodeType, int]) -> dict[NodeType, int]:
    return {t: count - fewer[t] for t, count in more.items()}
