"""Text summary of a graph, in five lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from khop.errors import Unsupported
from khop.graph.folder import Folder
from khop.graph.store import GraphStore
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema

WIDTH = 100  # of a line; the rest is left out and replaced by "..."


class Counted(Protocol):
    """Ids of nodes: a tensor, or a list elsewhere."""

    def numel(self) -> int:
        """Return the number of ids."""
        ...


class Described(Protocol):
    """A graph with its columns and splits: `khop.Graph`."""

    @property
    def topology(self) -> GraphStore:
        """Graph store with the edges."""
        ...

    @property
    def folder(self) -> Folder | None:
        """Folder of the graph; None for a graph in memory."""
        ...

    @property
    def schema(self) -> Schema:
        """Node types, edge types and their columns."""
        ...

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits; each belongs to at least one node type."""
        ...

    def split(self, name: str) -> Mapping[NodeType, Counted]:
        """Return the ids of a split."""
        ...


def graph_text(graph: Described) -> str:
    """Return five lines: location, nodes, edges, columns and splits. No column or split is read."""
    schema = graph.schema
    servers = graph.topology.servers
    place = "in memory" if servers is None else f"on servers {', '.join(servers.addresses)}"
    if graph.folder is not None:
        place = f"of {graph.folder.path}"
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
    """Return as many parts as fit, or at least the beginning of the first."""
    text = f"  {what}  {separator.join(parts) or 'none'}"
    if len(text) <= WIDTH:
        return text
    kept = text[: WIDTH - 4].rpartition(separator)[0]
    has_one = len(kept) > len(f"  {what}  ")
    return f"{kept}{separator}..." if has_one else f"{text[: WIDTH - 4]} ..."


def _edges(graph: Described, edge_type: EdgeType) -> str:
    """Return an edge type, with its count if this process knows it."""
    if graph.folder is not None:
        return f"{_type(edge_type)} {graph.folder.num_edges(edge_type):,}"
    try:
        return f"{_type(edge_type)} {graph.topology.num_edges(edge_type):,}"
    except Unsupported:
        return _type(edge_type)


def _type(type_: NodeType | EdgeType) -> str:
    return type_ if isinstance(type_, str) else " ".join(type_)


def _columns(specs: Mapping[str, ColumnSpec]) -> str:
    return ", ".join(f"{name} {_dtype(spec)}" for name, spec in specs.items())


def _dtype(spec: ColumnSpec) -> str:
    shape = f"[{', '.join(map(str, spec.shape))}]" if spec.shape else ""
    if spec.sparse_width is not None:
        return f"sparse float32[{spec.sparse_width}]"
    classes = f" ({spec.num_classes} classes)" if spec.num_classes else ""
    return f"{spec.dtype}{shape}{classes}"
