"""Assignment of a stage's chunks to ranks and threads, which make them ahead of the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from khop.inference.layer_stores import Memory
from khop.inference.stages import LayerStore, Stage
from khop.loading.ordered_map import FEW_IN_FLIGHT, InFlight, ordered_map
from khop.runtime.group import ALONE, Group, shared_counter

Made = TypeVar("Made")
SizeOf = Callable[[Made], int]  # in bytes


@dataclass(frozen=True)
class Taken(Generic[Made]):
    """A chunk assigned to this rank."""

    chunk: int
    made: Made  # of its rows
    done: int  # chunks taken so far by all ranks together


class Sharing(Protocol):
    """Strategy for sharing a stage's chunks among ranks. The choice never changes a row."""

    @property
    def group(self) -> Group:
        """The ranks."""
        ...

    @property
    def threads_each(self) -> int:
        """Number of threads that make one chunk together."""
        ...

    def layer_store(self) -> LayerStore:
        """Make a store that holds one layer's rows in memory, for the next layer to read."""
        ...

    def taken(
        self, stage: Stage, missing: Sequence[int], make: Callable[[slice], Made], size_of: SizeOf[Made]
    ) -> Generator[Taken[Made], None, None]:
        """Yield the missing chunks assigned to this rank, each with the result of `make` for its rows.

        Threads make chunks ahead. Collective: all ranks pass the same stage and the same missing chunks.
        """
        ...


@dataclass(frozen=True)
class DynamicChunks:
    """Sharing through a counter for all threads of all ranks: faster ranks compute more chunks."""

    group: Group = ALONE
    in_flight: InFlight = FEW_IN_FLIGHT

    @property
    def threads_each(self) -> int:
        """One: each thread makes its chunks alone."""
        return 1

    def layer_store(self) -> LayerStore:
        """Make a store of all rows, one copy per machine: any rank may need any row."""
        return Memory(self.group)

    def taken(
        self, stage: Stage, missing: Sequence[int], make: Callable[[slice], Made], size_of: SizeOf[Made]
    ) -> Generator[Taken[Made], None, None]:
        """Implement `Sharing`."""
        turn_of, is_over = shared_counter(self.group), threading.Event()

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
                if each is not None:  # results are in order of requests, so a chunk may follow a None
                    yield each
