"""Several batches under way at once over all ranks: each lane has connections and a thread of its own.

Why no wait is for ever while every rank lives: lane i makes the steps i, i + L, ... one after another, and
exchanges with the others' lanes i alone. Let t be the first step that some rank has not received. All ranks
have received what is before it, so each may begin t, however far it may run ahead, and its lane has done with
t - L. So every rank's lane works on t, in the same sequence of exchanges, and t comes out everywhere. What
ranks exchange between one batch and the next goes over other connections. It holds because how far lanes run
ahead is counted in steps: by bytes, a rank with large batches would hold up a lane that others wait for.

Closing early does not wait: what a rank has begun, others may still have to begin, and whether they come to
close at all is not known where an error is on its way up. A thread asks all ranks how far each has begun, and
has the lanes end there. Where a rank ends instead, its threads end with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from khop.distributed.group import Group
from khop.distributed.lane_work import LaneWork, Result
from khop.distributed.peers import Message, Peers, open_peers
from khop.distributed.placements import LANES

_CLOSING = Message("closing early", "id")


@dataclass(frozen=True)
class _Road:
    """Lanes that one map uses at a time, and what its ranks agree over on how it ends."""

    control: Peers
    lanes: tuple[Peers, ...]


@dataclass(frozen=True)
class _Closing:
    """A map that was left before its end."""

    road: _Road
    work: LaneWork[Any]
    thread: threading.Thread


class Lanes:
    """How the threads of this process reach the other ranks. Making it is collective.

    In a lane the thread has peers of its own; outside of all, where ranks call everything in one order, the
    peers are those of the process.
    """

    def __init__(self, group: Group, count: int = LANES) -> None:
        if isinstance(count, bool) or count < 1:
            raise ValueError(f"lanes {count}: must be a whole number, 1 or more")
        self.group = group
        self.count = count
        self.world_size = group.world_size
        self._outside = open_peers(group)
        self._free: list[_Road] = []
        self._closing: list[_Closing] = []  # in the order in which they were
        self._of_thread = threading.local()
        group.before_leaving.append(self.settle)

    @property
    def peers(self) -> Peers:
        """Those of the lane that this thread is, or of the process."""
        found = getattr(self._of_thread, "peers", self._outside)
        assert isinstance(found, Peers)
        return found

    @property
    def is_lane(self) -> bool:
        """Whether this thread is one, beside others that are at other steps."""
        return hasattr(self._of_thread, "peers")

    def map(
        self, function: Callable[[int], Result], steps: Sequence[int], ahead: int, epoch: int = 0
    ) -> Generator[Result]:
        """`map(function, steps)`, made in lanes, in order; every rank calls it, with equally many steps.

        A rank begins no step that is `ahead` or more steps from the one that it takes next. An error reaches
        the consumer in its step's place, and ends the iteration; so may the consumer, as `break` does, on all
        ranks alike. Another map may run meanwhile, with connections of its own.
        """
        road = self._road()
        work = LaneWork(function, steps, ahead, epoch)
        threads = [
            threading.Thread(target=self._run, args=(work, lane, road), name=f"khop-lane-{lane}")
            for lane in range(len(road.lanes))
        ]
        try:
            for thread in threads:
                thread.start()
            for index in range(len(steps)):
                yield work.take(index)
        except GeneratorExit:
            closing = threading.Thread(target=_end_together, args=(road, work, threads), name="khop-closing")
            self._closing.append(_Closing(road, work, closing))
            closing.start()
            raise
        except BaseException:
            work.give_up()  # its connections are in the middle of something: nobody uses them again
            raise
        for thread in threads:
            thread.join()
        self._free.append(road)

    def settle(self) -> None:
        """Wait until maps that were left early have ended on all ranks; raise what went wrong."""
        while self._closing:
            closing = self._closing[0]
            closing.thread.join()
            del self._closing[0]
            if closing.work.error is not None:
                raise closing.work.error
            self._free.append(closing.road)

    def _road(self) -> _Road:
        """One that is free, on all ranks alike; else a new one."""
        self.settle()
        if self._free:
            return self._free.pop()
        return _Road(open_peers(self.group), tuple(open_peers(self.group) for _ in range(self.count)))

    def _run(self, work: LaneWork[Result], lane: int, road: _Road) -> None:
        self._of_thread.peers = road.lanes[lane]
        work.run(lane, len(road.lanes), road.lanes[lane])


def _end_together(road: _Road, work: LaneWork[Result], threads: Sequence[threading.Thread]) -> None:
    """Have the lanes make what some rank has begun, and end."""
    begun = work.hold()
    if begun is not None:
        own = torch.tensor([begun]).view(torch.uint8)
        road.control.begin(0, 0, work.is_unwanted)
        try:
            told = road.control.exchange([own] * road.control.world_size, _CLOSING, own.numel())
            work.end_after(max(int(of_rank.view(torch.int64)) for of_rank in told))
        except (RuntimeError, ValueError) as error:  # raised where the lanes are wanted next
            work.give_up(error)
    for thread in threads:
        thread.join()
