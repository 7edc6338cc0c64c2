"""Messages of bytes between all ranks, in step: each is checked before a byte of it is used."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, pairwise
from zlib import crc32

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from khop.distributed.group import Group, is_broken
from khop.errors import PeerLost

_MAGIC = 0x6B686F70  # "khop"
_HEADER = 4  # int64: magic and kind, epoch and step, number, bytes of the message
_MARK_BYTES = 24  # after a message: the header without the size
_ALIGNED = 8  # bytes to which a message is filled up, so that its numbers can be read in place
_LOOK_AROUND = timedelta(seconds=0.1)  # how often a waiting thread looks whether it should give up


@dataclass(frozen=True)
class Message:
    """What an exchange is about: ranks that do not mean the same one find out."""

    stage: str  # "asking for rows"
    counted: str  # what its bytes are counted as: "id" or "row"

    @property
    def kind(self) -> int:
        """What stands for it in a message."""
        return _MAGIC << 32 | crc32(f"{self.stage}/{self.counted}".encode())


class Peers:
    """The ranks of a group as seen from one thread, or several that take turns.

    What exchanges is collective: every rank calls the same in the same order, with a payload (1-D uint8) for
    each rank, its own included, and gets one from each. A message that is not the expected one is a
    ValueError that names who sent it; a rank that is gone or late is a PeerLost. Alone, nothing is sent.
    """

    def __init__(self, group: Group, channel: ProcessGroup | None = None) -> None:
        self.rank = group.rank
        self.world_size = group.world_size
        self.turn = threading.RLock()  # held by who makes several exchanges that belong together
        self._group = group
        self._channel = channel  # of these exchanges alone; None: alone
        self._place = -1  # epoch and step
        self._number = 0  # of the exchange there
        self._counts: dict[str, float] = defaultdict(float)
        self._is_given_up: Callable[[], bool] = lambda: False

    def begin(self, epoch: int, step: int, is_given_up: Callable[[], bool]) -> None:
        """What follows is for a batch; a wait for others ends when nobody wants it any more."""
        self._place, self._number = epoch << 32 | step, 0
        self._is_given_up = is_given_up
        self._counts = defaultdict(float)

    def count(self, name: str, amount: float) -> None:
        """Note something beside what is sent: "hits"."""
        self._counts[name] += amount

    def counts(self) -> dict[str, float]:
        """Since `begin`: collectives, seconds in them, and bytes of ids and rows, without those to itself."""
        return dict(self._counts)

    def exchange(self, payloads: Sequence[Tensor], message: Message, limit: int) -> list[Tensor]:
        """What every rank has for this one. Two collectives: sizes, and payloads.

        No rank may send more than `limit` bytes.
        """
        if self.world_size == 1:
            return list(payloads)
        headers = torch.tensor(
            [[message.kind, self._place, self._number, payload.numel()] for payload in payloads]
        )
        found = torch.zeros_like(headers)
        self._all_to_all(found.view(-1), headers.view(-1), None, None, message)
        sizes = [self._size(rank, header, message, limit) for rank, header in enumerate(found.tolist())]
        self._count_bytes(message, [8 * _HEADER] * self.world_size, [8 * _HEADER] * self.world_size)
        return self.reply(payloads, sizes, message)

    def reply(self, payloads: Sequence[Tensor], sizes: Sequence[int], message: Message) -> list[Tensor]:
        """What every rank has for this one, where its size is known. One collective.

        The bytes lie so that they can be viewed as any dtype.
        """
        if self.world_size == 1:
            return list(payloads)
        mark = torch.tensor([message.kind, self._place, self._number]).view(torch.uint8)
        pieces = [piece for payload in payloads for piece in (payload, *_filling(payload), mark)]
        sent = [_wire_bytes(payload.numel()) for payload in payloads]
        received = [_wire_bytes(size) for size in sizes]
        found = torch.empty(sum(received), dtype=torch.uint8)
        ends = list(accumulate(received))
        for end in ends:  # a message that is too short must not end in an older one's mark
            found[end - _MARK_BYTES : end] = 0
        self._all_to_all(found, torch.cat(pieces), received, sent, message)
        self._count_bytes(message, sent, received)
        for rank, end in enumerate(ends):
            self._check_mark(rank, found[end - _MARK_BYTES : end], mark, message)
        self._number += 1
        starts = [0, *ends[:-1]]
        return [found[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    def wrong(self, rank: int, message: Message, problem: str) -> ValueError:
        """The error that says what a rank has sent."""
        return ValueError(
            f"rank {rank} sent something else than rank {self.rank} waited for, {message.stage}"
            f"{self._where()}: {problem}. All ranks have to run one khop, on one graph, in the same order"
        )

    def _all_to_all(
        self,
        found: Tensor,
        given: Tensor,
        received: list[int] | None,
        sent: list[int] | None,
        message: Message,
    ) -> None:
        begun = time.monotonic()
        try:
            work = distributed.all_to_all_single(
                found, given, received, sent, group=self._channel, async_op=True
            )
            try:
                while not _is_done(work):
                    if self._is_given_up():
                        raise PeerLost(f"nobody waits any more for {message.stage}{self._where()}")
            finally:
                if not work.is_completed():
                    _keep_for_ever(self._channel)
        except RuntimeError as error:
            if isinstance(error, PeerLost) or not is_broken(error):
                raise
            problem = f"{message.stage}{self._where()}: {str(error).splitlines()[0]}"
            raise self._group.lost(problem) from error
        self._counts["collectives"] += 1
        self._counts["seconds"] += time.monotonic() - begun

    def _size(self, rank: int, header: list[int], message: Message, limit: int) -> int:
        *mark, size = header
        if mark != [message.kind, self._place, self._number]:
            raise self.wrong(rank, message, _difference(mark, [message.kind, self._place, self._number]))
        if not 0 <= size <= limit:
            raise self.wrong(rank, message, f"{size} bytes, where 0 to {limit} can be")
        return size

    def _check_mark(self, rank: int, found: Tensor, expected: Tensor, message: Message) -> None:
        if not torch.equal(found, expected):
            numbers = found.clone().view(torch.int64).tolist()
            raise self.wrong(rank, message, _difference(numbers, expected.view(torch.int64).tolist()))

    def _where(self) -> str:
        return "" if self._place < 0 else f" in epoch {self._place >> 32}, step {self._place & 0xFFFFFFFF}"

    def _count_bytes(self, message: Message, sent: Sequence[int], received: Sequence[int]) -> None:
        for name, sizes in (("sent", sent), ("received", received)):
            self._counts[f"{message.counted}_bytes_{name}"] += sum(sizes) - sizes[self.rank]


def _is_done(work: distributed.Work) -> bool:
    """Wait for a moment; what the exchange failed with is raised."""
    try:
        work.wait(_LOOK_AROUND)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()
    return True


def _keep_for_ever(channel: ProcessGroup | None) -> None:
    """Let nobody take down a channel on which others are still awaited: that would wait for them, too.

    What a thread holds that never wakes goes with the process alone.
    """
    threading.Thread(target=_hold, args=(channel,), name="khop-held", daemon=True).start()


def _hold(channel: ProcessGroup | None) -> None:
    threading.Event().wait()


def open_peers(group: Group) -> Peers:
    """The ranks of a group over connections of their own. Collective."""
    if group.world_size == 1:
        return Peers(group)
    ranks, deadline = list(range(group.world_size)), timedelta(seconds=group.deadline_s)
    return Peers(group, distributed.new_group(ranks, deadline, backend="gloo"))


def split_at(values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Views of so many values each, one after another."""
    return [values[start:end] for start, end in pairwise([0, *accumulate(sizes)])]


def _wire_bytes(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED + _MARK_BYTES


def _filling(payload: Tensor) -> list[Tensor]:
    missing = -payload.numel() % _ALIGNED
    return [payload.new_zeros(missing)] if missing else []


def _difference(found: Sequence[int], expected: Sequence[int]) -> str:
    if found[0] >> 32 != _MAGIC:
        return "no message of khop's, or one cut short"
    if found[0] != expected[0]:
        return "a message of another kind"
    if found[1] != expected[1]:
        return f"a message of epoch {found[1] >> 32}, step {found[1] & 0xFFFFFFFF}"
    return f"message {found[2]} of the batch, where {expected[2]} is due"
