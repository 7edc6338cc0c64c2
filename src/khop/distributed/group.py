"""The ranks of a run as one value: what they exchange, and what an exchange that fails says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from khop.arguments import instance_of
from khop.distributed.torch_types import Store
from khop.distributed.watch import Watch
from khop.errors import PeerLost

DEADLINE_S = 300.0
_POLL_S = 0.02
# Gloo does not always say that it is gloo: "pair closure" is what a wait behind one that failed ends with.
_WORDS_OF_BACKENDS = ("gloo", "Connection closed by peer", "Connection reset by peer", "pair closure", "NCCL")


@dataclass(frozen=True, eq=False)
class Group:
    """This process among the ranks. What exchanges is collective: all ranks call it, in one order.

    Of one rank it exchanges nothing. A wait that outlasts the deadline, or a rank that is gone, is a PeerLost
    that names who is missing and who waited where.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # among the ranks of this machine
    local_world_size: int = 1
    deadline_s: float = DEADLINE_S
    store: Store | None = None  # None: alone, or a group that khop did not make
    watch: Watch | None = None
    attempt: int = 0  # how often the whole group was started again
    before_leaving: list[Callable[[], None]] = field(default_factory=list, repr=False)  # where all went well
    _dealers: Iterator[int] = field(default_factory=count, repr=False)

    @property
    def is_of_one_machine(self) -> bool:
        """Whether all ranks are known to run on this machine."""
        return self.local_world_size == self.world_size

    def at(self, stage: str, epoch: int = 0, step: int = -1) -> None:
        """Note where this rank is, for whoever may wait for it."""
        if self.watch is not None:
            self.watch.at(stage, epoch, step)

    @contextmanager
    def exchanging(self, stage: str, epoch: int = 0, step: int = -1) -> Iterator[None]:
        """A block with collectives in it, torch's own included; what breaks them becomes a PeerLost."""
        self.at(stage, epoch, step)
        try:
            yield
        except RuntimeError as error:
            if not is_broken(error):
                raise
            raise self.lost(str(error).splitlines()[0]) from error

    def gather(self, values: Tensor) -> Tensor:
        """(ranks, ...): the values of every rank, on every rank."""
        if self.world_size == 1:
            return values[None]
        mine = placed(values).contiguous()
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        distributed.all_gather(found, mine)
        return torch.stack(found).to(values.device)

    def dealer(self) -> Callable[[], int]:
        """What gives 0, 1, 2, ... to whoever of all ranks asks next, each number once; threads may share it.

        Who is faster gets more. In a group that khop did not make, which has no store, the ranks take turns.
        """
        if self.store is None:
            return count(self.rank, self.world_size).__next__
        store, key = self.store, f"dealt/{next(self._dealers)}"
        return lambda: store.add(key, 1) - 1

    def share_rows(self, pieces: Sequence[Tensor], owners: Sequence[int]) -> None:
        """Fill every piece on every rank: its owner has put in place what stands in it."""
        if self.world_size == 1:
            return
        for piece, owner in zip(pieces, owners, strict=True):
            if piece.numel():
                sent = placed(piece)
                distributed.broadcast(sent, src=owner)
                if sent is not piece:
                    piece.copy_(sent)

    def share_bytes(self, content: bytes | None) -> bytes:
        """What rank 0 gives, on every rank."""
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
        """What every rank gives, on every rank."""
        sizes = self.gather(torch.tensor([len(content)]))[:, 0].tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content or b" "), dtype=torch.uint8)[
            : len(content)
        ]
        found = self.gather(padded)
        return [row[:size].numpy().tobytes() for row, size in zip(found, sizes, strict=True)]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.gather(torch.zeros(1))

    def meet(self, stage: str) -> None:
        """Wait until every rank enters the stage, before it exchanges anything.

        A rank that calls something collective alone would else send what the others take for another
        exchange: gloo ends the process for that.
        """
        self.at(stage)
        if self.store is None:
            return
        count = self.store.add(f"met/{stage}", 1)
        of_this_round = -(-count // self.world_size) * self.world_size
        end = time.monotonic() + self.deadline_s
        while self.store.add(f"met/{stage}", 0) < of_this_round:
            has_broken = self.watch is not None and self.watch.is_broken
            if has_broken or time.monotonic() > end:
                raise self.lost(f"waited for all ranks to be {stage}")
            time.sleep(_POLL_S)

    def agree(self, facts: Mapping[str, str]) -> None:
        """ValueError on every rank where one has other facts than rank 0; it names rank and difference."""
        with self.exchanging("comparing settings"):
            expected = json.loads(self.share_bytes(json.dumps(dict(facts)).encode()))
            names = sorted({*expected, *facts})
            differing = [
                f"{name} is {facts.get(name, 'not set')} on rank {self.rank}, "
                f"{expected.get(name, 'not set')} on rank 0"
                for name in names
                if facts.get(name) != expected.get(name)
            ]
            told = self.gather_bytes("; ".join(differing).encode()[:4000])
        sentences = [sentence.decode(errors="replace") for sentence in told if sentence]
        if sentences:
            raise ValueError(f"the ranks are not of one run: {'; '.join(sentences)}. Start all of them alike")

    def lost(self, problem: str) -> PeerLost:
        """The error of an exchange that failed: who is missing, as the others see it. The group is broken."""
        if self.watch is None:
            return PeerLost(f"rank {self.rank} waited for another rank that did not answer: {problem}")
        sentence = self.watch.report(self.deadline_s)
        self.watch.give_up()
        return PeerLost(sentence)


ALONE = Group()
_joined: list[Group] = []  # the group that this process has joined; torch's own is as global


def this_group() -> Group:
    """The ranks that this process is one of: those that khop started, or torch.distributed's."""
    if _joined:
        return _joined[-1]
    if distributed.is_available() and distributed.is_initialized():
        return Group(distributed.get_rank(), distributed.get_world_size())
    return ALONE


def enter(group: Group) -> None:
    """From now on `this_group` gives it."""
    _joined.append(group)


def leave(group: Group) -> None:
    """What was before is again."""
    _joined.remove(group)


def placed(values: Tensor) -> Tensor:
    """On the device that the group exchanges: as it is, unless somebody made a group of NCCL alone."""
    return values.cuda() if distributed.get_backend() == "nccl" else values


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, or the model."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    instance_of("model", inner, nn.Module, "must be a torch.nn.Module")
    return inner


def is_broken(error: RuntimeError) -> bool:
    """Whether torch.distributed says that an exchange failed, which is no fault of what was computed."""
    of_torch = isinstance(error, distributed.DistError)
    return of_torch or any(word in str(error) for word in _WORDS_OF_BACKENDS)
