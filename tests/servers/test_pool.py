"""Requests to several servers, under a clock of the test: whom a pool asks, when, and for how long."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from khop.errors import PeerLost
from khop.servers.access import Address, Buffer, CallContext, Endpoint, Limits
from khop.servers.connections import LAST_PROBE_S, PROBE_S, Pool, ServerState
from khop.servers.errors import (
    Busy,
    Cancelled,
    GoingAway,
    InvalidRequest,
    MachineFailed,
    NotAllowed,
    PartLost,
    ServerError,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WrongGraph,
    WrongVersion,
)

A, B = Address("a", 1), Address("b", 1)
LIMITS = Limits(deadline_s=60, attempt_s=10)
STEP = CallContext("batch", 3, 17)


@dataclass
class World:
    """Servers, names and time, all in the hands of a test."""

    time: float = 0.0
    faults: dict[str, Callable[[], None]] = field(default_factory=dict)  # by number: raises, or takes time
    names: dict[str, list[str]] = field(default_factory=dict)
    graphs: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    pool: Pool | None = None

    def now(self) -> float:
        return self.time

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Let time pass, and probe the servers that are due, as the threads of a real pool do."""
        assert self.pool is not None
        assert seconds < 1e6, "nothing would end this wait"
        end = self.time + max(seconds, 1e-3)
        connections = self.pool._connections
        lost = [
            s for s in connections.server_list.servers if s.state is ServerState.LOST and s.not_before <= end
        ]
        if not lost:
            self.time = end
            return
        first = min(lost, key=lambda s: s.not_before)
        self.time = max(self.time, first.not_before)
        self.probes.append(self.time)
        connections.probe(first)

    def resolve(self, address: Address) -> list[Endpoint]:
        return [Endpoint(address, number) for number in self.names.get(address.host, [address.host])]

    def connect(self, endpoint: Endpoint, timeout_s: float) -> World.ResponseStream:
        line = World.ResponseStream(self, endpoint.number)
        line.fault(timeout_s)
        return line

    @dataclass
    class ResponseStream:
        world: World
        address: str
        closed: bool = False

        def fault(self, timeout_s: float) -> None:
            before = self.world.time
            try:
                self.world.faults.get(self.address, lambda: None)()
            except TimedOut:
                self.world.time = before + timeout_s
                raise

        def describe(self, timeout_s: float) -> bytes:
            return self.world.graphs.get(self.address, b"shop")

        def batch(
            self, request: bytes, attempt_s: float, deadline_s: float, stop: threading.Event | None
        ) -> Iterator[Buffer]:
            self.world.asked.append(self.address)
            self.fault(attempt_s)
            yield b"header"
            yield request

        def status(self, timeout_s: float) -> bytes:
            return b"{}"

        def close(self) -> None:
            self.closed = True


def raising(error: ServerError) -> Callable[[], None]:
    def fault() -> None:
        raise error

    return fault


@pytest.fixture
def world() -> World:
    return World()


def pool_of(world: World, *addresses: Address, limits: Limits = LIMITS) -> Pool:
    world.pool = Pool(addresses, world, limits, bytes.decode, world, background=lambda work: None)
    return world.pool


def ask(pool: Pool, asking: CallContext = STEP) -> str:
    answer = pool.ask(asking, b"r" * 10, lambda pieces: b"".join(bytes(p) for p in pieces))
    assert answer.value == b"header" + b"r" * 10
    assert answer.wire_bytes == 16
    return answer.server


def test_two_servers_answer_half_of_the_requests_each(world: World) -> None:
    pool = pool_of(world, A, B)
    assert Counter(ask(pool) for _ in range(100)) == {"a:1": 50, "b:1": 50}
    assert pool.describe() == b"shop"


def test_a_server_that_is_gone_costs_a_retry_and_is_then_only_probed(world: World) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    world.faults["a"] = raising(Unavailable("reset"))
    world.asked.clear()
    assert {ask(pool) for _ in range(10)} == {"b:1"}
    assert Counter(world.asked) == {"a": 1, "b": 10}
    assert pool.counts["retries"] == 1
    assert world.time == 0


def test_a_stopped_server_costs_one_attempt(world: World) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    world.faults["a"] = raising(TimedOut("silent"))
    assert {ask(pool) for _ in range(10)} == {"b:1"}
    assert world.time == LIMITS.attempt_s


def test_a_server_that_is_back_is_asked_again(world: World) -> None:
    pool = pool_of(world, A)
    ask(pool)
    gone = raising(Unavailable("refused"))
    world.faults["a"] = lambda: gone() if world.time < 5 else None
    assert ask(pool) == "a:1"
    assert 5 <= world.time <= 6
    assert len(world.probes) > 3  # and not hundreds of them
    assert len(world.probes) < 15


def test_a_stopped_server_is_only_probed_and_every_half_second(world: World) -> None:
    """A stopped server accepts connections and answers nothing: each probe takes its full time."""
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    silent = raising(TimedOut("silent"))
    world.faults["a"] = lambda: silent() if world.time < 60 else None
    ask(pool), ask(pool)
    world.asked.clear()
    while world.time < 58:
        world.wait(pool._connections.changed, 0.1)
        assert ask(pool) == "b:1"
    gaps = [later - earlier - PROBE_S for earlier, later in pairwise(world.probes)]
    assert gaps[:2] == pytest.approx([0.2, 0.4])  # 0.1 s, doubled
    assert gaps[2:] == pytest.approx([LAST_PROBE_S] * len(gaps[2:]))
    assert LAST_PROBE_S == 0.5
    assert "a" not in world.asked
    while world.time < 60 + PROBE_S + LAST_PROBE_S:
        world.wait(pool._connections.changed, 0.1)
    assert ask(pool) == "a:1"  # which has fewer requests so far


def test_all_gone_is_peer_lost_within_the_deadline_and_a_second(world: World) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    world.faults["a"], world.faults["b"] = raising(TimedOut("silent")), raising(Unavailable("refused"))
    with pytest.raises(PeerLost) as lost:
        ask(pool)
    assert LIMITS.deadline_s <= world.time <= LIMITS.deadline_s + PROBE_S
    for words in ("batch of epoch 3, step 17", "a:1: silent", "b:1: refused", "60 s", "--resume"):
        assert words in str(lost.value)


def test_a_batch_slower_than_attempt_and_deadline_is_no_failure(world: World) -> None:
    """Heartbeats bound silence, not work: only the connection knows, and it raises nothing here."""
    pool = pool_of(world, A)
    world.faults["a"] = lambda: setattr(world, "time", world.time + 50)
    assert ask(pool) == "a:1"
    assert pool.counts["retries"] == 0


def test_work_of_a_server_that_dies_late_does_not_use_up_the_deadline(world: World) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)

    def dies() -> None:
        world.time += 100
        raise Unavailable("reset")

    world.faults["a"] = dies
    assert [ask(pool), ask(pool)] == ["b:1", "b:1"]


@pytest.mark.parametrize("error", [InvalidRequest("no column z"), TooLarge("2 GB")])
def test_errors_that_every_server_would_repeat_are_not_retried(world: World, error: ServerError) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    world.faults["a"] = world.faults["b"] = raising(error)
    world.asked.clear()
    with pytest.raises(type(error), match=str(error)):
        ask(pool)
    assert len(world.asked) == 1


@pytest.mark.parametrize(
    "error",
    [
        WrongGraph("other graph"),
        WrongVersion("other khop"),
        Unauthenticated("wrong token"),
        NotAllowed("graph 'b'"),
    ],
    ids=lambda error: error.code,
)
def test_a_server_restarted_as_another_is_left_out_until_none_is_left(
    world: World, error: ServerError
) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    line = pool._connections.server_list.servers[0].connection
    world.faults["a"] = raising(error)
    world.asked.clear()
    assert {ask(pool) for _ in range(6)} == {"b:1"}
    assert Counter(world.asked) == {"a": 1, "b": 6}
    assert line is not None
    assert line.closed  # type: ignore[attr-defined]
    world.faults["b"] = raising(error)
    sentence = f"step 17: no server of this graph is left (a:1: {error}; b:1: {error})"
    for _ in range(2):
        with pytest.raises(type(error), match=re.escape(sentence)):
            ask(pool)
    assert Counter(world.asked) == {"a": 1, "b": 7}
    assert (world.time, world.probes) == (0, [])


def test_a_machine_that_a_name_gets_later_is_left_out_if_it_has_another_graph(world: World) -> None:
    world.names["a"] = ["10.0.0.1"]
    pool = pool_of(world, A)
    ask(pool)
    world.names["a"] = ["10.0.0.2", "10.0.0.3"]
    world.faults["10.0.0.1"] = raising(Unavailable("reset"))
    world.graphs["10.0.0.3"] = b"fraud"
    assert {ask(pool) for _ in range(6)} == {"a:1 (10.0.0.2)"}
    states = [server.state for server in pool._connections.server_list.servers]
    assert states == [ServerState.READY, ServerState.REFUSED]


def test_a_refusal_at_the_first_contact_is_raised_at_once(world: World) -> None:
    pool = pool_of(world, A)
    world.faults["a"] = raising(Unauthenticated("wrong token"))
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            ask(pool)
    assert world.time == 0


def test_a_busy_server_is_asked_again_soon_and_another_one_first(world: World) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    world.faults["a"] = raising(Busy("queue is full"))
    assert {ask(pool) for _ in range(5)} == {"b:1"}
    world.faults["b"] = lambda: raising(Busy("queue is full"))() if world.time < 2 else None
    assert ask(pool) == "b:1"
    assert 2 <= world.time < 3
    assert not world.probes


def test_busy_servers_are_alive_for_as_long_as_they_say_so(world: World) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    busy = raising(Busy("queue is full"))
    world.faults["a"] = lambda: busy() if world.time < 300 else None
    world.faults["b"] = raising(Unavailable("refused"))
    assert ask(pool) == "a:1"
    assert 300 <= world.time <= 301
    world.faults["a"] = lambda: busy() if world.time < 400 else raising(Unavailable("refused"))()
    with pytest.raises(PeerLost, match="no server has answered for 60 s"):
        ask(pool)
    assert 400 + LIMITS.deadline_s - 1 <= world.time <= 400 + LIMITS.deadline_s + PROBE_S


def test_busy_answers_do_not_keep_a_request_alive_whose_part_is_lost(world: World) -> None:
    def waits() -> None:
        world.time += LIMITS.attempt_s
        raise PartLost("hop of part 1: no server has answered")

    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    world.faults.update(a=raising(Busy("queue is full")), b=waits)
    with pytest.raises(PeerLost, match="hop of part 1"):
        ask(pool)
    assert world.time <= LIMITS.deadline_s + LIMITS.attempt_s


def test_a_part_without_owners_is_peer_lost_within_the_deadline(world: World) -> None:
    """A server waits for an owner for as long as an attempt lasts. Its heartbeats are then no progress."""

    def waits() -> None:
        world.time += 1.6 * LIMITS.attempt_s
        raise PartLost("hop of part 1: no server has answered")

    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    world.faults.update(a=waits, b=waits)
    with pytest.raises(PeerLost, match=r"no server has answered for 60 s \(a:1: hop of part 1: .*; b:1: hop"):
        ask(pool)
    assert world.time <= LIMITS.deadline_s + 1.6 * LIMITS.attempt_s
    assert {"a", "b"} == set(world.asked)


def test_a_request_may_have_limits_of_its_own(world: World) -> None:
    pool = pool_of(world, A)
    world.faults["a"] = raising(Unavailable("gone"))
    with pytest.raises(PeerLost, match="hop of part 1: no server has answered for 3 s"):
        ask(pool, CallContext("hop of part 1", limits=Limits(3, 1)))
    assert world.time <= 3 + PROBE_S


def test_a_server_that_goes_away_keeps_the_streams_it_has_begun(world: World) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    line = pool._connections.server_list.servers[0].connection
    world.faults["a"] = raising(GoingAway("draining"))
    assert {ask(pool) for _ in range(4)} == {"b:1"}
    assert line is not None
    assert not line.closed  # type: ignore[attr-defined]


def test_a_failed_machine_is_avoided_and_reported_once_all_have_failed(world: World) -> None:
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    world.faults["a"] = raising(MachineFailed("disk"))
    assert {ask(pool) for _ in range(4)} == {"b:1"}
    world.time += 5
    world.faults["b"] = raising(MachineFailed("disk"))
    with pytest.raises(MachineFailed):
        ask(pool)
    assert world.time < 10


def test_a_server_with_another_graph_is_refused_at_the_start_and_left_out_later(world: World) -> None:
    world.graphs["b"] = b"fraud"
    pool = pool_of(world, A, B)
    ask(pool)
    with pytest.raises(WrongGraph, match="b:1: has graph fraud, the others have shop"):
        ask(pool)
    world.graphs.clear()
    pool = pool_of(world, A, B)
    ask(pool), ask(pool)
    world.faults["b"] = lambda: raising(Unavailable("reset"))() if world.time < 0.05 else None
    world.graphs["b"] = b"fraud"
    ask(pool), ask(pool)
    world.wait(pool._connections.changed, 5)
    assert {ask(pool) for _ in range(4)} == {"a:1"}


def test_a_name_of_several_machines_uses_them_all_and_is_resolved_again_on_failure(world: World) -> None:
    world.names["a"] = ["10.0.0.1", "10.0.0.2"]
    pool = pool_of(world, A)
    for _ in range(10):
        ask(pool)
    assert abs(world.asked.count("10.0.0.1") - world.asked.count("10.0.0.2")) <= 1
    world.names["a"] = ["10.0.0.2", "10.0.0.3"]
    world.faults["10.0.0.1"] = raising(Unavailable("reset"))
    for _ in range(4):
        ask(pool)
    world.wait(pool._connections.changed, 1)
    world.asked.clear()
    for _ in range(10):
        ask(pool)
    assert set(world.asked) == {"10.0.0.2", "10.0.0.3"}


def test_an_answer_has_the_place_of_its_address_for_all_machines_of_a_name(world: World) -> None:
    world.names["b"] = ["10.0.0.1", "10.0.0.2"]
    pool = pool_of(world, A, B)
    places = {answer.server: answer.place for answer in (pool.ask(STEP, b"r", list) for _ in range(9))}
    assert places == {"a:1": 0, "b:1 (10.0.0.1)": 1, "b:1 (10.0.0.2)": 1}


def test_a_request_that_is_no_longer_wanted_ends_at_once(world: World) -> None:
    pool = pool_of(world, A)
    stop = threading.Event()

    def gone() -> None:
        if world.time > 3:
            stop.set()
        raise Unavailable("reset")

    world.faults["a"] = gone
    with pytest.raises(Cancelled):
        ask(pool, CallContext("batch", 0, 0, stop))
    assert world.time < 6
    pool.close()
    with pytest.raises(Cancelled, match="closed"):
        ask(pool)


def test_a_lost_server_is_found_by_a_thread() -> None:
    """The same with the clock and the threads of the machine."""
    world = World()
    broken = threading.Event()
    world.faults["a"] = lambda: raising(Unavailable("reset"))() if broken.is_set() else None
    pool = Pool([A], world, Limits(deadline_s=30, attempt_s=5), bytes.decode)
    ask(pool)
    broken.set()
    threading.Timer(0.3, broken.clear).start()
    assert ask(pool) == "a:1"
    pool.close()
