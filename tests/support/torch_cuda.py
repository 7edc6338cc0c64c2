"""torch.cuda without a GPU: its current stream, checks of waits, captures, and the pools of its allocator.

It behaves as torch 2.6 does: an error within a capture keeps the pool in use for ever.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import pytest
import torch

Pool = tuple[int, int]


@dataclass(eq=False)
class Stream:
    """A stream of the first GPU."""

    name: str
    priority: int = 0
    device: torch.device = torch.device("cuda", 0)  # noqa: RUF009
    device_index: int = 0

    def wait_stream(self, other: Stream) -> None:
        pass

    def synchronize(self) -> None:
        pass


@dataclass(eq=False)
class Generator:
    """A generator whose state a failed capture keeps in use."""

    offset: int = 0
    is_captured: bool = False

    def clone_state(self) -> Generator:
        return Generator(self.offset)

    def graphsafe_set_state(self, state: Generator) -> None:
        self.offset, self.is_captured = state.offset, state.is_captured


@dataclass(eq=False)
class StreamContext:
    """A block with another current stream; as that of torch, it does nothing if it is never left."""

    card: Card
    stream: Stream

    def __enter__(self) -> None:
        self.before, self.card.current = self.card.current, self.stream

    def __exit__(self, *_: object) -> None:
        self.card.current = self.before


@dataclass(eq=False)
class Card:
    """State of torch.cuda."""

    current: Stream = field(default_factory=lambda: Stream("current"))
    sync_mode: int | str = 0
    generator: Generator = field(default_factory=Generator)
    underway: set[Pool] = field(default_factory=set)  # allocations go there
    uses: Counter[Pool] = field(default_factory=Counter)  # of pools by graphs
    captures: list[tuple[Pool, str]] = field(default_factory=list)
    launched: list[tuple[Stream, bool]] = field(default_factory=list)  # whether in a capture
    is_invalid: bool = False  # the capture that is underway

    def launch(self) -> None:
        self.launched.append((self.current, bool(self.underway)))
        self.generator.offset += 1

    def wait(self) -> None:
        """An operation of torch that waits for the device."""
        if self.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.is_invalid = bool(self.underway)
        if self.underway:
            raise RuntimeError("operation not permitted when stream is capturing")

    def empty_cache(self) -> None:
        assert not self.underway, "captures_underway.empty() INTERNAL ASSERT FAILED"
        self.uses += Counter()  # drops pools without uses

    def end_allocations(self, device: int, pool: Pool) -> None:
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def release(self, device: int, pool: Pool) -> None:
        self.uses[pool] -= 1
        assert self.uses[pool] >= 0, "uc >= 0 INTERNAL ASSERT FAILED"

    def segments(self) -> list[dict[str, Pool]]:
        return [{"segment_pool_id": pool} for pool in self.uses]

    def stream(self, stream: Stream) -> StreamContext:
        return StreamContext(self, stream)

    def set_sync_mode(self, mode: int | str) -> None:
        self.sync_mode = mode

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pools = count(1)
        card = self

        class Graph:
            """A torch.cuda.CUDAGraph."""

            pool: Pool | None = None

            def capture_begin(self, pool: Pool, capture_error_mode: str, **_: object) -> None:
                card.captures.append((pool, capture_error_mode))
                card.underway.add(pool)
                card.uses[pool] += 1
                card.is_invalid, card.generator.is_captured = False, True
                self._begun = pool

            def capture_end(self) -> None:
                if card.is_invalid:
                    raise RuntimeError("operation failed due to a previous error during capture")
                card.underway.remove(self._begun)
                card.generator.is_captured = False
                self.pool = self._begun

            def reset(self) -> None:
                if self.pool is not None:
                    card.release(0, self.pool)
                self.pool = None

            def replay(self) -> None:
                assert self.pool is not None

        for name, value in (
            ("default_generators", (self.generator,)),
            ("graph_pool_handle", lambda: (0, next(pools))),
            ("CUDAGraph", Graph),
            ("stream", self.stream),
            ("current_stream", lambda device=None: self.current),
            ("get_sync_debug_mode", lambda: self.sync_mode),
            ("set_sync_debug_mode", self.set_sync_mode),
            ("synchronize", lambda: None),
            ("empty_cache", self.empty_cache),
            ("memory_snapshot", self.segments),
        ):
            monkeypatch.setattr(torch.cuda, name, value)
        for name, call in (
            ("_host_emptyCache", lambda: None),
            ("_cuda_endAllocateToPool", self.end_allocations),
            ("_cuda_releasePool", self.release),
        ):
            monkeypatch.setattr(torch._C, name, call, raising=False)
