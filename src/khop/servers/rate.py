"""Rate of the requests of each token, bounded."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from khop.servers.errors import Busy

_TOKENS = 4096  # of which the last requests are remembered


class RequestRate:
    """A budget of requests per second for each owner of requests; a second's worth may come at once."""

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._now = per_second, now
        self._lock = threading.Lock()
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests, and when

    def take(self, owner: str) -> None:
        """Count a request; Busy if it comes too early."""
        with self._lock:
            spent, before = self._spent.pop(owner, (0.0, 0.0))
            now = self._now()
            spent = max(0.0, spent - (now - before) * self._per_second)
            is_early = spent + 1 > max(1.0, self._per_second)
            self._spent[owner] = (spent if is_early else spent + 1, now)
            while len(self._spent) > _TOKENS:
                self._spent.popitem(last=False)
        if is_early:
            raise Busy(
                f"{owner} sends more than {self._per_second:g} requests per second; ask later, or start the "
                "server with a larger --max-rate"
            )
