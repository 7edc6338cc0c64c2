"""Requests to the owners of other parts: all at once, within the patience of the caller."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from khop.errors import PeerLost
from khop.servers.access import Limits
from khop.servers.caller import Caller, working_for
from khop.servers.errors import InvalidAnswer, InvalidRequest, NotAllowed, PartLost, WrongGraph, WrongVersion
from khop.servers.frame import VERSION, Frame, parsed, whole
from khop.servers.parts.exchange import PartExchange, Query, identity_of_owner, within
from khop.servers.transport import Answer, Buffer, CallContext

Received = TypeVar("Received")


@dataclass
class Owner:
    """Owners of a part that answer with a number, or fail."""

    answer: int = 0
    error: Exception | None = None
    together: threading.Barrier | None = None
    late: int = 0  # requests by which answers lag behind
    contexts: list[CallContext] = field(default_factory=list)
    addresses: tuple[str, ...] = ("10.0.0.6:7311",)

    def describe(self) -> bytes:
        raise AssertionError

    def close(self) -> None: ...

    def ask(
        self, context: CallContext, request: bytes, receive: Callable[[Iterator[Buffer]], Received]
    ) -> Answer[Received]:
        self.contexts.append(context)
        if self.together is not None:
            self.together.wait(60)
        if self.error is not None:
            raise self.error
        given = parsed(request, 1 << 20, "request").document
        fields = {"answer": self.answer, "asked": given["part"].value, "kind": given["kind"].value}
        fields["request"] = given["request"].whole() - self.late
        return Answer(receive(iter([whole(fields, [])])), "a", 0, 0, 0, 0.0)


def read(part: int, frame: Frame) -> tuple[int, object, object]:
    given = frame.document
    return given["answer"].whole(), given["asked"].value, given["kind"].value


def exchange(owners: dict[int, Owner]) -> PartExchange:
    return PartExchange("f" * 64, 1, owners, Limits(60.0, 5.0))


def test_all_parts_are_asked_at_the_same_time_and_the_own_share_is_done_meanwhile() -> None:
    together = threading.Barrier(3)
    found = exchange({0: Owner(10, together=together), 2: Owner(12, together=together)}).ask(
        "hop", {0: Query({}), 2: Query({})}, read, lambda: together.wait(60)
    )
    assert found[1] == {0: (10, 0, "hop"), 2: (12, 2, "hop")}


def test_only_parts_with_a_query_are_asked() -> None:
    owners = {0: Owner(), 2: Owner()}
    assert exchange(owners).ask("hop", {2: Query({})}, read, lambda: "own") == ("own", {2: (0, 2, "hop")})
    assert not owners[0].contexts


def test_the_wait_is_that_of_the_caller() -> None:
    owner, gone = Owner(), threading.Event()
    asked = exchange({0: owner})
    asked.ask("hop", {0: Query({})}, read, lambda: None)
    working_for(Caller(gone, 3.0), lambda: asked.ask("hop", {0: Query({})}, read, lambda: None))
    first, second = owner.contexts
    assert (first.limits, first.stop) == (Limits(60.0, 5.0), None)
    assert (second.limits, second.stop) == (Limits(3.0, 1.0), gone)
    assert second.stage == "hop of part 0"
    assert within(Limits(60.0, 5.0), 1000.0) == Limits(60.0, 5.0)


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (
            PeerLost("hop of part 0: no server has answered"),
            PartLost,
            "hop of part 0: no server has answered",
        ),
        (NotAllowed("token 'a'"), NotAllowed, r"part 0 \(10\.0\.0\.6:7311\): token 'a'"),
        (InvalidRequest("have no times"), InvalidRequest, "^have no times"),
        (ValueError("degree 7"), InvalidAnswer, r"part 0 \(10\.0\.0\.6:7311\): degree 7"),
    ],
)
def test_an_error_names_the_part(error: Exception, raised: type[Exception], words: str) -> None:
    with pytest.raises(raised, match=words):
        exchange({0: Owner(error=error)}).ask("hop", {0: Query({})}, read, lambda: None)


def test_an_answer_to_an_earlier_request_is_refused() -> None:
    """Hops of successive steps have answers of equal sizes: nothing else in them differs."""
    owner = Owner()
    asked = exchange({0: owner})
    asked.ask("hop", {0: Query({})}, read, lambda: None)
    owner.late = 1
    sentence = r"part 0 \(10\.0\.0\.6:7311\): answer: is to request 0, and this request is 1"
    with pytest.raises(InvalidAnswer, match=sentence):
        asked.ask("hop", {0: Query({})}, read, lambda: None)


GOOD = {"wire": VERSION, "randomness": 1, "fingerprint": "f" * 64, "part": 2}


@pytest.mark.parametrize(
    ("change", "raised", "words"),
    [
        ({"fingerprint": "e" * 64}, WrongGraph, "start all servers with parts of one partitioned graph"),
        ({"part": 1}, WrongGraph, "the server has part 1, and owners.toml names it as an owner of part 2"),
        ({"part": None}, WrongGraph, "the server has the whole graph"),
        ({"wire": 9}, WrongVersion, "version 9 of wire"),
        ({"randomness": 9}, WrongVersion, "version 9 of randomness"),
    ],
)
def test_a_server_with_another_part_is_refused(
    change: dict[str, object], raised: type[Exception], words: str
) -> None:
    identity = identity_of_owner("f" * 64, 2)
    assert identity(json.dumps(GOOD).encode()) == f"{'f' * 64}, part 2"
    with pytest.raises(raised, match=words):
        identity(json.dumps({**GOOD, **change}).encode())
