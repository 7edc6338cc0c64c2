"""The process group of a run: exchanges, their errors, and a clock shared by all ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from khop.arguments import instance_of
from khop.distributed.processes.watch import Store, Watch
from khop.errors import PeerLost

DEADLINE_S = 300.0
_POLL_S = 0.02
_SHORTEST_S, _LONGEST_S = 2e-5, 1e-3  # pauses while a thread waits for a device
# Gloo's errors do not always name gloo: a wait queued after a failed one ends with "pair closure".
_WORDS_OF_BACKENDS = ("gloo", "Connection closed by peer", "Connection reset by peer", "pair closure", "NCCL")


@dataclass(frozen=True, eq=False)
class Group:
    """This process as one of the ranks. Exchanges are collective: all ranks call them in the same order.

    With one rank, nothing is exchanged. A wait longer than the deadline, or a lost rank, raises PeerLost,
    whose message names the missing ranks and the stage at which the other ranks waited.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # index among the ranks of this machine
    local_world_size: int = 1
    deadline_s: float = DEADLINE_S
    store: Store | None = None  # None: one rank, or a group that khop did not create
    watch: Watch | None = None
    attempt: int = 0  # restarts of the whole group
    before_leaving: list[Callable[[], None]] = field(default_factory=list, repr=False)  # without errors only
    counters: Iterator[int] = field(default_factory=count, repr=False)  # numbers of shared counters
    machine_counters: Iterator[int] = field(default_factory=count, repr=False)  # as above, of this machine

    @property
    def is_of_one_machine(self) -> bool:
        """True if all ranks are known to run on this machine."""
        return self.local_world_size == self.world_size

    def at(self, stage: str, epoch: int = 0, step: int = -1) -> None:
        """Record the stage of this rank, for the error messages of ranks that wait for it."""
        if self.watch is not None:
            self.watch.at(stage, epoch, step)

    @contextmanager
    def exchanging(self, stage: str, epoch: int = 0, step: int = -1) -> Iterator[None]:
        """Turn failures of collectives in the block, including torch's, into PeerLost."""
        self.at(stage, epoch, step)
        with self.raising_lost():
            yield

    @contextmanager
    def raising_lost(self) -> Iterator[None]:
        """Turn failures of collectives and of the store in the block into PeerLost, in the stage before."""
        try:
            yield
        except RuntimeError as error:
            if not is_broken(error):
                raise
            raise self.lost(str(error).splitlines()[0]) from error

    def gather(self, values: Tensor) -> Tensor:
        """Return the values of every rank, (ranks, ...), on every rank."""
        if self.world_size == 1:
            return values[None]
        mine = placed(values).contiguous()
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        distributed.all_gather(found, mine)
        return torch.stack(found).to(values.device)

    def share_rows(self, pieces: Sequence[Tensor], owners: Sequence[int]) -> None:
        """Broadcast each piece from its owner, in place."""
        if self.world_size == 1:
            return
        for piece, owner in zip(pieces, owners, strict=True):
            if piece.numel():
                sent = placed(piece)
                distributed.broadcast(sent, src=owner)
                if sent is not piece:
                    piece.copy_(sent)

    def share_bytes(self, content: bytes | None) -> bytes:
        """Broadcast the bytes of rank 0 to every rank."""
        if self.world_size == 1:
            assert content is not None
            return content
        size = self.gather(torch.tensor([len(content or b"")]))[0]
        out = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0 and content:
            out = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self.share_rows([out], [0])
        return out.numpy().tobytes()

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Return the bytes of every rank, on every rank."""
        sizes = self.gather(torch.tensor([len(content)]))[:, 0].tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content or b" "), dtype=torch.uint8)[
            : len(content)
        ]
        found = self.gather(padded)
        return [row[:size].numpy().tobytes() for row, size in zip(found, sizes, strict=True)]

    def barrier(self) -> None:
        """Wait until every rank reaches this call."""
        self.gather(torch.zeros(1))

    def meet(self, stage: str) -> None:
        """Wait until every rank enters the stage, before anything is exchanged.

        Otherwise, if only one rank made a collective call, the other ranks would mistake its data for another
        exchange, and gloo would end the process.
        """
        self.at(stage)
        store = self.store
        if store is None:
            return
        with self.raising_lost():
            count = store.add(f"met/{stage}", 1)
            of_this_round = -(-count // self.world_size) * self.world_size
            end = time.monotonic() + self.deadline_s
            while store.add(f"met/{stage}", 0) < of_this_round:
                has_broken = self.watch is not None and self.watch.is_broken
                if has_broken or time.monotonic() > end:
                    raise self.lost(f"waited for all ranks to be {stage}")
                time.sleep(_POLL_S)

    def wait_until(self, is_done: Callable[[], bool], problem: str) -> None:
        """Wait for work of a device that depends on other ranks.

        PeerLost after the deadline, or once the group has broken: NCCL itself would wait forever, and its
        results after an abort must not be used.
        """
        begun, pause_s = time.monotonic(), _SHORTEST_S
        while self.watch is None or not self.watch.is_broken:
            if is_done():
                return
            if time.monotonic() > begun + self.deadline_s:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
        raise self.lost(problem)

    def lost(self, problem: str) -> PeerLost:
        """Return the error of a failed exchange, which names the missing ranks. Mark the group as broken."""
        if self.watch is None:
            return PeerLost(f"rank {self.rank} waited for another rank that did not answer: {problem}")
        sentence = self.watch.report(self.deadline_s)
        self.watch.give_up()
        return PeerLost(sentence)


def shared_counter(group: Group) -> Callable[[], int]:
    """Return a counter shared by all ranks: each call gives the next of 0, 1, 2, ... once. Collective.

    Threads may share it, and faster ranks get more numbers. In a group that khop did not create, which has no
    store, the ranks take turns.
    """
    if group.store is None:
        return count(group.rank, group.world_size).__next__
    store, key = group.store, f"counter/{next(group.counters)}"

    def following() -> int:
        with group.raising_lost():
            return store.add(key, 1) - 1

    return following


def check_equal_settings(group: Group, settings: Mapping[str, str]) -> None:
    """Check that all ranks have the settings of rank 0. Collective.

    ValueError on every rank if one differs; it names each such rank and its differences.
    """
    with group.exchanging("comparing settings"):
        expected = json.loads(group.share_bytes(json.dumps(dict(settings)).encode()))
        names = sorted({*expected, *settings})
        differing = [
            f"{name} is {settings.get(name, 'not set')} on rank {group.rank}, "
            f"{expected.get(name, 'not set')} on rank 0"
            for name in names
            if settings.get(name) != expected.get(name)
        ]
        answers = group.gather_bytes("; ".join(differing).encode()[:4000])
    sentences = [sentence.decode(errors="replace") for sentence in answers if sentence]
    if sentences:
        raise ValueError(
            f"the ranks have different settings: {'; '.join(sentences)}. "
            "Start all ranks with the same settings"
        )


LateSentence = Callable[[Sequence[int], float], str]  # missing ranks, deadline in seconds


@dataclass(frozen=True, eq=False)
class RankValues:
    """Values that must be equal on all ranks, compared through the group's store without a collective.

    Each rank numbers its values in the order in which it makes them; equal numbers are compared.
    """

    group: Group
    number: int

    @classmethod
    def of(cls, group: Group) -> RankValues | None:
        """Return the comparison of the next value; None with one rank or without a store."""
        store = _store_of(group)
        if group.world_size == 1 or store is None:
            return None
        return cls(group, next(_numbers.setdefault(store, count())))

    def others(self, digest: str, description: str, late: LateSentence) -> dict[int, str]:
        """Wait for this value of every rank; return the descriptions by rank if digests differ.

        PeerLost if ranks do not arrive in time, with the sentence that `late` makes from the missing ranks
        and the deadline in seconds.
        """
        with self.group.raising_lost():
            return self._others(digest, description, late)

    def _others(self, digest: str, description: str, late: LateSentence) -> dict[int, str]:
        store = _store_of(self.group)
        if store is None:  # the process group has ended
            return {}
        own, ranks = self.group.rank, self.group.world_size
        key = f"khop/compared/{self.number}"
        # Numbers repeat if the same store serves another process group later.
        key = f"{key}/{(store.add(key, 1) - 1) // ranks}"
        store.set(f"{key}/rank/{own}", description)
        store.add(f"{key}/digest/{digest}", 1)
        store.add(f"{key}/arrived", 1)
        deadline_s = self.group.deadline_s
        if self.group.store is None:  # a process group of the script
            deadline_s = store.timeout.total_seconds()  # type: ignore[attr-defined]  # missing in torch's stubs
        end, pause = time.monotonic() + deadline_s, _POLL_S / 16
        while store.add(f"{key}/arrived", 0) < ranks:
            watch = self.group.watch
            if time.monotonic() > end or (watch is not None and watch.is_broken):
                missing = [rank for rank in range(ranks) if not store.check([f"{key}/rank/{rank}"])]
                raise self._lost(late(missing, deadline_s))
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S)
        if store.add(f"{key}/digest/{digest}", 0) == ranks:
            return {}
        return {rank: store.get(f"{key}/rank/{rank}").decode() for rank in range(ranks)}

    def _lost(self, why: str) -> PeerLost:
        watch = self.group.watch
        if watch is None:
            return PeerLost(why)
        failures = watch.heartbeat.failures
        watch.give_up()
        return PeerLost(f"{why} ({'; '.join(failures)})" if failures else why)


def _store_of(group: Group) -> Store | None:
    """Return the store of a group: khop's, or the one that torch.distributed was initialized with."""
    if group.store is not None:
        return group.store
    if distributed.is_available() and distributed.is_initialized():
        return distributed.distributed_c10d._get_default_store()
    return None


_numbers: WeakKeyDictionary[Store, Iterator[int]] = WeakKeyDictionary()  # of compared values
ALONE = Group()
_joined: list[Group] = []  # the group that this process has joined; global, like torch's


def this_group() -> Group:
    """Return the group of this process: started by khop, or initialized in torch.distributed."""
    if _joined:
        return _joined[-1]
    if distributed.is_available() and distributed.is_initialized():
        return Group(distributed.get_rank(), distributed.get_world_size())
    return ALONE


def enter(group: Group) -> None:
    """Make `this_group` return this group from now on."""
    _joined.append(group)


def leave(group: Group) -> None:
    """Make `this_group` return the previous group again."""
    _joined.remove(group)


def placed(values: Tensor) -> Tensor:
    """Move values to the exchange's device: unchanged, unless the group was created with only NCCL."""
    return values.cuda() if distributed.get_backend() == "nccl" else values


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, or the model itself; its weights must be unsharded."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    instance_of("model", inner, nn.Module, "must be a torch.nn.Module")
    if any(hasattr(parameter, "device_mesh") for parameter in inner.parameters()):  # a DTensor
        raise ValueError(
            f"model {type(inner).__name__}: each rank has a shard of its weights, and evaluation calls the "
            "layers one by one; load the weights that get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)) of "
            "torch.distributed.checkpoint.state_dict returns into an ordinary model, and evaluate that"
        )
    return inner


def is_broken(error: RuntimeError) -> bool:
    """Return True if torch.distributed reports a failed exchange rather than an error of the computation."""
    of_torch = isinstance(error, distributed.DistError)
    return of_torch or any(word in str(error) for word in _WORDS_OF_BACKENDS)


_ROUNDS = 8


def clock_offset(group: Group) -> float:
    """Return the seconds by which this rank's `time.monotonic` is ahead of rank 0's. Collective.

    Processes on one machine share the clock: the offset is 0. Across machines it is an estimate. Its error is
    less than half of the shortest of eight exchanges.
    """
    if group.world_size == 1:
        return 0.0
    with group.exchanging("comparing clocks"):
        passed: list[list[float]] = []
        for _ in range(_ROUNDS):
            entered = time.monotonic()
            group.barrier()
            passed.append([entered, time.monotonic()])
        of_all = group.gather(torch.tensor(passed, dtype=torch.float64))
    return offset_between(of_all[group.rank], of_all[0])


def offset_between(own: Tensor, other: Tensor) -> float:
    """Return the seconds by which one clock is ahead of another.

    `own` and `other`, both (rounds, 2), hold the times at which each side entered and left the same
    exchanges. An exchange does not end on any rank before all ranks have entered it, which bounds the offset
    on both sides. If the bounds include 0, the offset is 0: both clocks may be the same.
    """
    least = float((own[:, 0] - other[:, 1]).max())
    most = float((own[:, 1] - other[:, 0]).min())
    return 0.0 if least <= 0 <= most else (least + most) / 2
