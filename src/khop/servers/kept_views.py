"""Views of a server's graph, kept within a number of bytes and made again when they are needed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from khop.kernels.memory import memory_limit_bytes
from khop.servers.held_bytes import tensor_bytes

Value = TypeVar("Value")
_MOST = 256  # views of no bytes, such as those of fewer edge types
_MEASURED_EVERY = 64  # uses: draws add arrays to a view, such as running sums of weights


def default_view_bytes() -> int:
    """Return a quarter of the memory that this process may use."""
    return memory_limit_bytes() // 4


@dataclass(eq=False)
class _Entry:
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
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._made = self._dropped = 0

    def of(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the view of a key, made now if it is not kept. An error of `make` is raised, not kept."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
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

    def _new(self, key: Hashable, entry: _Entry, make: Callable[[], Value]) -> Value:
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
                if place and (size > self._most_bytes or place >= _MOST):
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
