"""A graph in five lines, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from khop.graph.csc_graph import CscGraph
from khop.graph.folder import Folder
from khop.graph.store import GraphStore
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema

WIDTH = 100  # of a line; what does not fit is left out, and "..." says so


class Described(Protocol):
    """A graph with its columns and splits: `khop.Graph`."""

    @property
    def topology(self) -> GraphStore:
        """The edges."""
        ...

    @property
    def folder(self) -> Folder | None:
        """The folder; None of a graph in memory."""
        ...

    @property
    def schema(self) -> Schema:
        """Node types, edge types and their columns."""
        ...

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that some node type has."""
        ...

    def split(self, name: str) -> Mapping[NodeType, Tensor]:
        """The ids of a split."""
        ...


def graph_text(graph: Described) -> str:
    """Five lines: the place, nodes, edges, columns and splits. No value of a column or a split is read."""
    schema = graph.schema
    place = "in memory" if graph.folder is None else f"of {graph.folder.path}"
    nodes = [f"{node_type} {graph.topology.num_nodes(node_type):,}" for node_type in schema.node_types]
    edges = [_edges(graph, edge_type) for edge_type in schema.edge_types]
    columns = [f"{_type(t)}: {_columns(of_type)}" for t, of_type in schema.columns.items() if of_type]
    sizes = [
        f"{split} " + " + ".join(f"{ids.numel():,} {node_type}" for node_type, ids in by_type.items())
        for split in graph.split_names
        for by_type in [graph.split(split)]
    ]
    return "\n".join(
        [
            f"khop.Graph {place}",
            _line("nodes  ", nodes, ", "),
            _line("edges  ", edges, ", "),
            _line("columns", columns, "; "),
            _line("splits ", sizes, ", "),
        ]
    )


def _line(what: str, parts: list[str], separator: str) -> str:
    """As many parts as fit; at least the beginning of the first."""
    text = f"  {what}  {separator.join(parts) or 'none'}"
    if len(text) <= WIDTH:
        return text
    kept = text[: WIDTH - 4].rpartition(separator)[0]
    has_one = len(kept) > len(f"  {what}  ")
    return f"{kept}{separator}..." if has_one else f"{text[: WIDTH - 4]} ..."


def _edges(graph: Described, edge_type: EdgeType) -> str:
    """Without a number where ranks hold the edges and there is no folder that says it."""
    if graph.folder is not None:
        return f"{_type(edge_type)} {graph.folder.num_edges(edge_type):,}"
    if isinstance(graph.topology, CscGraph):
        return f"{_type(edge_type)} {graph.topology.csc(edge_type).num_edges:,}"
    return _type(edge_type)


def _type(type_: NodeType | EdgeType) -> str:
    return type_ if isinstance(type_, str) else " ".join(type_)


def _columns(specs: Mapping[str, ColumnSpec]) -> str:
    return ", ".join(f"{name} {_dtype(spec)}" for name, spec in specs.items())


def _dtype(spec: ColumnSpec) -> str:
    shape = f"[{', '.join(map(str, spec.shape))}]" if spec.shape else ""
    classes = f" ({spec.num_classes} classes)" if spec.num_classes else ""
    return f"{spec.dtype}{shape}{classes}"
