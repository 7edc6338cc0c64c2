"""Who makes which chunk of a stage, ahead of the model that the chunks are for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from khop.distributed.group import ALONE, Group
from khop.loading.ordered_map import FEW_IN_FLIGHT, InFlight, ordered_map
from khop.training.layer_stores import Memory
from khop.training.stages import LayerStore, Stage

Made = TypeVar("Made")
SizeOf = Callable[[Made], int]  # in bytes


@dataclass(frozen=True)
class Taken(Generic[Made]):
    """A chunk that has fallen to this rank."""

    chunk: int
    made: Made  # of its rows
    done: int  # chunks that the ranks have taken by now, all together


class Sharing(Protocol):
    """How the ranks share the chunks of a stage. Nothing of it changes a row."""

    @property
    def group(self) -> Group:
        """The ranks."""
        ...

    @property
    def threads_each(self) -> int:
        """So many may make one chunk together."""
        ...

    def layer_store(self) -> LayerStore:
        """Holds in memory what one layer gives, for the next to read."""
        ...

    def taken(
        self, stage: Stage, missing: Sequence[int], make: Callable[[slice], Made], size_of: SizeOf[Made]
    ) -> Generator[Taken[Made], None, None]:
        """Those of the missing chunks that fall to this rank, each with what `make` gives for its rows.

        Made ahead, by threads. Collective: all ranks give the same stage and the same chunks.
        """
        ...


@dataclass(frozen=True)
class DynamicChunks:
    """Whoever asks next gets the next chunk, of all threads of all ranks: who is faster gets more."""

    group: Group = ALONE
    in_flight: InFlight = FEW_IN_FLIGHT

    @property
    def threads_each(self) -> int:
        """One: every thread makes chunks of its own."""
        return 1

    def layer_store(self) -> LayerStore:
        """All rows, once per machine: any rank may come to need any."""
        return Memory(self.group)

    def taken(
        self, stage: Stage, missing: Sequence[int], make: Callable[[slice], Made], size_of: SizeOf[Made]
    ) -> Generator[Taken[Made], None, None]:
        """See `Sharing`."""
        turn_of, is_over = self.group.dealer(), threading.Event()

        def made(_: int) -> Taken[Made] | None:
            turn = len(missing) if is_over.is_set() else turn_of()
            if turn >= len(missing):
                is_over.set()
                return None
            chunk = missing[turn]
            return Taken(chunk, make(stage.span(chunk)), turn + 1)

        def bytes_of(each: Taken[Made] | None) -> int:
            return 0 if each is None else size_of(each.made)

        ahead = ordered_map(made, range(len(missing)), self.in_flight, bytes_of)
        with closing(ahead):
            for each in ahead:
                if each is not None:  # a thread that asked later may still have got the last chunk
                    yield each
