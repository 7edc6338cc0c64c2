"""Values that take time to make, each made once and kept while it is used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


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
