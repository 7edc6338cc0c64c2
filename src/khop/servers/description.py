"""Description of a graph for clients: types, columns, counts and splits, and no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from khop.draw import RANDOMNESS
from khop.graph.ids_by_node import IdsHere
from khop.graph.import_record import TimeCutOffs
from khop.graph.store import GraphStore
from khop.kernels.id_table import Kind
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema
from khop.servers.errors import WrongVersion
from khop.servers.frame import DTYPES, VERSION
from khop.servers.json_fields import Document, Plain, Type, by_type
from khop.servers.served import Served
from khop.servers.split_arguments import time_of

_MOST = 1 << 62
_KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Description:
    """Facts about the graph on servers that a client has without its data."""

    name: str
    fingerprint: str
    schema: Schema
    nodes: Mapping[NodeType, int]
    edges: Mapping[EdgeType, int]
    splits: Mapping[str, Mapping[NodeType, int]]  # number of nodes
    renumbered: tuple[NodeType, ...]  # types with original ids
    bounds: Mapping[NodeType, tuple[int, ...]]  # (partitions + 1) ids, for types with several partitions
    cut_offs: TimeCutOffs | None
    own_ids: Mapping[NodeType, Kind] = field(default_factory=dict)  # types of the users' ids
    labels: tuple[NodeType, ...] = ()  # node types whose labels the import has recorded
    max_batch_bytes: int | None = None  # of one answer


def described_graph(served: Served) -> dict[str, Plain]:
    """Return the description of a graph as plain values."""
    graph = served.whole.graph
    schema = graph.schema
    return {
        "fingerprint": served.fingerprint,
        "node_types": list(schema.node_types),
        "edge_types": [list(edge_type) for edge_type in schema.edge_types],
        "reverse_of": by_type({t: list(back) for t, back in schema.reverse_of.items()}),
        "columns": by_type(
            {
                t: {name: _spec(spec) for name, spec in columns.items()}
                for t, columns in schema.columns.items()
            }
        ),
        "nodes": by_type({t: graph.num_nodes(t) for t in schema.node_types}),
        "edges": by_type({t: graph.num_edges(t) for t in schema.edge_types}),
        "splits": {
            name: by_type({t: ids.numel() for t, ids in of_types.items()})
            for name, of_types in served.splits.items()
        },
        "bounds": by_type({t: list(ends) for t, ends in _bounds(graph).items()}),
        "cut_offs": None if served.cut_offs is None else vars(served.cut_offs),
        "own_ids": by_type({t: IdsHere(keys).kind for t, keys in served.own_ids.items()}),
        "labels": list(served.labels),
        "renumbered": [t for t in schema.node_types if graph.original_ids(t) is not None],
    }


def read_description(text: bytes, where: str) -> Description:
    """Read the description that a server gives; WrongVersion if it speaks another one than this khop."""
    given = Document.parsed(text, f"graph of {where}")
    for name, here in (("wire", VERSION), ("randomness", RANDOMNESS)):
        if given[name].whole() != here:
            raise WrongVersion(
                f"{where} has version {given[name].whole()} of {name}, and this khop has version {here}; "
                "install the same khop on clients and servers"
            )
    edge_types = tuple(_edge_type(each.type_()) for each in given["edge_types"].each())
    columns: dict[Type, Mapping[str, ColumnSpec]] = {
        type_: {name: _read_spec(of_type[name]) for name in of_type.names()}
        for type_, of_type in given["columns"].entries()
    }
    reverse_of = {_edge_type(t): _edge_type(back.type_()) for t, back in given["reverse_of"].entries()}
    schema = Schema(tuple(t.text() for t in given["node_types"].each()), edge_types, reverse_of, columns)
    return Description(
        given["name"].text(),
        given["fingerprint"].text(),
        schema,
        _counts(given["nodes"]),
        {_edge_type(t): count.whole(0, _MOST) for t, count in given["edges"].entries()},
        {name: _counts(given["splits"][name]) for name in given["splits"].names()},
        tuple(each.text() for each in given["renumbered"].each()),
        {str(t): tuple(n.whole(0, _MOST) for n in ends.each()) for t, ends in given["bounds"].entries()},
        _cut_offs(given.given("cut_offs")),
        {str(t): _kind(of_type) for t, of_type in given["own_ids"].entries()},
        tuple(each.text() for each in given["labels"].each()),
        None if (most := given.given("max_batch_bytes")) is None else most.whole(1, _MOST),
    )


def _bounds(graph: GraphStore) -> dict[NodeType, tuple[int, ...]]:
    """Return the bounds of partitions, by which clients divide nodes into chunks as a local process does."""
    bounds = {t: graph.partition_bounds(t) for t in graph.schema.node_types}
    return {t: ends for t, ends in bounds.items() if len(ends) > 2}


def _spec(spec: ColumnSpec) -> Plain:
    scales = None if spec.scales is None else list(spec.scales)
    return {
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "num_classes": spec.num_classes,
        "scales": scales,
        "sparse_width": spec.sparse_width,
    }


def _read_spec(given: Document) -> ColumnSpec:
    dtype, classes, scales = given["dtype"].text(), given.given("num_classes"), given.given("scales")
    if dtype not in DTYPES:
        raise ValueError(f"{given.where}.dtype: {dtype} is none of {', '.join(DTYPES)}")
    return ColumnSpec(
        dtype,
        tuple(length.whole(0, _MOST) for length in given["shape"].each()),
        None if classes is None else classes.whole(0, _MOST),
        None if scales is None else tuple(scale.real() for scale in scales.each()),
        None if (width := given.given("sparse_width")) is None else width.whole(1, _MOST),
    )


def _kind(given: Document) -> Kind:
    for kind in _KINDS:
        if given.text() == kind:
            return kind
    raise ValueError(f"{given.where}: is {given.text()!r}, and must be one of {', '.join(_KINDS)}")


def _cut_offs(given: Document | None) -> TimeCutOffs | None:
    return None if given is None else TimeCutOffs(time_of(given["val"]), time_of(given["test"]))


def _counts(given: Document) -> dict[NodeType, int]:
    return {str(t): count.whole(0, _MOST) for t, count in given.entries()}


def _edge_type(type_: Type) -> EdgeType:
    if isinstance(type_, str):
        raise ValueError(f"{type_!r}: is no edge type")
    return type_
