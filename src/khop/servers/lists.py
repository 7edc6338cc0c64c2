"""Seed lists and rows of columns that a server looks up for its clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from khop.features.store import Rows
from khop.loading.seed_times import seed_times
from khop.sampling.link_seeds import LinkList
from khop.sampling.seeds import NodeSeeds, SeedList
from khop.schema import ColumnSpec
from khop.servers.counts import check_numbers, read_nodes
from khop.servers.errors import InvalidRequest, TooLarge
from khop.servers.frame import DTYPES, Frame, Tensors
from khop.servers.json_fields import Document, Type, by_type
from khop.servers.name_answers import LABELS, NODE_IDS, label_answer, node_ids_answer
from khop.servers.served import Answered, Served

LIST, IDS, LINKS, ROWS = "list", "ids", "links", "rows"  # kinds of requests beside batches
IN_DEGREES = "in-degrees"
MOST_NODES = 1 << 20  # whose in-degrees are requested at once
MOST_ROWS_BYTES = 1 << 29  # of one answer; clients request an eighth of it at a time
FACTS = ("labels", "times", "negatives", "relations")


class _Answer(Protocol):
    def __call__(self, served: Served, frame: Frame) -> Answered: ...


class _BoundedAnswer(Protocol):
    def __call__(self, served: Served, frame: Frame, max_bytes: int | None) -> Answered: ...


def answered(served: Served, kind: str, frame: Frame, max_bytes: int | None = None) -> Answered:
    """Return the answer to a request of a kind; ValueError for a kind that there is not.

    TooLarge for rows of columns that would have more than `max_bytes`. Ids of nodes are cut off there.
    """
    if kind in _ANSWERS:
        fields, tensors = _ANSWERS[kind](served, frame)
    elif kind in _BOUNDED:
        fields, tensors = _BOUNDED[kind](served, frame, max_bytes)
    else:
        known = ", ".join(["batch", *_ANSWERS, *_BOUNDED])
        raise InvalidRequest(f"request of kind {kind!r}: this server answers {known}")
    return {"kind": kind, "graph": served.fingerprint, **fields}, tensors


def seed_list(served: Served, reference: Document) -> SeedList:
    """Return the list of seeds that a reference names: nodes of a split, or links of a part."""
    if reference.given("part") is not None:
        return link_list(served, reference)
    nodes = _split(served, reference)
    column = reference.given("times")
    if column is None:
        return NodeSeeds(nodes)
    whole = served.whole
    return NodeSeeds(nodes, seed_times(column.text(), nodes, whole.graph.schema, whole.features))


def link_list(served: Served, reference: Document) -> LinkList:
    """Return the links of a part of a split of links."""
    links, part = served.viewed(reference["view"]).links, reference["part"].text()
    if part not in links:
        raise ValueError(f"links of part {part!r}: the view has those of {list(links)}")
    return links[part]


def _split(served: Served, reference: Document) -> dict[str, Tensor]:
    name = reference["split"].text()
    if name not in served.splits:
        raise ValueError(f"no split {name!r}; there are {list(served.splits)}")
    of_types = served.splits[name]
    types = [each.text() for each in reference["types"].each()]
    for node_type in types:
        if node_type not in of_types:
            raise ValueError(f"split {name!r}: has nodes of {list(of_types)}, none of {node_type!r}")
    return {t: of_types[t] for t in types}


def _list(served: Served, frame: Frame) -> Answered:
    """Describe a list: counts by type, the given facts of links, and the digest."""
    reference = frame.document["list"]
    if reference.given("part") is not None:
        links = link_list(served, reference)
        counts, facts = by_type(links.counts), list(links.facts)
        return {"counts": counts, "facts": facts, "digest": links.digest()}, Tensors()
    found = seed_list(served, reference)
    counts = by_type({t: count for t, count in found.counts.items()})
    return {"counts": counts, "facts": [], "digest": found.digest()}, Tensors()


def _ids(served: Served, frame: Frame) -> Answered:
    """Return ids of a split, from one number to another."""
    (ids,) = _split(served, frame.document["list"]).values()
    first, last = frame.document["first"].whole(0, ids.numel()), frame.document["last"].whole(0, ids.numel())
    tensors = Tensors()
    return {"ids": tensors(ids[first:last])}, tensors


def _links(served: Served, frame: Frame) -> Answered:
    """Return links of a list by their numbers."""
    edge_type = frame.document["type"].type_()
    links = link_list(served, frame.document["list"])
    if not isinstance(edge_type, tuple) or edge_type not in links.counts:
        raise ValueError(f"links of {edge_type!r}: the list has those of {list(links.counts)}")
    numbers = frame.tensor(frame.document["numbers"])
    check_numbers(numbers, links.counts[edge_type], "link")
    found = links.rows(edge_type, numbers)
    tensors = Tensors()
    facts = {name: tensors.given(getattr(found, name)) for name in FACTS}
    return {"edges": tensors(found.edges), **facts}, tensors


def _rows(served: Served, frame: Frame, max_bytes: int | None) -> Answered:
    """Return rows of columns of one type by their ids."""
    _check_size(served, frame, max_bytes)
    given = frame.document
    type_: Type = given["type"].type_()
    viewed = served.viewed(given["view"])
    names = tuple(name.text() for name in given["columns"].each())
    for name in names:
        viewed.graph.schema.column(type_, name)
    ids = frame.tensor(given["ids"])
    count = viewed.graph.num_nodes(type_) if isinstance(type_, str) else viewed.graph.num_edges(type_)
    check_numbers(ids, count, "row")
    widened = frozenset(name.text() for name in given["float32"].each())
    found: Mapping[str, Tensor] = viewed.features.gather({type_: Rows(ids, names, as_float32=widened)})[type_]
    tensors = Tensors()
    return {"rows": {name: tensors(found[name]) for name in names}}, tensors


def _in_degrees(served: Served, frame: Frame) -> Answered:
    """Return the number of in-edges of some nodes along one edge type."""
    given = frame.document
    graph, edge_type = served.viewed(given["view"]).graph, given["type"].type_()
    if not isinstance(edge_type, tuple) or edge_type not in graph.schema.edge_types:
        raise ValueError(f"in-degrees of {edge_type!r}: the graph has {list(graph.schema.edge_types)}")
    nodes = read_nodes(frame, MOST_NODES)
    check_numbers(nodes, graph.num_nodes(edge_type[2]), "node")
    tensors = Tensors()
    return {"counts": tensors(graph.in_degrees(edge_type, nodes))}, tensors


def _check_size(served: Served, frame: Frame, max_bytes: int | None) -> None:
    """Raise TooLarge for rows of more bytes than allowed, before any work."""
    given, schema = frame.document, served.whole.graph.schema
    type_, names = given["type"].type_(), [name.text() for name in given["columns"].each()]
    size = frame.tensor(given["ids"]).numel() * sum(_row_bytes(schema.column(type_, n)) for n in names)
    most = MOST_ROWS_BYTES if max_bytes is None else min(MOST_ROWS_BYTES, max_bytes)
    if size > most:
        raise TooLarge(
            f"rows of {', '.join(names)}: {size:,} bytes are requested at once, and this server sends "
            f"at most {most:,}; request fewer rows at a time, or start the servers with a larger "
            "--max-batch-bytes"
        )


def _row_bytes(spec: ColumnSpec) -> int:
    """Return the bytes of a row of a column, also as float32."""
    return math.prod(spec.shape) * max(4, DTYPES[spec.dtype].itemsize)


_ANSWERS: dict[str, _Answer] = {
    LIST: _list,
    IDS: _ids,
    LINKS: _links,
    IN_DEGREES: _in_degrees,
    LABELS: label_answer,
}
_BOUNDED: dict[str, _BoundedAnswer] = {ROWS: _rows, NODE_IDS: node_ids_answer}
