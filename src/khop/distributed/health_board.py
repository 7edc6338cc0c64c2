"""What the ranks write for one another to read when a wait fails: where each stands, and why it ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

from khop.distributed.torch_types import Store

ANSWER_S = 5.0  # for the store to answer, over whatever network, once something has failed
_FAILURES, _BROKEN = "failures", "broken"


@dataclass(frozen=True)
class Status:
    """Where a rank stands."""

    host: str
    stage: str = "starting"
    epoch: int = 0
    step: int = 0
    count: int = 0  # stages so far; all ranks go through the same ones
    beat: int = 0

    @property
    def place(self) -> str:
        """In words."""
        return self.stage if self.step < 0 else f"{self.stage} in epoch {self.epoch}, step {self.step}"


class HealthBoard:
    """The ranks' notes in the store where they met.

    Behind a link that is cut a store answers nothing, not even an error. So whoever reads, or tells why it
    ends, waits for ANSWER_S at most, and gets nothing from then on; `beat` alone may block for ever.
    """

    def __init__(self, telling: Store, asking: Store, world_size: int, where: str) -> None:
        """Two connections: a call that waits on one holds up all others on it."""
        self.where = where  # the store, in words
        self._telling = telling  # of the thread that beats
        self._asking = asking
        self._world_size = world_size
        self._is_silent = False

    def beat(self, rank: int, status: Status) -> bool:
        """Tell where the rank stands; whether some rank has said that all have to end.

        RuntimeError where the store is gone.
        """
        self._telling.set(f"status/{rank}", json.dumps(asdict(status)))
        return self._telling.check([_BROKEN])

    def statuses(self) -> dict[int, Status]:
        """Where every rank stands; {} of a store that is gone or out of reach."""
        keys = [f"status/{rank}" for rank in range(self._world_size)]
        told: list[bytes] = []
        self._within(lambda: told.extend(self._asking.multi_get(keys)))
        return {rank: Status(**json.loads(text)) for rank, text in enumerate(told)}

    def failures(self) -> list[str]:
        """How ranks have ended by errors of their own, a sentence each, of those that have told."""
        told: list[bytes] = []

        def read() -> None:
            count = self._asking.add(_FAILURES, 0)
            told.extend(self._asking.multi_get([f"{_FAILURES}/{n}" for n in range(1, count + 1)]))

        self._within(read)
        return [text.decode() for text in told]

    def tell_failure(self, sentence: str) -> None:
        """This rank ends with an error of its own."""

        def write() -> None:
            number = self._asking.add(_FAILURES, 1)
            self._asking.set(f"{_FAILURES}/{number}", sentence)

        self._within(write)

    def tell_broken(self) -> None:
        """All have to end."""
        self._within(lambda: self._asking.set(_BROKEN, "1"))

    def _within(self, ask: Callable[[], object]) -> None:
        if self._is_silent:
            return
        try:
            self._is_silent = not within(ANSWER_S, ask)
        except RuntimeError:  # the store has gone first: there is nobody left to ask or tell
            self._is_silent = True


def within(seconds: float, ask: Callable[[], object]) -> bool:
    """Whether a call to others has come back in so many seconds; if not, it stays behind in a thread.

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
