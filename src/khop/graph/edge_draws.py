"""Draws from edges in this process. Whole graphs and partitions share this code."""

from __future__ import annotations

from dataclasses import dataclass, field

from khop.draw import DrawKey, FrontierByType, Neighbors, NeighborsByType
from khop.graph.rule_arrays import RuleArrays
from khop.graph.stored_arrays import StoredArrays
from khop.kernels.draw_request import DrawRequest
from khop.kernels.sample_hop import sample_hop
from khop.rules.rule import Hop, Rule, check_frontier
from khop.schema import EdgeType, Schema


@dataclass(frozen=True, eq=False)
class EdgeDraws:
    """Draws of in-edges of rows. Threads may share the object; kernels run without the GIL."""

    schema: Schema
    arrays: RuleArrays | StoredArrays  # the edges, and the arrays that rules need
    _fitting: set[Rule] = field(default_factory=set, repr=False)  # rules that passed their check

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw one hop as `GraphStore.sample_hop` does; frontiers are rows and edges are positions here."""
        if hop.rule not in self._fitting:  # a check costs more than the draw of a short row
            hop.rule.check(self.schema)
            self._fitting.add(hop.rule)
        check_types(frontier, hop, self.schema)
        requests: dict[EdgeType, DrawRequest] = {}
        for edge_type in asked_types(frontier, hop):
            try:
                of_type = frontier[edge_type[2]]
                requests[edge_type] = hop.rule.plan(edge_type, of_type, hop, key, self.arrays)
            except ValueError as error:
                raise _named(edge_type, error) from error
        try:
            found = sample_hop(list(requests.values()), edge_ids=hop.edge_ids, threads=hop.threads)
        except ValueError:
            for edge_type, request in requests.items():
                try:
                    sample_hop([request], edge_ids=False)  # one by one, so that the error names the edge type
                except ValueError as error:
                    raise _named(edge_type, error) from error
            raise
        drawn = dict(zip(requests, found, strict=True))
        for edge_type, request in requests.items():
            if request.kernel is None:
                _check_promises(edge_type, hop, drawn[edge_type])
        return drawn


def _check_promises(edge_type: EdgeType, hop: Hop, drawn: Neighbors) -> None:
    """Raise ValueError unless neighbors drawn by a rule's reference are as the rule states."""
    rule, fanout, degrees = hop.rule, hop.fanouts[edge_type], drawn.offsets.diff()
    most = rule.most(fanout)
    if most is not None and degrees.numel() and int(degrees.max()) > most:
        given = f"gave a row {int(degrees.max())} edges"
        raise ValueError(f"edge type {edge_type}: {rule}: {given}, where most({fanout}) is {most}")
    if (drawn.weights is not None) != rule.has_weights(fanout):
        given = "gave no weights" if drawn.weights is None else "gave weights"
        stated = f"has_weights({fanout}) is {rule.has_weights(fanout)}"
        raise ValueError(f"edge type {edge_type}: {rule}: {given}, where {stated}")


def check_hop(frontier: FrontierByType, hop: Hop, schema: Schema) -> None:
    """Raise ValueError unless the graph has what a hop names, and frontiers have what its rule reads."""
    hop.rule.check(schema)
    check_types(frontier, hop, schema)


def check_types(frontier: FrontierByType, hop: Hop, schema: Schema) -> None:
    """Raise ValueError unless the graph has a hop's edge types, and frontiers have what its rule reads."""
    for edge_type in hop.fanouts:
        check_edge_type(edge_type, schema)
    for edge_type in asked_types(frontier, hop):
        try:
            check_frontier(hop.rule, frontier[edge_type[2]])
        except ValueError as error:
            raise _named(edge_type, error) from error


def check_edge_type(edge_type: EdgeType, schema: Schema) -> None:
    """Raise ValueError that lists the existing edge types if the schema has no such edge type."""
    if edge_type not in schema.edge_types:
        raise ValueError(f"no edge type {edge_type!r}; there are {list(schema.edge_types)}")


def asked_types(frontier: FrontierByType, hop: Hop) -> list[EdgeType]:
    """Return the edge types that a hop draws from, in the order of its fanouts."""
    return [edge_type for edge_type in hop.fanouts if edge_type[2] in frontier]


def _named(edge_type: EdgeType, error: ValueError) -> ValueError:
    """Return the error with the edge type in its message."""
    return ValueError(f"edge type {edge_type}: {error}")
