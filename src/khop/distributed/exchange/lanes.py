"""Several batches in flight across all ranks: each lane has separate connections and a separate thread.

`Lanes.map` starts the threads for a sequence of steps and yields the results in order. `LaneWork` is the
state shared by the threads and the consumer.

Lanes do not deadlock while all ranks are alive. Lane i makes the steps i, i + L, ... in order, and exchanges
only with lane i of the other ranks. Let t be the first step that some rank has not received. All ranks have
received every earlier step. Each may therefore start t under any limit on prefetched steps, and its lane has
finished t - L. The lanes of all ranks thus make the same exchanges for t, and t completes. Exchanges between
two batches use other connections. The argument requires a limit counted in steps. With a limit in bytes, a
rank with large batches would delay a lane that other ranks wait for.

Closing early does not block, because other ranks may still have to start the steps that this rank has
started. After an error, this rank does not even know whether the others will close. A thread therefore asks
all ranks which steps they have started, and ends the lanes after these. If a rank exits, its threads exit
with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from khop.distributed.exchange.peers import Message, Peers, open_peers
from khop.distributed.processes.group import Group
from khop.errors import Outcome, PeerLost
from khop.graph.partitions.placements import LANES
from khop.loading.ordered_map import POLL_S, take_place

Item = TypeVar("Item")
Result = TypeVar("Result")
Place = Callable[[Item], tuple[int, int]]  # epoch and step of an item, for messages to other ranks
_CLOSING = Message("closing early", "id")


class LaneWork(Generic[Item, Result]):
    """Items processed by lanes, one step each, and the progress of lanes and consumer.

    Fields change only under the lock of `_changed`.
    """

    def __init__(
        self, function: Callable[[Item], Result], items: Sequence[Item], ahead: int, place: Place[Item]
    ) -> None:
        self._function = function
        self._items = items
        self._ahead = ahead
        self._place = place
        self._changed = threading.Condition()
        self._finished: dict[int, Outcome[Result]] = {}
        self._begun = 0  # steps up to the last one that any lane has begun
        self._taken = 0
        self._is_closed = False  # True: results are discarded
        self._end: int | None = None  # lanes stop before this step; None until all ranks agree on it
        self._is_given_up = False
        self._consumer = threading.current_thread()
        self.error: BaseException | None = None  # the first error that ended a lane

    def run(self, lane: int, lanes: int, peers: Peers) -> None:
        """Run the steps of one lane, until all are finished or one fails.

        A failed step ends the lane, because its exchanges no longer match those of other ranks.
        """
        for index in range(lane, len(self._items), lanes):
            if not self._begins(index):
                return
            take_place(index)
            outcome = Outcome.of(partial(self._made, index, peers))
            self._put(index, outcome)
            if outcome.error is not None:
                return

    def take(self, index: int) -> Result:
        """Return the result of a step, or raise its exception."""
        with self._changed:
            self._consumer = threading.current_thread()
            while index not in self._finished:
                if self._is_given_up:
                    raise PeerLost("the lanes ended when the main thread and their last consumer had ended")
                self._changed.wait(POLL_S)
            self._taken = index + 1
            self._changed.notify_all()
            outcome = self._finished.pop(index)
        return outcome.given()

    def hold(self) -> int | None:
        """Discard results from now on, and do not start steps until `end_after`.

        Returns the number of started steps, or None if all results are taken: the lanes then end by
        themselves.
        """
        with self._changed:
            self._is_closed = True
            self._finished.clear()
            return None if self._taken == len(self._items) else self._begun

    def end_after(self, count: int) -> None:
        """Run only the first `count` steps, which some rank has started."""
        with self._changed:
            self._end = count
            self._changed.notify_all()

    def give_up(self, error: BaseException | None = None) -> None:
        """End the lanes immediately."""
        with self._changed:
            self.error = self.error or error
            self._is_given_up = True
            self._changed.notify_all()

    def is_unwanted(self) -> bool:
        """Return True after `give_up`, or if the interpreter exits without a consumer of the results."""
        return self._is_given_up or not (self._consumer.is_alive() or threading.main_thread().is_alive())

    def _made(self, index: int, peers: Peers) -> Result:
        item = self._items[index]
        peers.begin(*self._place(item), self.is_unwanted)
        return self._function(item)

    def _begins(self, index: int) -> bool:
        """Wait until the step may start; return False if it never will."""
        with self._changed:
            while not self.is_unwanted():
                may_begin: bool | None = None  # not known yet
                if not self._is_closed and index < self._taken + self._ahead:
                    may_begin = True
                elif self._is_closed and self._end is not None:
                    may_begin = index < self._end
                if may_begin is not None:
                    self._begun = max(self._begun, index + 1) if may_begin else self._begun
                    return may_begin
                self._changed.wait(POLL_S)
            self._is_given_up = True
            return False

    def _put(self, index: int, outcome: Outcome[Result]) -> None:
        with self._changed:
            self.error = self.error or outcome.error
            if not self._is_closed:
                self._finished[index] = outcome
            self._changed.notify_all()


@dataclass(frozen=True)
class _LaneSet:
    """The lanes of one map, and the connections on which ranks agree on the last step."""

    control: Peers
    lanes: tuple[Peers, ...]


@dataclass(frozen=True)
class _Closing:
    """A map that its consumer closed early."""

    lane_set: _LaneSet
    work: LaneWork[Any, Any]
    thread: threading.Thread


class Lanes:
    """Connections of this process's threads to the other ranks. Construction is collective.

    Each lane's thread has separate peers. All other threads use the peers of the process, on which all ranks
    have to make the same calls in the same order.
    """

    def __init__(self, group: Group, count: int = LANES) -> None:
        if isinstance(count, bool) or count < 1:
            raise ValueError(f"lanes {count}: must be a whole number, 1 or more")
        self.group = group
        self.count = count
        self.world_size = group.world_size
        self._outside = open_peers(group)
        self._free: list[_LaneSet] = []
        self._closing: list[_Closing] = []  # in the order in which they were closed
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
        """True if this thread runs a lane, concurrently with other lanes at other steps."""
        return hasattr(self._of_thread, "peers")

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        ahead: int,
        place: Place[Item],
    ) -> Generator[Result]:
        """Yield `map(function, items)` in order, computed in lanes; all ranks pass the same number of items.

        `place` gives the epoch and the step of an item, the same on all ranks. A rank starts an item only if
        it is less than `ahead` items after the next one to be taken. An error is raised to the consumer
        instead of its item, and ends the iteration. The consumer may also end it, for example by `break`, at
        the same point on all ranks. Another map may run at the same time, on separate connections.
        """
        lane_set = self._free_set()
        work = LaneWork(function, items, ahead, place)
        threads = [
            threading.Thread(target=self._run, args=(work, lane, lane_set.lanes), name=f"khop-lane-{lane}")
            for lane in range(len(lane_set.lanes))
        ]
        try:
            for thread in threads:
                thread.start()
            for index in range(len(items)):
                yield work.take(index)
        except GeneratorExit:
            if work.is_unwanted():  # the interpreter exits: a new thread would not run
                work.give_up()
                raise
            closing = threading.Thread(
                target=_end_together, args=(lane_set, work, threads), name="khop-closing"
            )
            self._closing.append(_Closing(lane_set, work, closing))
            closing.start()
            raise
        except BaseException:
            work.give_up()  # an exchange is incomplete, so its connections cannot be reused
            raise
        for thread in threads:
            thread.join()
        self._free.append(lane_set)

    def settle(self) -> None:
        """Wait until maps that were closed early have ended on all ranks; raise their errors."""
        while self._closing:
            closing = self._closing[0]
            closing.thread.join()
            del self._closing[0]
            if closing.work.error is not None:
                raise closing.work.error
            self._free.append(closing.lane_set)

    def _free_set(self) -> _LaneSet:
        """Return a free set of lanes, the same on all ranks, or open a new one."""
        self.settle()
        if self._free:
            return self._free.pop()
        return _LaneSet(open_peers(self.group), tuple(open_peers(self.group) for _ in range(self.count)))

    def _run(self, work: LaneWork[Item, Result], lane: int, peers: Sequence[Peers]) -> None:
        self._of_thread.peers = peers[lane]
        work.run(lane, len(peers), peers[lane])


def _end_together(lane_set: _LaneSet, work: LaneWork[Any, Any], threads: Sequence[threading.Thread]) -> None:
    """Run all steps that some rank has started, then end the lanes."""
    begun = work.hold()
    if begun is not None:
        own = torch.tensor([begun]).view(torch.uint8)
        lane_set.control.begin(0, 0, work.is_unwanted)
        try:
            answers = lane_set.control.exchange([own] * lane_set.control.world_size, _CLOSING, own.numel())
            work.end_after(max(int(of_rank.view(torch.int64)) for of_rank in answers))
        except (RuntimeError, ValueError) as error:  # raised at the next use of the lanes
            work.give_up(error)
    for thread in threads:
        thread.join()
