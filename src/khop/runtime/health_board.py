"""Notes that ranks exchange through the store: the stage of each rank, and the errors that ended ranks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

from khop.runtime.torch_types import Store

ANSWER_S = 5.0  # for an answer of the store over any network, after a failure
_FAILURES, _BROKEN = "failures", "broken"


@dataclass(frozen=True)
class Status:
    """State of a rank: host, stage, epoch, step and number of heartbeats."""

    host: str
    stage: str = "starting"
    epoch: int = 0
    step: int = 0
    count: int = 0  # stages entered so far; all ranks enter the same ones
    beat: int = 0

    @property
    def place(self) -> str:
        """The stage in words, with epoch and step where there is a step."""
        return self.stage if self.step < 0 else f"{self.stage} in epoch {self.epoch}, step {self.step}"


class HealthBoard:
    """The status and failures of all ranks, kept in the store of the rendezvous.

    If the network to the store is cut, calls to it return neither a value nor an error. Reads, and reports of
    failures, therefore wait ANSWER_S at most; after the first timeout they return nothing at once. Only
    `beat` may block without limit.
    """

    def __init__(self, telling: Store, asking: Store, world_size: int, where: str) -> None:
        """Take two connections to the store: a call that blocks on one delays every other call on it."""
        self.where = where  # the store, in words
        self._telling = telling  # used by the heartbeat thread alone
        self._asking = asking
        self._world_size = world_size
        self._is_silent = False

    def beat(self, rank: int, status: Status) -> bool:
        """Write the status of this rank, and return True if some rank has declared the group broken.

        RuntimeError if the store is gone.
        """
        self._telling.set(f"status/{rank}", json.dumps(asdict(status)))
        return self._telling.check([_BROKEN])

    def statuses(self) -> dict[int, Status]:
        """Return the status of every rank; {} if the store is gone or unreachable."""
        keys = [f"status/{rank}" for rank in range(self._world_size)]
        texts: list[bytes] = []
        self._within(lambda: texts.extend(self._asking.multi_get(keys)))
        return {rank: Status(**json.loads(text)) for rank, text in enumerate(texts)}

    def failures(self) -> list[str]:
        """Return one sentence for each rank that has reported its own error."""
        texts: list[bytes] = []

        def read() -> None:
            count = self._asking.add(_FAILURES, 0)
            texts.extend(self._asking.multi_get([f"{_FAILURES}/{n}" for n in range(1, count + 1)]))

        self._within(read)
        return [text.decode() for text in texts]

    def tell_failure(self, sentence: str) -> None:
        """Report that this rank ends with its own error."""

        def write() -> None:
            number = self._asking.add(_FAILURES, 1)
            self._asking.set(f"{_FAILURES}/{number}", sentence)

        self._within(write)

    def tell_broken(self) -> None:
        """Declare the group broken: every rank has to end."""
        self._within(lambda: self._asking.set(_BROKEN, "1"))

    def _within(self, ask: Callable[[], object]) -> None:
        if self._is_silent:
            return
        try:
            self._is_silent = not within(ANSWER_S, ask)
        except RuntimeError:  # the store is gone, so nothing can be read or reported any more
            self._is_silent = True


def within(seconds: float, ask: Callable[[], object]) -> bool:
    """Run a blocking call in a thread; return True if it ended within `seconds`, else leave it running.

    An exception of the call is raised here.
    """
    problems: list[BaseException] = []

    def asking() -> None:
        try:
            ask()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=asking, name="khop-asking", daemon=True)
    thread.start()
    thread.join(seconds)
    for problem in problems:
        raise problem
    return not thread.is_alive()
