"""Several batches in flight across all ranks: each lane has its own connections and its own thread.

No wait lasts forever while every rank lives. Lane i makes the steps i, i + L, ... one after another, and
exchanges only with lane i of the other ranks. Let t be the first step that some rank has not received. All
ranks have received every earlier step, so each may begin t, at any limit on how far lanes run ahead, and its
lane has finished t - L. Every rank's lane therefore works on t, in the same sequence of exchanges, and t
completes on all ranks. Exchanges between one batch and the next use other connections. The argument requires
a limit counted in steps. With a limit in bytes, a rank with large batches would delay a lane that other ranks
wait for.

Closing early does not block. Other ranks may still have to begin the steps that this rank has begun. If an
error is propagating, it is not even known if they will close. A thread asks all ranks for the steps that they
have begun, and lets the lanes end there. If a rank ends instead, its threads end with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from khop.exchange.lane_work import Item, LaneWork, Place, Result
from khop.exchange.peers import Message, Peers, open_peers
from khop.partition.placements import LANES
from khop.runtime.group import Group

_CLOSING = Message("closing early", "id")


@dataclass(frozen=True)
class _Road:
    """The lanes of one map, and the connections on which its ranks agree where to end."""

    control: Peers
    lanes: tuple[Peers, ...]


@dataclass(frozen=True)
class _Closing:
    """A map that its consumer left before the end."""

    road: _Road
    work: LaneWork[Any, Any]
    thread: threading.Thread


class Lanes:
    """Connections of this process's threads to the other ranks. Construction is collective.

    A lane's thread has its own peers. All other threads use the peers of the process; there, all ranks have
    to make the same calls in the same order.
    """

    def __init__(self, group: Group, count: int = LANES) -> None:
        if isinstance(count, bool) or count < 1:
            raise ValueError(f"lanes {count}: must be a whole number, 1 or more")
        self.group = group
        self.count = count
        self.world_size = group.world_size
        self._outside = open_peers(group)
        self._free: list[_Road] = []
        self._closing: list[_Closing] = []  # in the order in which they were left
        self._of_thread = threading.local()
        group.before_leaving.append(self.settle)

    @property
    def peers(self) -> Peers:
        """Peers of the lane that this thread runs, or of the process."""
        found = getattr(self._of_thread, "peers", self._outside)
        assert isinstance(found, Peers)
        return found

    @property
    def is_lane(self) -> bool:
        """True if this thread runs a lane, beside other lanes at other steps."""
        return hasattr(self._of_thread, "peers")

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], ahead: int, place: Place[Item]
    ) -> Generator[Result]:
        """Yield `map(function, items)` in order, computed in lanes; every rank calls it with as many items.

        `place` gives the epoch and the step of an item, the same on all ranks. A rank begins no item that is
        `ahead` or more items after the next one to be taken. An error is raised to the consumer in place of
        its item, and ends the iteration. The consumer may end it too, as `break` does, at the same point on
        all ranks. Another map may run at the same time, on separate connections.
        """
        road = self._road()
        work = LaneWork(function, items, ahead, place)
        threads = [
            threading.Thread(target=self._run, args=(work, lane, road), name=f"khop-lane-{lane}")
            for lane in range(len(road.lanes))
        ]
        try:
            for thread in threads:
                thread.start()
            for index in range(len(items)):
                yield work.take(index)
        except GeneratorExit:
            closing = threading.Thread(target=_end_together, args=(road, work, threads), name="khop-closing")
            self._closing.append(_Closing(road, work, closing))
            closing.start()
            raise
        except BaseException:
            work.give_up()  # an exchange on its connections is incomplete: they cannot be used again
            raise
        for thread in threads:
            thread.join()
        self._free.append(road)

    def settle(self) -> None:
        """Wait until maps that were left early have ended on all ranks; raise their errors."""
        while self._closing:
            closing = self._closing[0]
            closing.thread.join()
            del self._closing[0]
            if closing.work.error is not None:
                raise closing.work.error
            self._free.append(closing.road)

    def _road(self) -> _Road:
        """Return a free set of lanes, the same on all ranks, or open a new one."""
        self.settle()
        if self._free:
            return self._free.pop()
        return _Road(open_peers(self.group), tuple(open_peers(self.group) for _ in range(self.count)))

    def _run(self, work: LaneWork[Item, Result], lane: int, road: _Road) -> None:
        self._of_thread.peers = road.lanes[lane]
        work.run(lane, len(road.lanes), road.lanes[lane])


def _end_together(road: _Road, work: LaneWork[Any, Any], threads: Sequence[threading.Thread]) -> None:
    """Make all steps that some rank has begun, then end the lanes."""
    begun = work.hold()
    if begun is not None:
        own = torch.tensor([begun]).view(torch.uint8)
        road.control.begin(0, 0, work.is_unwanted)
        try:
            answers = road.control.exchange([own] * road.control.world_size, _CLOSING, own.numel())
            work.end_after(max(int(of_rank.view(torch.int64)) for of_rank in answers))
        except (RuntimeError, ValueError) as error:  # raised at the next use of the lanes
            work.give_up(error)
    for thread in threads:
        thread.join()
