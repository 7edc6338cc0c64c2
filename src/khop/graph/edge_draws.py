"""Draws from edges in this process. Whole graphs and partitions share this code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from khop.draw import (
    DrawKey,
    Frontier,
    FrontierByType,
    Hop,
    Keep,
    NeighborsByType,
    Temporal,
    Weighted,
    check_rule,
    stream,
)
from khop.graph.rule_arrays import RuleArrays
from khop.kernels.hop_rows import HopRows
from khop.kernels.sample_hop import EdgeDraw, sample_hop
from khop.kernels.time_ranges import time_ranges
from khop.schema import EdgeType, NodeType, Schema


@dataclass(frozen=True, eq=False)
class EdgeDraws:
    """Draws of in-edges of rows. Threads may share the object; drawing runs without the GIL."""

    schema: Schema
    original_ids: Mapping[NodeType, Tensor]  # int64, by row: the keys of draws, if not the rows
    arrays: RuleArrays  # the edges, and the arrays that rules need

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw one hop as `GraphStore.sample_hop` does; frontiers are rows and edges are positions here."""
        check_hop(hop, self.schema)
        draws = {}
        for edge_type in asked_types(frontier, hop):
            with _naming(edge_type):
                draws[edge_type] = self._draw(edge_type, frontier[edge_type[2]], hop, key)
        try:
            drawn = sample_hop(list(draws.values()), edge_ids=hop.edge_ids, threads=hop.threads)
        except ValueError:
            for edge_type, draw in draws.items():
                with _naming(edge_type):
                    sample_hop([draw])  # one by one, so that the error names the edge type
            raise
        return dict(zip(draws, drawn, strict=True))

    def _draw(self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey) -> EdgeDraw:
        fanout, rule, ranges = hop.fanouts[edge_type], hop.rule, None
        if isinstance(rule, Temporal):
            ranges = self._time_ranges(edge_type, frontier, rule, hop)
            fanout = -1 if rule.keep is Keep.LATEST and ranges is not None else fanout
            rule = rule.inner
        elif frontier.until is not None:
            raise ValueError(f"the frontier has time limits, which {rule} does not know")
        rows = HopRows(
            frontier.nodes,
            key,
            stream(hop.number, edge_type),
            self.original_ids.get(edge_type[2]),
            frontier.tree,
            ranges,
        )
        sums = self.arrays.weight_sums(edge_type, rule.column) if isinstance(rule, Weighted) else None
        return EdgeDraw(self.arrays.edges[edge_type], rows, fanout, rule, sums)

    def _time_ranges(
        self, edge_type: EdgeType, frontier: Frontier, rule: Temporal, hop: Hop
    ) -> Tensor | None:
        """Return the edges of each row that the time limit allows; None if the edge type has no times."""
        if frontier.until is None:
            raise ValueError(f"{rule} needs time limits, and the frontier has none: give the seeds times")
        times = self.arrays.times(edge_type, rule.column)
        if times is None:
            return None
        most = hop.fanouts[edge_type] if rule.keep is Keep.LATEST else -1
        return time_ranges(
            self.arrays.edges[edge_type],
            times,
            frontier.nodes,
            frontier.until,
            rule.window,
            most,
            own=self.arrays.own_times(edge_type, rule.column),
            threads=hop.threads,
        )


def check_hop(hop: Hop, schema: Schema) -> None:
    """Raise ValueError unless the graph has the columns and the edge types that a hop names."""
    check_rule(hop.rule, schema)
    for edge_type in hop.fanouts:
        check_edge_type(edge_type, schema)


def check_edge_type(edge_type: EdgeType, schema: Schema) -> None:
    """Raise ValueError that lists the existing edge types if the schema has no such edge type."""
    if edge_type not in schema.edge_types:
        raise ValueError(f"no edge type {edge_type!r}; there are {list(schema.edge_types)}")


def asked_types(frontier: FrontierByType, hop: Hop) -> list[EdgeType]:
    """Return the edge types that a hop draws from, in the order of its fanouts."""
    return [edge_type for edge_type in hop.fanouts if edge_type[2] in frontier]


@contextmanager
def _naming(edge_type: EdgeType) -> Iterator[None]:
    """Add the edge type to the message of errors that the block raises."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"edge type {edge_type}: {error}") from error
