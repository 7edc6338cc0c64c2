"""Description of a graph for clients: types, columns, counts and splits, and no data.

Protocol between a service and the graph that it serves: views of the graph, and their seed lists.

Arguments of a split of links, as clients send them to servers, and servers to each other.

Seed lists and rows of columns that a server looks up for its clients.

The users' names that a server looks up for its clients: ids of nodes, class names, units.

Values that take time to make, each made once and kept while it is used.

Views of a server's graph, kept within a number of bytes and made again when they are needed.

Memory of the tensors that a value refers to.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from khop.draw import RANDOMNESS, DrawKey, Purpose
from khop.graph.features.store import FeatureStore, Rows
from khop.graph.folder import TimeCutOffs
from khop.graph.node_ids import IdsHere
from khop.graph.rule_arrays import check_edge_type
from khop.graph.store import GraphStore
from khop.kernels.id_table import Int64s, Keys, Kind, StringKeys, keys_at
from khop.kernels.memory import memory_limit_bytes
from khop.loading.source import seed_times
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.links.link_split import LinkColumns, Shares
from khop.sampling.seeds import NodeSeeds, SeedList
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema
from khop.servers.errors import InvalidRequest, TooLarge, WrongVersion
from khop.servers.frame import (
    DTYPES,
    VERSION,
    Document,
    Frame,
    Plain,
    Tensors,
    Type,
    by_type,
    check_numbers,
    read_nodes,
)

Value = TypeVar("Value")


_MOST_TIME = (1 << 63) - 1


@dataclass(frozen=True)
class ByColumn:
    """A split of links by their column `split`."""


SplitMethod = Shares | TimeCutOffs | ByColumn  # at random, by time, by a column
_NAMES = {Shares: "random", TimeCutOffs: "time", ByColumn: "column"}


@dataclass(frozen=True)
class SplitArguments:
    """The arguments of a split of links. Equal arguments are equal as plain values, too."""

    edge_types: tuple[EdgeType, ...]
    method: SplitMethod
    columns: LinkColumns
    seed: int

    @property
    def key(self) -> DrawKey:
        """The key of all draws of the split."""
        return DrawKey.of(self.seed, Purpose.SPLIT)

    @property
    def plain(self) -> dict[str, Plain]:
        """The arguments as plain values."""
        return {
            "by": _NAMES[type(self.method)],
            "edge_types": [list(edge_type) for edge_type in self.edge_types],
            **vars(self.method),
            **vars(self.columns),
            "seed": self.seed,
        }

    @classmethod
    def read(cls, given: Document, schema: Schema) -> SplitArguments:
        """Read the arguments of a split of a graph; ValueError names what is wrong."""
        names = (given.given(name) for name in ("label", "time", "relation"))
        columns = LinkColumns(
            given["negatives"].whole(), *(None if name is None else name.text() for name in names)
        )
        edge_types = tuple(edge_type_of(each.type_(), schema) for each in given["edge_types"].each())
        for edge_type in edge_types:
            for name in (columns.label, columns.time, columns.relation):
                if name is not None:
                    schema.column(edge_type, name)
        if not edge_types:
            raise ValueError(f"{given['edge_types'].where}: is empty; name at least one edge type")
        return cls(edge_types, _method(given), columns, given["seed"].whole())


def _method(given: Document) -> SplitMethod:
    match given["by"].text():
        case "random":
            return Shares(_share(given["val"]), _share(given["test"]), given["disjoint_share"].real())
        case "time":
            return TimeCutOffs(time_of(given["val"]), time_of(given["test"]))
        case "column":
            return ByColumn()
        case other:
            raise ValueError(f"{given.where}.by: is {other!r}, and must be one of {list(_NAMES.values())}")


def time_of(given: Document) -> int:
    """Return a time, int64."""
    return given.whole(-_MOST_TIME - 1, _MOST_TIME)


def _share(given: Document) -> float:
    """Return a share, or a count of links as the whole number that it is."""
    return given.whole() if type(given.value) is int else given.real()


def edge_type_of(given: NodeType | EdgeType, schema: Schema) -> EdgeType:
    """Return an edge type that a request names; ValueError if the graph does not have it."""
    if isinstance(given, str):
        raise ValueError(f"{given!r}: is no edge type; there are {list(schema.edge_types)}")
    check_edge_type(given, schema)
    return given


class _Entry(Generic[Value]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: list[Value] = []  # the value, once it is there


class KeptValues(Generic[Value]):
    """The last values by key. Threads may share it: one makes a value, others wait for this value alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of values that are kept or being made."""
        return len(self._entries)

    def of(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made now if it is not kept. An error of `make` is raised, not kept."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        with entry.lock:
            if not entry.made:
                entry.made.append(make())
            return entry.made[0]


def tensor_bytes(value: object, seen: set[int]) -> dict[int, int]:
    """Return the bytes of each block of memory of the tensors that a value refers to, by address.

    Objects of khop, mappings and lists in memory, and partial functions are followed. `seen` has the
    identities of objects to skip, and gets those of the objects that are visited.
    """
    found: dict[int, int] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        else:
            waiting += _referred(each)
    return found


def _referred(value: object) -> list[object]:
    match value:
        case dict():
            return list(value.values())
        case list() | tuple() | set() | frozenset():
            return list(value)
        case partial():
            return [value.func, *value.args, *value.keywords.values()]
    is_of_khop = type(value).__module__.partition(".")[0] == "khop"
    return list(vars(value).values()) if is_of_khop and hasattr(value, "__dict__") else []


_MOST_VIEWS = 256  # views of no bytes, such as those of fewer edge types
_MEASURED_EVERY = 64  # uses: draws add arrays to a view, such as running sums of weights


def default_view_bytes() -> int:
    """Return a quarter of the memory that this process may use."""
    return memory_limit_bytes() // 4


@dataclass(eq=False)
class _ViewEntry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    made: list[object] = field(default_factory=list)  # the value, once it is there
    uses: int = 0


class KeptViews:
    """Views by key, least recently used dropped first. Threads may share it.

    One thread makes a view, others wait for this view alone. Memory of tensors counts that the graph `base`
    does not have, once if several views share it. The view that was used last stays, however large it is. A
    view that is dropped lives on in the batches that use it.
    """

    def __init__(self, base: object, most_bytes: int) -> None:
        self._base, self._most_bytes = base, most_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _ViewEntry] = OrderedDict()
        self._made = self._dropped = 0

    def of(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the view of a key, made now if it is not kept. An error of `make` is raised, not kept."""
        with self._lock:
            entry = self._entries.setdefault(key, _ViewEntry())
            self._entries.move_to_end(key)
            entry.uses += 1
            is_due = entry.uses % _MEASURED_EVERY == 0
        with entry.lock:
            if not entry.made:
                is_due = True
                entry.made.append(self._new(key, entry, make))
        if is_due:
            self._bound()
        return entry.made[0]  # type: ignore[return-value]

    def counts(self) -> Mapping[str, int]:
        """Return the views and their bytes now, and how many were made and dropped since the start."""
        with self._lock:
            sizes = self._up_to()
            return {
                "views": len(sizes),
                "view_bytes": max(sizes.values(), default=0),
                "views_made": self._made,
                "views_dropped": self._dropped,
            }

    def _new(self, key: Hashable, entry: _ViewEntry, make: Callable[[], Value]) -> Value:
        try:
            value = make()
        except BaseException:
            with self._lock:
                if self._entries.get(key) is entry:
                    del self._entries[key]
            raise
        with self._lock:
            self._made += 1
        return value

    def _bound(self) -> None:
        """Drop views until the others have room."""
        with self._lock:
            sizes = self._up_to()
            for place, (key, size) in enumerate(sizes.items()):
                if place and (size > self._most_bytes or place >= _MOST_VIEWS):
                    del self._entries[key]
                    self._dropped += 1

    def _up_to(self) -> dict[Hashable, int]:
        """Return the views that are made, last used first, with the bytes of each and of all before it."""
        seen, total, found = set[int](), 0, dict[Hashable, int]()
        of_base = tensor_bytes(self._base, seen).keys()
        known = set(of_base)
        for key, entry in reversed(self._entries.items()):
            for value in entry.made:
                blocks = tensor_bytes(value, seen)
                total += sum(size for address, size in blocks.items() if address not in known)
                known |= blocks.keys()
                found[key] = total
        return found


@dataclass(frozen=True, eq=False)
class Viewed:
    """A graph for messages, its columns, and the links of the split that it is a part of."""

    graph: GraphStore
    features: FeatureStore
    links: Mapping[str, LinkList] = field(default_factory=dict)  # by part of a split of links


Answered = tuple[dict[str, Plain], Tensors]


class AnswersServers(Protocol):
    """Answers to requests that servers of the parts of a graph send to each other. Threads may share it."""

    @property
    def part(self) -> int:
        """Number of the part that the answers are about."""
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of requests."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Return what was counted so far, beside requests."""
        ...

    def answered(self, kind: str, frame: Frame) -> Answered:
        """Return the answer to a request of a kind; ValueError if it does not fit the part."""
        ...


class Served(Protocol):
    """A graph that a server was started with. Threads may share it."""

    @property
    def name(self) -> str:
        """Name of the graph, in messages and in the lists of graphs that a token may read."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint, equal on all servers of the graph."""
        ...

    @property
    def cut_offs(self) -> TimeCutOffs | None:
        """Cut-offs of a split by time, as the graph's import recorded them; None if it records none."""
        ...

    @property
    def whole(self) -> Viewed:
        """The whole graph."""
        ...

    @property
    def splits(self) -> Mapping[str, Mapping[NodeType, Tensor]]:
        """Node ids of each split by type, mapped from files."""
        ...

    @property
    def own_ids(self) -> Mapping[NodeType, Keys]:
        """The users' ids by node, mapped from files, for the node types that have them."""
        ...

    @property
    def labels(self) -> Mapping[NodeType, Mapping[str, Any]]:
        """Records of labels in the graph's import, with class names and units, by node type."""
        ...

    @property
    def views(self) -> KeptViews:
        """The views that are kept, with their memory."""
        ...

    def viewed(self, view: Document) -> Viewed:
        """Return the graph after the steps of a view: fewer edge types, a part of a split of links.

        The result depends on the graph and the steps alone, so it is the same on every server. It is the same
        object while it is kept in `views`.
        """
        ...


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


NODE_IDS, LABELS = "node-ids", "labels"  # kinds of requests
MOST_IDS = 1 << 20  # nodes whose ids are requested at once
MOST_IDS_BYTES = 1 << 26  # of one answer
_OFFSET = 8  # bytes


def node_ids_answer(served: Served, frame: Frame, max_bytes: int | None) -> Answered:
    """Return the users' ids of some nodes of one type, one or more, in their order.

    An answer has up to `MOST_IDS_BYTES`, or `max_bytes` if they are fewer: clients ask again for the ids of
    the nodes that are left. TooLarge if the first id alone has more.
    """
    node_type = frame.document["type"].text()
    if node_type not in served.own_ids:
        raise ValueError(f"ids of {node_type!r}: the graph stores those of {list(served.own_ids)}")
    keys, nodes = served.own_ids[node_type], read_nodes(frame, MOST_IDS)
    check_numbers(nodes, len(keys), "node")
    rows, most = nodes.numpy(), min(MOST_IDS_BYTES, max_bytes or MOST_IDS_BYTES)
    count = int(np.searchsorted(_ends(keys, rows), most, "right"))
    if len(rows) and not count:
        raise TooLarge(
            f"the id of node {rows[0]} of {node_type!r} has more than the {most:,} bytes that this server "
            "sends at once; start the servers with a larger --max-batch-bytes"
        )
    found, tensors = keys_at(keys, rows[:count]), Tensors()
    if not isinstance(found, StringKeys):
        return {"ids": tensors(torch.from_numpy(found))}, tensors
    text = torch.from_numpy(found.data)
    return {"offsets": tensors(torch.from_numpy(found.offsets)), "text": tensors(text)}, tensors


def label_answer(served: Served, frame: Frame) -> Answered:
    """Return class names and the unit of the labels of a node type, as the graph's import recorded them."""
    node_type = frame.document["type"].text()
    if node_type not in served.labels:
        raise ValueError(f"labels of {node_type!r}: the import recorded those of {list(served.labels)}")
    record = served.labels[node_type]
    fields: dict[str, Plain] = {name: record.get(name) for name in ("classes", "unit")}
    return fields, Tensors()


def _ends(keys: Keys, rows: Int64s) -> Int64s:
    """Return the bytes of the ids of the rows up to each."""
    of_offsets = _OFFSET * np.arange(1, len(rows) + 1)
    if not isinstance(keys, StringKeys):
        return of_offsets
    ends: Int64s = np.cumsum(keys.offsets[rows + 1] - keys.offsets[rows]) + of_offsets
    return ends


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
