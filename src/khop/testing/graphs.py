"""Small graphs as lists, and hypothesis strategies that generate them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import torch
from hypothesis import strategies as st
from torch import Tensor

from khop.draw import Frontier
from khop.graph.build import write_graph
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.graph.tables import EdgeTable, NodeTable
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType, NodeType

BUYS = ("user", "buys", "item")
BOUGHT_BY = ("item", "bought-by", "user")
LIKE = ("item", "like", "item")
TIMES, WEIGHTS = st.integers(-9, 9), st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e-6])


@dataclass(frozen=True)
class PlainGraph:
    """A graph as lists: number of nodes, edges in the order of the rows, original ids and columns."""

    counts: Mapping[NodeType, int]
    edges: Mapping[EdgeType, list[tuple[int, int]]]  # (source, destination), in the order of the rows
    original_ids: Mapping[NodeType, list[int]] = field(default_factory=dict)
    columns: Mapping[NodeType | EdgeType, Mapping[str, list[float]]] = field(default_factory=dict)

    @property
    def sort_by(self) -> str | None:
        """The column that rows are sorted by: "time", if there is one."""
        return "time" if any("time" in of_type for of_type in self.columns.values()) else None

    def tensors(self, type_: NodeType | EdgeType) -> dict[str, Tensor]:
        """Return the columns of a type; "time" is int64, others are float32."""
        return {
            name: torch.tensor(column, dtype=torch.int64 if name == "time" else torch.float32)
            for name, column in self.columns.get(type_, {}).items()
        }

    def indptr(self, edge_type: EdgeType) -> list[int]:
        """Return the first edge of each row, and the number of edges."""
        degrees = [0] * self.counts[edge_type[2]]
        for _, destination in self.edges[edge_type]:
            degrees[destination] += 1
        return [0, *accumulate(degrees)]

    def indices(self, edge_type: EdgeType) -> list[int]:
        """Return the source of each edge, in CSC order."""
        return [source for source, _ in self.pairs(edge_type)]

    def pairs(self, edge_type: EdgeType) -> list[tuple[int, int]]:
        """Return source and destination of each edge, in CSC order."""
        return sorted(self.edges[edge_type], key=lambda pair: pair[1])

    def ends(self, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
        """Return sources and destinations, int64 (edges), in the order of the rows."""
        pairs = self.edges[edge_type]
        return int64([source for source, _ in pairs]), int64([destination for _, destination in pairs])

    def in_memory(self) -> CscGraph:
        """Return khop's store of this graph."""
        graph = csc_graph_from_edges(
            self.counts,
            {edge_type: self.ends(edge_type) for edge_type in self.edges},
            columns={type_: self.tensors(type_) for type_ in self.columns},
            sort_by=self.sort_by,
        )
        return replace(graph, originals={t: int64(ids) for t, ids in self.original_ids.items()})

    def written(self, path: Path) -> Path:
        """Write the graph as a folder and return its path."""
        originals = {t: {"original_id": int64(ids)} for t, ids in self.original_ids.items()}
        nodes = {
            t: NodeTable(count, self.tensors(t) | originals.get(t, {})) for t, count in self.counts.items()
        }
        edges = {t: EdgeTable(*self.ends(t), columns=self.tensors(t)) for t in self.edges}
        return write_graph(path, nodes, edges, sort_by=self.sort_by)


SHOP = PlainGraph(
    counts={"user": 6, "item": 9},
    edges={
        BUYS: [(user, item) for item in range(8) for user in range(6) if (user * item) % 4 != 3],
        BOUGHT_BY: [(item, user) for item in range(8) for user in range(6) if (user * item) % 4 != 3],
        LIKE: [(a, b) for a in range(9) for b in range(7) for _ in range(1 + (a + b) % 3)],
    },
)  # item 8 has no edge into it, LIKE has self loops and several edges between two nodes


@st.composite
def plain_graphs(draw: st.DrawFn) -> PlainGraph:
    """Draw a graph of two node types and three edge types; some types have original ids."""
    counts = {"user": draw(st.integers(1, 5)), "item": draw(st.integers(1, 5))}
    edges = {}
    for edge_type in draw(st.permutations([BUYS, BOUGHT_BY, LIKE])):
        ends = (st.integers(0, counts[node_type] - 1) for node_type in (edge_type[0], edge_type[2]))
        edges[edge_type] = draw(st.lists(st.tuples(*ends), max_size=40))
    original_ids = {
        node_type: draw(st.lists(st.integers(0, 1 << 62), min_size=count, max_size=count, unique=True))
        for node_type, count in counts.items()
        if draw(st.booleans())
    }
    return PlainGraph(counts, edges, original_ids)


@st.composite
def plain_graphs_with_columns(draw: st.DrawFn) -> PlainGraph:
    """Draw times of edges, of nodes, of both or of neither, and weights of some edge types."""
    plain = draw(plain_graphs())
    columns: dict[NodeType | EdgeType, dict[str, list[float]]] = {
        "user": {"time": []},
        BUYS: {"weight": [], "time": []},
    }
    types: list[NodeType | EdgeType] = [*plain.counts, *plain.edges]
    for type_ in types:
        columns.setdefault(type_, {})
        size = plain.counts[type_] if isinstance(type_, str) else len(plain.edges[type_])
        if type_ in ("user", BUYS) or draw(st.booleans()):
            columns[type_]["time"] = draw(st.lists(TIMES.map(float), min_size=size, max_size=size))
        if type_ == BUYS or (isinstance(type_, tuple) and draw(st.booleans())):
            columns[type_]["weight"] = draw(st.lists(WEIGHTS, min_size=size, max_size=size))
    return replace(plain, columns=columns)


@st.composite
def plain_seeds(draw: st.DrawFn, plain: PlainGraph) -> dict[NodeType, list[int]]:
    """Draw seeds of some types, with duplicates, or none."""
    return {
        node_type: draw(st.lists(st.integers(0, count - 1), max_size=5))
        for node_type, count in plain.counts.items()
        if draw(st.booleans())
    }


def ring(num_nodes: int, degree: int) -> PlainGraph:
    """Return a graph with edges into node i from i + 1, ..., i + degree."""
    pairs = [((node + step) % num_nodes, node) for node in range(num_nodes) for step in range(1, degree + 1)]
    return PlainGraph({"node": num_nodes}, {("node", "to", "node"): pairs})


def seeds_of(nodes: Mapping[NodeType, list[int]]) -> Seeds:
    """Return seed nodes; positions count from 0 in each type."""
    tensors = {node_type: int64(ids) for node_type, ids in nodes.items()}
    return Seeds(tensors, {node_type: torch.arange(ids.numel()) for node_type, ids in tensors.items()})


def shop_frontier(*items: int, user: int = 2) -> dict[NodeType, Frontier]:
    """Return a frontier of items and one user of `SHOP`."""
    return {"item": Frontier(int64(list(items))), "user": Frontier(int64([user]))}


def int64(values: list[int]) -> Tensor:
    """Return an int64 tensor."""
    return torch.tensor(values, dtype=torch.int64)
