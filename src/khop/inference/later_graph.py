"""A graph joined with nodes and edges that were imported after training, in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from khop.graph.features.store import FeatureStore, Rows
from khop.graph.store import CscGraph, column_specs, csc_graph_from_edges
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema

_UNKNOWN = {torch.int64: -1, torch.uint8: 255}  # labels of nodes that later data give none
Columns = dict[NodeType | EdgeType, dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Neighborhood:
    """The k-hop neighborhood of some nodes, with new node numbers."""

    nodes: Mapping[NodeType, Tensor]  # int64 (nodes), ascending: the node of the joined graph
    graph: CscGraph
    columns: Columns

    def local(self, node_type: NodeType, nodes: Tensor) -> Tensor:
        """Return the new numbers of nodes of the joined graph, which must be among these, int64."""
        return torch.searchsorted(self.nodes[node_type], nodes)


@dataclass(frozen=True, eq=False)
class _Edges:
    """Edges into some nodes: first from the graph, then the later ones."""

    sources: Tensor  # int64 (edges), nodes of the joined graph
    destinations: Tensor
    in_base: Tensor  # int64: positions of the first edges in the CSC order of the graph
    in_later: Tensor  # int64: positions of the others in the CSC order of the later graph


@dataclass(frozen=True, eq=False)
class JoinedGraph:
    """A graph and later data, as if the later rows had followed the tables of the graph.

    Nodes of the graph keep their numbers; new nodes follow. A row has edges of the graph, then later edges in
    their order, and is sorted by time if the graph's rows are. Only requested rows are read.
    """

    base: CscGraph
    features: FeatureStore  # of the nodes of the graph
    later: CscGraph
    places: Mapping[NodeType, Tensor]  # int64 (later nodes): the node of the joined graph
    specs: Mapping[NodeType | EdgeType, Mapping[str, ColumnSpec]]  # columns of the graph
    sort_by: str | None = None  # the column that rows of the graph are sorted by; None: in the order of input
    _by_destination: dict[EdgeType, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def new(self, node_type: NodeType) -> Tensor:
        """Return the later nodes that the graph lacks, int64, in their order: node base + i is the i-th."""
        places = self.places.get(node_type, torch.zeros(0, dtype=torch.int64))
        return (places >= self.base.num_nodes(node_type)).nonzero().squeeze(1)

    def latest(self, column: str) -> int:
        """Return the latest time in a column of edges or nodes, of all types that have it."""
        found = [0]
        for type_, specs in self.specs.items():
            if column not in specs:
                continue
            if isinstance(type_, tuple):
                before = self.base.columns[type_][column]
            else:
                rows = Rows(torch.arange(self.base.num_nodes(type_)), (column,))
                before = self.features.gather({type_: rows})[type_][column]
            later = self.later.columns.get(type_, {}).get(column)
            found += [int(times.max()) for times in (before, later) if times is not None and len(times)]
        return max(found[1:], default=0)

    def neighborhood(
        self,
        seeds: Mapping[NodeType, Tensor],
        hops: int,
        followed: Collection[EdgeType],
        threads: int = 1,
    ) -> Neighborhood:
        """Return the `hops`-hop neighborhood of seeds along the edge types `followed`.

        Rows of nodes less than `hops` hops away are complete; the outermost nodes have none.
        """
        nodes = {t: torch.zeros(0, dtype=torch.int64) for t in self.base.schema.node_types}
        frontier = {t: ids.unique() for t, ids in seeds.items()}
        found: dict[EdgeType, list[_Edges]] = {t: [] for t in self.base.schema.edge_types}
        for _ in range(hops):
            nodes = {t: _joined([ids, *_of(frontier, t)]) for t, ids in nodes.items()}
            reached: dict[NodeType, list[Tensor]] = {}
            for edge_type in followed:
                for ids in _of(frontier, edge_type[2]):
                    found[edge_type].append(self._edges(edge_type, ids))
                    reached.setdefault(edge_type[0], []).append(found[edge_type][-1].sources)
            frontier = {t: _without(_joined(ids), nodes[t]) for t, ids in reached.items()}
        nodes = {t: _joined([ids, *_of(frontier, t)]) for t, ids in nodes.items()}
        return self._numbered(nodes, found, threads)

    def _edges(self, edge_type: EdgeType, nodes: Tensor) -> _Edges:
        """Return the edges into nodes, which ascend."""
        csc, count = self.base.csc(edge_type), self.base.num_nodes(edge_type[2])
        csc.check_rows()
        old = nodes[nodes < count]
        degrees = csc.indptr[old + 1] - csc.indptr[old]
        in_base = _spans(csc.indptr[old], degrees)
        sources, destinations = [csc.indices[in_base].long()], [old.repeat_interleave(degrees)]
        in_later = in_base[:0]
        if edge_type in self.later.edges:
            order, ends = self._later_rows(edge_type)
            first = torch.searchsorted(ends, nodes)
            degrees = torch.searchsorted(ends, nodes, right=True) - first
            in_later = order[_spans(first, degrees)]
            of_later = self.later.csc(edge_type).indices[in_later].long()
            sources.append(self.places[edge_type[0]][of_later])
            destinations.append(nodes.repeat_interleave(degrees))
        return _Edges(torch.cat(sources), torch.cat(destinations), in_base, in_later)

    def _later_rows(self, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
        """Return positions of later edges by their destination in the joined graph, and the destinations."""
        if edge_type not in self._by_destination:
            ends = self.places[edge_type[2]][self.later.csc(edge_type).destinations()]
            ordered, order = ends.sort(stable=True)
            self._by_destination[edge_type] = order, ordered
        return self._by_destination[edge_type]

    def _numbered(
        self, nodes: Mapping[NodeType, Tensor], found: Mapping[EdgeType, list[_Edges]], threads: int
    ) -> Neighborhood:
        columns: Columns = {t: self._node_columns(t, ids) for t, ids in nodes.items()}
        edges = {}
        for edge_type, pieces in found.items():
            # The edges of the graph come first: a row keeps the order of its edges.
            nothing = torch.zeros(0, dtype=torch.int64)
            in_base = torch.cat([nothing, *(one.in_base for one in pieces)])
            in_later = torch.cat([nothing, *(one.in_later for one in pieces)])
            ends = [
                torch.cat(
                    [
                        nothing,
                        *(getattr(one, end)[: one.in_base.numel()] for one in pieces),
                        *(getattr(one, end)[one.in_base.numel() :] for one in pieces),
                    ]
                )
                for end in ("sources", "destinations")
            ]
            source, _, destination = edge_type
            edges[edge_type] = (
                torch.searchsorted(nodes[source], ends[0]),
                torch.searchsorted(nodes[destination], ends[1]),
            )
            columns[edge_type] = self._edge_columns(edge_type, in_base, in_later)
        counts = {t: ids.numel() for t, ids in nodes.items()}
        graph = csc_graph_from_edges(counts, edges, threads, columns=columns, sort_by=self.sort_by)
        originals = {t: self._original_ids(t, ids) for t, ids in nodes.items()}
        graph = replace(graph, schema=self._schema(graph.columns), originals=originals)
        kept = {t: dict(of_type) for t, of_type in graph.columns.items()}
        return Neighborhood(nodes, graph, kept)

    def _schema(self, columns: Mapping[NodeType | EdgeType, Mapping[str, Tensor]]) -> Schema:
        specs = {
            t: {name: replace(spec, num_classes=self._num_classes(t, name)) for name, spec in of_type.items()}
            for t, of_type in column_specs(columns).items()
        }
        return replace(self.base.schema, columns=specs)

    def _num_classes(self, type_: NodeType | EdgeType, name: str) -> int | None:
        spec = self.specs.get(type_, {}).get(name)
        return None if spec is None else spec.num_classes

    def _original_ids(self, node_type: NodeType, nodes: Tensor) -> Tensor:
        """Return the ids that key draws: as in a graph with the later rows last."""
        originals, count = self.base.original_ids(node_type), self.base.num_nodes(node_type)
        if originals is None:
            return nodes
        return torch.cat([originals[nodes[nodes < count]], nodes[nodes >= count]])

    def _node_columns(self, node_type: NodeType, nodes: Tensor) -> dict[str, Tensor]:
        count, new = self.base.num_nodes(node_type), self.new(node_type)
        old, at = nodes[nodes < count], new[nodes[nodes >= count] - count]
        names = tuple(self.specs.get(node_type, {}))
        rows = Rows(old, names, as_float32=frozenset(names))
        before = self.features.gather({node_type: rows})[node_type] if names else {}
        given = self.later.columns.get(node_type, {})
        return {
            name: torch.cat([values, _new_rows(given.get(name), at, values)])
            for name, values in before.items()
        }

    def _edge_columns(self, edge_type: EdgeType, in_base: Tensor, in_later: Tensor) -> dict[str, Tensor]:
        given = self.later.columns.get(edge_type, {})
        found = {}
        for name in self.specs.get(edge_type, {}):
            before = self.base.columns[edge_type][name][in_base]
            found[name] = torch.cat([before, _new_rows(given.get(name), in_later, before)])
        return found


def _new_rows(column: Tensor | None, at: Tensor, like: Tensor) -> Tensor:
    """Return rows of later data in the dtype of the graph; unknown values where they have no such column."""
    if column is None:
        return like.new_full((at.numel(), *like.shape[1:]), _UNKNOWN.get(like.dtype, 0))
    return column[at].to(like.dtype)


def _of(frontier: Mapping[NodeType, Tensor], node_type: NodeType) -> list[Tensor]:
    return [frontier[node_type]] if node_type in frontier else []


def _joined(ids: list[Tensor]) -> Tensor:
    found: Tensor = torch.cat(ids).unique()
    return found


def _without(ids: Tensor, known: Tensor) -> Tensor:
    return ids[~torch.isin(ids, known)]


def _spans(begins: Tensor, counts: Tensor) -> Tensor:
    """Return the positions of consecutive ranges: `counts` from each of `begins` on."""
    before = counts.cumsum(0) - counts
    positions: Tensor = torch.arange(int(counts.sum())) + (begins - before).repeat_interleave(counts)
    return positions
