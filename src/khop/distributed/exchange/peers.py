"""Synchronous all-to-all exchange of byte messages, rows and arrays; each message is checked before use."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, pairwise
from math import prod
from zlib import crc32

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from khop.distributed.processes.group import Group, is_broken
from khop.distributed.processes.watch import within
from khop.draw import DrawKey, mix64
from khop.errors import PeerLost

_MAGIC = 0x6B686F70  # "khop"
MARK_NUMBERS = 3  # int64: kind, epoch and step, number
MARK_BYTES = 8 * MARK_NUMBERS  # at the end of each message
_HEADER = 4  # int64: magic and kind, epoch and step, number, bytes of the message
_LOOK_AROUND = timedelta(seconds=0.1)  # interval at which a waiting thread checks if it should give up


@dataclass(frozen=True)
class Message:
    """Purpose of an exchange. Ranks compare it to detect mismatched exchanges."""

    stage: str  # "asking for rows"
    counted: str  # category of its bytes in counts: "id" or "row"

    @property
    def kind(self) -> int:
        """Number that identifies the purpose in a message."""
        return _MAGIC << 32 | crc32(f"{self.stage}/{self.counted}".encode())


@dataclass(frozen=True)
class _Mark:
    """Identifier of the next exchange. All ranks must send the same one."""

    kind: int
    place: int  # epoch and step; -1: outside of batches
    number: int  # of the exchange in this place

    @property
    def numbers(self) -> list[int]:
        """The numbers that are sent."""
        return [self.kind, self.place, self.number]

    @property
    def where(self) -> str:
        """Epoch and step in words, for errors."""
        return "" if self.place < 0 else f" in {_step(self.place)}"

    def problem(self, found: list[int]) -> str:
        """Return the mismatch with another rank's mark; "" if they are equal."""
        kind, place, number = found
        if kind >> 32 != _MAGIC:
            return "not a khop message, or truncated"
        if kind != self.kind:
            return "a message of a different kind"
        if place != self.place:
            return f"a message of {_step(place)}"
        return (
            ""
            if number == self.number
            else f"message {number} of {_step(place)}, where {self.number} is expected"
        )


class _Memory:
    """A reusable buffer, because new pages cost more than writing the bytes.

    It does not come from the native core's pool, because threads without Python could not return it there.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Return uint8 (size) with undefined content; it may reuse the memory of the previous call."""
        if self._room.numel() < size:
            self._room = torch.empty(0, dtype=torch.uint8)  # frees the old buffer before the new one exists
            self._room = torch.empty(size + size // 4, dtype=torch.uint8)
        return self._room[:size]


@dataclass(frozen=True)
class Messages:
    """Messages to or from each rank, concatenated, each followed by a mark."""

    content: Tensor  # uint8: all messages, padded, with space for a mark after each
    payloads: tuple[Tensor, ...]  # uint8, the content of each

    @classmethod
    def of(cls, content: Tensor, sizes: Sequence[int]) -> Messages:
        """Return views of messages with these sizes in bytes, concatenated in `content`."""
        ends = list(accumulate(wire_bytes(size) for size in sizes))
        payloads = []
        for (start, end), size in zip(pairwise([0, *ends]), sizes, strict=True):
            content[start + size : end - MARK_BYTES] = 0
            payloads.append(content[start : start + size])
        return cls(content, tuple(payloads))

    @property
    def marks(self) -> list[Tensor]:
        """The mark of each rank's message, int64 (3)."""
        ends = accumulate(wire_bytes(payload.numel()) for payload in self.payloads)
        return [self.content[end - MARK_BYTES : end].view(torch.int64) for end in ends]


class Peers:
    """The ranks of a group, for one thread or several that take turns.

    Exchanges are collective: every rank makes the same calls in the same order. Each rank sends one payload
    (1-D uint8) to every rank, itself included, and receives one from each. The result is valid until the next
    exchange of these peers. An unexpected message is a ValueError that names its sender. A lost or late rank
    is a PeerLost. With one rank, nothing is sent.

    Buffers on a device are exchanged by `swap`, over the communicator of gradients (`open_channel`).
    All other data are exchanged over gloo.
    """

    def __init__(self, group: Group, channel: ProcessGroup | None = None) -> None:
        self.rank = group.rank
        self.world_size = group.world_size
        self.turn = threading.RLock()  # locked during several exchanges that belong together
        self._group = group
        self._channel = channel  # for these exchanges only; None: one rank
        self._of_devices: ProcessGroup | None = None  # for `swap` of buffers on a GPU
        self._place = -1  # epoch and step of the batch
        self._number = 0  # of the exchange in this place
        # Since `begin`: collectives, seconds in them, bytes of ids and rows (without those that a rank sends
        # to itself), and counters of the callers.
        self.counts: dict[str, float] = defaultdict(float)
        self._is_given_up: Callable[[], bool] = lambda: False
        self._given, self._found = _Memory(), _Memory()

    def begin(self, epoch: int, step: int, is_given_up: Callable[[], bool]) -> None:
        """Begin a batch: later exchanges belong to it, and waits are aborted once `is_given_up()` is True."""
        self._place, self._number = epoch << 32 | step, 0
        self._is_given_up = is_given_up
        self.counts = defaultdict(float)

    def outgoing(self, sizes: Sequence[int]) -> Messages:
        """Return writable messages of these sizes for the next reply, which sends them without a copy."""
        return Messages.of(self._given.take(sum(map(wire_bytes, sizes))), sizes)

    def exchange(self, payloads: Messages | Sequence[Tensor], message: Message, limit: int) -> list[Tensor]:
        """Exchange payloads of unknown sizes. Two collectives: sizes and payloads.

        ValueError if a rank sends more than `limit` bytes.
        """
        given = payloads.payloads if isinstance(payloads, Messages) else payloads
        if self.world_size == 1:
            return list(given)
        due = self._due(message)
        headers = torch.tensor([[*due.numbers, payload.numel()] for payload in given])
        found = torch.zeros_like(headers)
        self._all_to_all(found.view(-1), headers.view(-1), None, None, message)
        sizes: list[int] = []
        for rank, (*mark, size) in enumerate(found.tolist()):
            problem = due.problem(mark)
            if not problem and not 0 <= size <= limit:
                problem = f"{size} bytes, must be 0 to {limit}"
            if problem:
                raise self.wrong(rank, message, problem)
            sizes.append(size)
        self._count_bytes(message, [8 * _HEADER] * self.world_size, [8 * _HEADER] * self.world_size)
        return self.reply(payloads, sizes, message)

    def reply(
        self, payloads: Messages | Sequence[Tensor], sizes: Sequence[int], message: Message
    ) -> list[Tensor]:
        """Exchange payloads of known sizes. One collective.

        The received bytes are aligned, so that they can be viewed as any dtype.
        """
        if self.world_size == 1:
            return list(payloads.payloads if isinstance(payloads, Messages) else payloads)
        due = self._due(message)
        given = payloads if isinstance(payloads, Messages) else self._written(payloads)
        for mark in given.marks:
            mark.copy_(torch.tensor(due.numbers))
        sent = [wire_bytes(payload.numel()) for payload in given.payloads]
        received = [wire_bytes(size) for size in sizes]
        found = Messages.of(self._found.take(sum(received)), sizes)
        for mark in found.marks:  # a message that is too short must not end with the mark of an older one
            mark.zero_()
        self._all_to_all(found.content, given.content, received, sent, message)
        self._count_bytes(message, sent, received)
        for rank, mark in enumerate(found.marks):
            if problem := due.problem(mark.tolist()):
                raise self.wrong(rank, message, problem)
        self._number += 1
        return list(found.payloads)

    def open_channel(self, device: torch.device) -> None:
        """Choose the channel for `swap` on a device. Collective, outside lanes.

        It is the process group's if that uses NCCL, because the collectives of two communicators would need
        the same order on all ranks. Otherwise a new one is opened, once.
        """
        if device.type != "cuda" or self._of_devices is not None or self.world_size == 1:
            return
        has_nccl = distributed.is_initialized() and "nccl" in distributed.get_backend_config()
        self._of_devices = distributed.group.WORLD if has_nccl else _open_group(self._group, "nccl")

    def swap(self, found: Tensor, given: Tensor, message: Message) -> None:
        """Exchange buffers of equal shares, uint8 (ranks, bytes), on a device: row q goes to rank q.

        On a GPU the current stream waits for the exchange, but the host does not. The caller checks the
        contents with `mark` once `wait_until` has returned. One collective, which is not counted.
        """
        if self.world_size == 1:
            found.copy_(given)
        elif given.device.type == "cpu":
            with self._exchanging(message):
                self._wait(_started(found, given, None, None, self._channel), message)
        else:
            assert self._of_devices is not None, "open_channel comes first"
            with self._exchanging(message):
                _started(found, given, None, None, self._of_devices).wait()  # the stream waits

    def wait_until(self, is_done: Callable[[], bool], message: Message) -> None:
        """Wait for the work of a device that depends on other ranks; PeerLost after the deadline."""
        self._group.wait_until(is_done, f"{message.stage}{self._due(message).where}: no answer on the device")

    def mark(self, message: Message, epoch: int, step: int) -> list[int]:
        """Return the `MARK_NUMBERS` numbers that identify a swapped buffer."""
        return _Mark(message.kind, epoch << 32 | step, 0).numbers

    def check_mark(self, rank: int, message: Message, due: list[int], found: list[int]) -> None:
        """Check the mark of a buffer from a rank; ValueError names the rank and the difference."""
        if problem := _Mark(*due).problem(found):
            raise self.wrong(rank, message, problem)

    def wrong(self, rank: int, message: Message, problem: str) -> ValueError:
        """Return the error for an invalid message of a rank."""
        due = f"{message.stage}{self._due(message).where}"
        return ValueError(
            f"rank {rank} sent another message than rank {self.rank} expected, {due}: {problem}. "
            "All ranks must run the same version of khop on the same graph, in the same order"
        )

    def _written(self, payloads: Sequence[Tensor]) -> Messages:
        outgoing = self.outgoing([payload.numel() for payload in payloads])
        for room, payload in zip(outgoing.payloads, payloads, strict=True):
            room.copy_(payload)
        return outgoing

    def _all_to_all(
        self,
        found: Tensor,
        given: Tensor,
        received: list[int] | None,
        sent: list[int] | None,
        message: Message,
    ) -> None:
        begun = time.monotonic()
        with self._exchanging(message):
            self._wait(_started(found, given, received, sent, self._channel), message)
        self.counts["collectives"] += 1
        self.counts["seconds"] += time.monotonic() - begun

    def _wait(self, work: distributed.Work, message: Message) -> None:
        try:
            while not _is_done(work):
                if self._is_given_up():
                    raise self._unwanted(message)
        finally:
            if not work.is_completed():
                _keep_for_ever(self._channel)

    @contextmanager
    def _exchanging(self, message: Message) -> Iterator[None]:
        """Turn the failure of a collective into PeerLost."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, PeerLost) or not is_broken(error):
                raise
            problem = f"{message.stage}{self._due(message).where}: {str(error).splitlines()[0]}"
            raise self._group.lost(problem) from error

    def _unwanted(self, message: Message) -> PeerLost:
        return PeerLost(f"no rank waits any more for {message.stage}{self._due(message).where}")

    def _due(self, message: Message) -> _Mark:
        return _Mark(message.kind, self._place, self._number)

    def _count_bytes(self, message: Message, sent: Sequence[int], received: Sequence[int]) -> None:
        for name, sizes in (("sent", sent), ("received", received)):
            self.counts[f"{message.counted}_bytes_{name}"] += sum(sizes) - sizes[self.rank]


def wire_bytes(size: int) -> int:
    """Return the bytes that a message of `size` bytes takes, padding and mark included."""
    return padded(size) + MARK_BYTES


def _started(
    found: Tensor,
    given: Tensor,
    received: list[int] | None,
    sent: list[int] | None,
    channel: ProcessGroup | None,
) -> distributed.Work:
    work: distributed.Work = distributed.all_to_all_single(
        found, given, received, sent, group=channel, async_op=True
    )
    return work


def _is_done(work: distributed.Work) -> bool:
    """Wait for a moment; raise the error of a failed exchange."""
    try:
        work.wait(_LOOK_AROUND)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()
    return True


def _keep_for_ever(channel: ProcessGroup | None) -> None:
    """Keep a channel alive in a thread: destroying it would block on the exchanges still in progress.

    The thread never wakes, so the channel is released only with the process.
    """
    threading.Thread(target=_hold, args=(channel,), name="khop-held", daemon=True).start()


def _hold(channel: ProcessGroup | None) -> None:
    threading.Event().wait()


@contextmanager
def naming(peers: Peers, rank: int, message: Message) -> Iterator[None]:
    """Add the sender to a ValueError about a message."""
    try:
        yield
    except ValueError as error:
        raise peers.wrong(rank, message, str(error)) from error


def open_peers(group: Group) -> Peers:
    """Connect to the ranks of a group over new connections. Collective."""
    if group.world_size == 1:
        return Peers(group)
    return Peers(group, _open_group(group, "gloo"))


def _open_group(group: Group, backend: str) -> ProcessGroup:
    """Connect to the ranks of a group by a backend of torch.distributed."""
    ranks, deadline = list(range(group.world_size)), timedelta(seconds=group.deadline_s)
    made: list[ProcessGroup] = []
    problem = f"connecting for an exchange took longer than {group.deadline_s:g} s"
    try:
        # Without this limit, gloo waits five times as long for an unreachable rank.
        within(group.deadline_s, lambda: made.append(distributed.new_group(ranks, deadline, backend=backend)))
    except RuntimeError as error:
        if not is_broken(error):
            raise
        problem = str(error).splitlines()[0]
    if not made:
        raise group.lost(problem)
    return made[0]


def _step(place: int) -> str:
    return "no batch" if place < 0 else f"epoch {place >> 32}, step {place & 0xFFFFFFFF}"


_MOST_BYTES = 1 << 36


def moved(peers: Peers, rows: Sequence[Tensor], message: Message) -> list[Tensor]:
    """Send `rows[q]`, (n, ...), to each rank q, and return the rows that each rank sent to this one.

    The dtype and the row shape must be the same on all ranks. Empty rows are sent as one byte each, so that
    the receiver can count them.
    """
    like = rows[0]
    row_bytes = like.element_size() * prod(like.shape[1:])
    payloads = [
        of_rank.contiguous().view(torch.uint8).flatten()
        if row_bytes
        else torch.zeros(len(of_rank), dtype=torch.uint8)
        for of_rank in rows
    ]
    found = []
    for rank, payload in enumerate(peers.exchange(payloads, message, _MOST_BYTES)):
        with naming(peers, rank, message):
            if row_bytes and payload.numel() % row_bytes:
                raise ValueError(f"{payload.numel()} bytes, where rows take {row_bytes} each")
        if not row_bytes:
            found.append(like.new_empty(payload.numel(), *like.shape[1:]))
            continue
        # Copied, because the next exchange overwrites the message.
        found.append(payload.view(like.dtype).view(-1, *like.shape[1:]).clone())
    return found


def sent_to_all(peers: Peers, rows: Tensor, message: Message) -> list[Tensor]:
    """Return the rows (n, ...) of every rank, on every rank."""
    return moved(peers, [rows] * peers.world_size, message)


_ALIGNED = 8  # bytes that an array is padded to, so that the next one can be viewed as any dtype
_INT32 = 1 << 31


class Reader:
    """Reads arrays from a message, one after another."""

    def __init__(self, message: Tensor) -> None:
        self._left = message

    @property
    def is_done(self) -> bool:
        """True if the whole message was read."""
        return self._left.numel() == 0

    def take(self, dtype: torch.dtype, count: int, shape: tuple[int, ...] = ()) -> Tensor:
        """Return the next array (count, *shape), as a view; ValueError if the message is too short."""
        size = count * prod(shape) * dtype.itemsize
        if count < 0 or padded(size) > self._left.numel():
            raise ValueError(
                f"{count} rows of {dtype} {shape} do not fit in the last {self._left.numel()} bytes"
            )
        array, self._left = self._left[:size], self._left[padded(size) :]
        return array.view(dtype).view(count, *shape) if shape else array.view(dtype)

    def numbers(self, count: int) -> list[int]:
        """Return the next int64 numbers."""
        return self.take(torch.int64, count).tolist()

    def below(self, limit: int, count: int, what: str) -> Tensor:
        """Return the next ids, written as `narrowest(limit)`; ValueError names an id outside [0, limit)."""
        ids = self.take(narrowest(limit), count)
        check_below(ids, limit, what)
        return ids

    def check_done(self) -> None:
        """Check that the whole message was read; ValueError if bytes are left."""
        if not self.is_done:
            raise ValueError(f"{self._left.numel()} bytes are left after the last array")


class Writer:
    """Writes arrays into a message of the right size, one after another."""

    def __init__(self, message: Tensor) -> None:
        self._left = message

    def room(self, dtype: torch.dtype, count: int, shape: tuple[int, ...] = ()) -> Tensor:
        """Return a view for the next array (count, *shape), to be filled; its padding is zero."""
        size = count * prod(shape) * dtype.itemsize
        place = self._left[:size]
        if size < padded(size):
            self._left[size : padded(size)] = 0
        self._left = self._left[padded(size) :]
        return place.view(dtype).view(count, *shape) if shape else place.view(dtype)

    def put(self, values: Tensor, dtype: torch.dtype, count: int | None = None) -> None:
        """Write values as this dtype, padded with zeros to `count` numbers."""
        if count is None or count == values.numel():
            self.room(dtype, values.numel()).copy_(values)
            return
        place = self.room(dtype, count)
        place[: values.numel()] = values
        place[values.numel() :] = 0


def as_bytes(arrays: Sequence[Tensor]) -> Tensor:
    """Return the padded arrays, concatenated, uint8 (n)."""
    flat: list[Tensor] = []
    for array in arrays:
        content = array.contiguous().view(-1).view(torch.uint8)
        flat.append(content)
        if missing := -content.numel() % _ALIGNED:
            flat.append(content.new_zeros(missing))
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8)


def padded(size: int) -> int:
    """Return the bytes that an array of `size` bytes takes."""
    return -(-size // _ALIGNED) * _ALIGNED


def narrowest(count: int) -> torch.dtype:
    """Return the dtype in which numbers below `count` are sent."""
    return torch.int32 if count <= _INT32 else torch.int64


def check_below(numbers: Tensor, limit: int, what: str) -> None:
    """Check that all numbers are in [0, limit); ValueError names a number that is not."""
    if not numbers.numel():
        return
    low, high = (int(end) for end in numbers.aminmax())
    if low < 0 or high >= limit:
        raise ValueError(f"{what} {low if low < 0 else high}, must be in [0, {limit})")


def agreement(key: DrawKey, *facts: object) -> int:
    """Return a hash of the key, its epoch and step, and the facts that must agree on all ranks for a draw.

    It fits in int64. Rules may draw by the keys of other steps, so keys of equal value can differ.
    """
    return mix64(key.value ^ crc32(repr((key.of_epoch, key.step, *facts)).encode())) >> 1
