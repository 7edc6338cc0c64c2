"""Views of a server's graph, cached within a memory budget and recomputed on demand."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from khop.graph.features.store import FeatureStore
from khop.graph.folder import TimeCutOffs
from khop.graph.store import GraphStore
from khop.kernels.id_table import Keys
from khop.kernels.memory import memory_limit_bytes
from khop.sampling.links.link_seeds import LinkList
from khop.schema import NodeType
from khop.servers.messages import View

Value = TypeVar("Value")


class _Entry(Generic[Value]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: list[Value] = []  # the value, once made


class KeptValues(Generic[Value]):
    """A cache of the last values by key. Threads may share it: one makes a value, others wait for it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of values that are cached or being made."""
        return len(self._entries)

    def of(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made now if it is not cached. Errors of `make` are not cached."""
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
    """Return the size of each memory block behind the tensors that a value refers to, by address.

    Follows khop's objects, mappings, lists and partial functions. `seen` has the identities of objects to
    skip, and gets those of visited objects.
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
    made: list[object] = field(default_factory=list)  # the value, once made
    uses: int = 0


class KeptViews:
    """An LRU cache of views by key. Threads may share it.

    One thread makes a view, others wait for it. Memory counts tensors that the graph `base` does not have,
    once if several views share them. The view that was used last is kept even if it exceeds the limit. A
    dropped view stays in memory while batches use it.
    """

    def __init__(self, base: object, most_bytes: int) -> None:
        self._base, self._most_bytes = base, most_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _ViewEntry] = OrderedDict()
        self._made = self._dropped = 0

    def of(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the view of a key, made now if it is not cached. Errors of `make` are not cached."""
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
        """Return the number of views, their bytes, and how many were made and dropped since the start."""
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
        """Drop views until the rest fits in the budget."""
        with self._lock:
            sizes = self._up_to()
            for place, (key, size) in enumerate(sizes.items()):
                if place and (size > self._most_bytes or place >= _MOST_VIEWS):
                    del self._entries[key]
                    self._dropped += 1

    def _up_to(self) -> dict[Hashable, int]:
        """Return the finished views, last used first, with their bytes and the running total."""
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
    links: Mapping[str, LinkList] = field(default_factory=dict)  # by part of a link split


class Served(Protocol):
    """The graph of a server. Threads may share it."""

    @property
    def name(self) -> str:
        """Name of the graph in messages and in the `graphs` of token files."""
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
        """Node ids of each split by type, memory-mapped."""
        ...

    @property
    def own_ids(self) -> Mapping[NodeType, Keys]:
        """The users' ids by node, memory-mapped, for the node types that have them."""
        ...

    @property
    def labels(self) -> Mapping[NodeType, Mapping[str, Any]]:
        """Label records of the graph's import, with class names and units, by node type."""
        ...

    @property
    def views(self) -> KeptViews:
        """The cached views, with their memory."""
        ...

    def viewed(self, view: View) -> Viewed:
        """Return the graph after the steps of a view: fewer edge types, a part of a split of links.

        The result depends only on the graph and the steps, so it is the same on every server. It is the same
        object while it is cached in `views`.
        """
        ...
