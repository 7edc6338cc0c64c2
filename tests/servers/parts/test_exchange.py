"""Requests to the owners of other parts: all at once, within the patience of the caller.

owners.toml: addresses of the servers of each part.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from khop.errors import PeerLost
from khop.servers.access import Address, Answer, Buffer, CallContext, Limits
from khop.servers.call_timeouts import Caller, working_for
from khop.servers.codec import VERSION, Outgoing, parsed
from khop.servers.connections import Pool, ServerState
from khop.servers.errors import (
    InvalidAnswer,
    InvalidRequest,
    MachineFailed,
    NotAllowed,
    PartLost,
    Unavailable,
    WrongGraph,
    WrongVersion,
)
from khop.servers.flight_client import fingerprint_of
from khop.servers.messages import CODEC, OctetsAnswer, PartRowsOf
from khop.servers.parts.exchange import (
    OwnerAddresses,
    PartExchange,
    identity_of_owner,
    read_owners,
    within,
)
from servers.test_pool import World, ask

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
        given = parsed(request, 1 << 20, "request")
        body = OctetsAnswer(torch.tensor([self.answer, given.whole("part")], dtype=torch.uint8))
        message = Outgoing(CODEC, body, {"request": given.whole("request") - self.late})
        return Answer(receive(iter([message.header, *message.pieces()])), "a", 0, 0, 0, 0.0)


ASKED = PartRowsOf((), torch.zeros(3, dtype=torch.uint8))


def read(part: int, answer: OctetsAnswer) -> list[int]:
    found: list[int] = answer.content.tolist()
    return found


def exchange(owners: dict[int, Owner]) -> PartExchange:
    return PartExchange("f" * 64, 1, owners, Limits(60.0, 5.0))


def test_all_parts_are_asked_at_the_same_time_and_the_own_share_is_done_meanwhile() -> None:
    together = threading.Barrier(3)
    found = exchange({0: Owner(10, together=together), 2: Owner(12, together=together)}).ask(
        {0: ASKED, 2: ASKED}, OctetsAnswer, read, lambda: together.wait(60)
    )
    assert found[1] == {0: [10, 0], 2: [12, 2]}


def test_only_parts_with_a_query_are_asked() -> None:
    owners = {0: Owner(), 2: Owner()}
    assert exchange(owners).ask({2: ASKED}, OctetsAnswer, read, lambda: "own") == ("own", {2: [0, 2]})
    assert not owners[0].contexts


def test_the_wait_is_that_of_the_caller() -> None:
    owner, gone = Owner(), threading.Event()
    asked = exchange({0: owner})
    asked.ask({0: ASKED}, OctetsAnswer, read, lambda: None)
    working_for(Caller(gone, 3.0), lambda: asked.ask({0: ASKED}, OctetsAnswer, read, lambda: None))
    first, second = owner.contexts
    assert (first.limits, first.stop) == (Limits(60.0, 5.0), None)
    assert (second.limits, second.stop) == (Limits(3.0, 1.0), gone)
    assert second.stage == "part rows of part 0"
    assert within(Limits(60.0, 5.0), 1000.0) == Limits(60.0, 5.0)


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (
            PeerLost("hop of part 0: no server has answered"),
            PartLost,
            "hop of part 0: no server has answered",
        ),
        (NotAllowed("token 'a'"), MachineFailed, r"part 0 \(10\.0\.0\.6:7311\): token 'a'"),
        (InvalidRequest("have no times"), InvalidRequest, "^have no times"),
        (ValueError("degree 7"), InvalidAnswer, r"part 0 \(10\.0\.0\.6:7311\): degree 7"),
    ],
)
def test_an_error_names_the_part(error: Exception, raised: type[Exception], words: str) -> None:
    with pytest.raises(raised, match=words):
        exchange({0: Owner(error=error)}).ask({0: ASKED}, OctetsAnswer, read, lambda: None)


def test_an_answer_to_an_earlier_request_is_refused() -> None:
    """Hops of successive steps have answers of equal sizes: nothing else in them differs."""
    owner = Owner()
    asked = exchange({0: owner})
    asked.ask({0: ASKED}, OctetsAnswer, read, lambda: None)
    owner.late = 1
    sentence = r"part 0 \(10\.0\.0\.6:7311\): answer: is to request 0, and this request is 1"
    with pytest.raises(InvalidAnswer, match=sentence):
        asked.ask({0: ASKED}, OctetsAnswer, read, lambda: None)


GOOD = {"wire": VERSION, "randomness": 1, "fingerprint": "f" * 64, "part": 2}


@pytest.mark.parametrize(
    ("change", "raised", "words"),
    [
        ({"fingerprint": "e" * 64}, WrongGraph, "start all servers with parts of one partitioned graph"),
        ({"part": 1}, WrongGraph, "the server has part 1, and owners.toml names it as an owner of part 2"),
        ({"part": None}, WrongGraph, "the server has the whole graph"),
        ({"wire": VERSION + 1}, WrongVersion, f"version {VERSION + 1} of wire"),
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


@pytest.mark.parametrize("text", [b"", b"SSH-2.0", b"\xff", b"[]", b"7", b"null", b"[" * 100_000])
@pytest.mark.parametrize("identity", [fingerprint_of, identity_of_owner("f" * 64, 2)])
def test_a_server_of_something_else_is_refused_by_probes_too(
    identity: Callable[[bytes], str], text: bytes
) -> None:
    """A probe runs in a thread of its own, which an error other than a ServerError would end."""
    world = World()
    pool = world.pool = Pool([Address("a", 1)], world, Limits(), identity, world, lambda work: None)
    (server,) = pool._connections.server_list.servers
    server.lose(Unavailable("reset"), 0.0)
    world.graphs["a"] = text
    pool._connections.probe(server)
    assert server.state is ServerState.REFUSED
    with pytest.raises(WrongVersion, match="the server does not describe a graph"):
        ask(pool)


PAGE = Path(__file__).parents[3] / "docs" / "servers-parts.md"


def test_the_example_of_the_documentation_is_read(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(parts = .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "owners.toml").write_text(example)
    found = read_owners(tmp_path / "owners.toml")
    assert found.parts == (("127.0.0.1:7311",), ("127.0.0.1:7312",))
    assert found.access.token_file == tmp_path / "between"
    assert (found.limits.attempt_s, found.limits.deadline_s) == (5.0, 60.0)
    found.check(1, 2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("parts = [", "is not TOML"),
        ("", "parts None: must be a list of addresses for each part"),
        ("parts = []", "must be a list of addresses"),
        ('parts = ["a:1"]', "must be a list of addresses"),
        ("parts = [[]]", "must be a list of addresses"),
        ('parts = [["a:1", 2]]', "must be a list of addresses"),
        ('parts = [["nowhere"]]', "HOST:PORT"),
        ('parts = [["a:1"]]\nowner = 1', "unknown key 'owner'"),
        ('parts = [["a:1"]]\ntoken_file = 1', "token_file 1: must be the path of a file"),
        ('parts = [["a:1"]]\ninsecure = 1', "insecure 1: must be true or false"),
        ('parts = [["a:1"]]\nattempt = 0', "attempt_s 0: must be a number of seconds above 0"),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "owners.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_owners(tmp_path / "owners.toml")


@pytest.mark.parametrize(
    ("part", "num_parts", "sentence"),
    [(0, 3, "lists servers of 2 parts, and the graph has 3"), (2, 2, "--part 2: the graph has parts 0 to 1")],
)
def test_a_list_that_does_not_fit_the_graph_is_a_sentence(part: int, num_parts: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        OwnerAddresses((("a:1",), ("b:1",))).check(part, num_parts)
    with pytest.raises(ValueError, match="the graph has one part"):
        OwnerAddresses((("a:1",),)).check(0, 1)
