"""Answers to other servers: by tokens of servers alone, about the own part, and from no damaged message."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from khop.draw import DrawKey, Frontier
from khop.exchange.draw_wire import HopWire
from khop.rules.rule import Hop
from khop.rules.uniform import Uniform
from khop.servers.access import Role, Token
from khop.servers.draw_keys import written_key
from khop.servers.errors import InvalidRequest, NotAllowed, ServerError, WrongGraph
from khop.servers.fair_queue import Client, QueueLimits
from khop.servers.frame import Tensors, received, whole
from khop.servers.json_fields import Plain
from khop.servers.parts.wire import DEGREES, EDGES, HOP, LINK_COUNTS, NEGATIVES, hop_fields
from khop.servers.request_handler import RequestHandler
from khop.servers.service import Service
from khop.servers.transport import Buffer
from support.byte_service import arrived
from support.parts_in_process import part_services
from support.small_typed_folders import BUYS

KEY = DrawKey(5)


@pytest.fixture(scope="module")
def services(typed_parts: Path) -> list[Service]:
    return part_services(typed_parts)


def hop_request(service: Service, *, part: int = 0, **change: Plain) -> bytes:
    """Return a request for a hop from items of a part."""
    graph = service._part._graph  # type: ignore[union-attr,attr-defined]
    first, end = graph.spans(part)["item"]
    frontier = {"item": Frontier(torch.arange(first, end))}
    hop = Hop(1, {BUYS: 3}, Uniform(), edge_ids=True)
    wire = HopWire.of(frontier, hop, KEY, graph.nodes.counts, graph.num_all_edges)
    tensors = Tensors()
    fields: dict[str, Plain] = {
        "kind": HOP,
        "graph": service._served.fingerprint,
        "part": part,
        "request": 7,
        **hop_fields((), hop, KEY, wire),
        "frontier": tensors(wire.request(frontier, graph.spans(part))),
        **change,
    }
    return whole(fields, tensors.all)


def plain_request(service: Service, kind: str, fields: Mapping[str, Plain]) -> bytes:
    return whole(
        {"kind": kind, "graph": service._served.fingerprint, "part": 0, "request": 7, "view": [], **fields},
        [],
    )


class _Stream:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def heartbeat(self) -> None: ...

    def send(self, piece: Buffer) -> None:
        self.sent.append(bytes(piece))


def test_only_tokens_of_servers_may_ask_for_hops(services: list[Service]) -> None:
    handler, stream = RequestHandler(services[0], QueueLimits()), _Stream()
    request = hop_request(services[0])
    for token in (Token("alice", b""), Token("none", b"")):
        with pytest.raises(NotAllowed, match='only tokens with `role = "server"`'):
            handler.answer(arrived(request), token, Client("a", "a"), stream, 1.0)
    assert not stream.sent
    handler.answer(arrived(request), Token("between", b"", role=Role.SERVER), Client("a", "a"), stream, 1.0)
    answer = received(stream.sent, 1 << 20, "answer")
    assert answer.tensors[0].numel() > 100
    assert answer.document["request"].whole() == 7
    assert handler.drain(5)


def test_a_request_about_another_part_or_graph_is_refused(services: list[Service]) -> None:
    with pytest.raises(WrongGraph, match="the request is for part 1, and this server has part 0"):
        services[0].accept(hop_request(services[0], part=1)).run()
    with pytest.raises(WrongGraph, match="start all servers with the same graph"):
        services[0].accept(hop_request(services[0], graph="e" * 64))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"key": written_key(DrawKey(6))}, "for another hop, or for another key"),
        ({"key": written_key(DrawKey(5, 0, 1))}, "for another hop, or for another key"),  # of another step
        ({"key": 6}, r"request\.key: has no field"),
        ({"fanouts": [[["user", "sells", "item"], 3]]}, "no edge type"),
        ({"fanouts": [["item", 3]]}, "is no edge type"),
        ({"rule": {"kind": "os:system", "with": {}}}, "is not registered"),
        ({"rule": 3}, "must be khop.Uniform"),
        ({"sent": [["shop", []]]}, "is no node type"),
        ({"sent": [["item", ["until"]]]}, "are not among those"),
        ({"view": [{"only": [["user", "sells", "item"]]}]}, "no edge type"),
    ],
)
def test_a_hop_that_does_not_fit_is_a_sentence(
    services: list[Service], change: dict[str, Plain], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        services[0].accept(hop_request(services[0], **change)).run()


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        (DEGREES, {"type": "item"}, "is no edge type"),
        (EDGES, {"type": list(BUYS), "span": [1], "begin": 0}, "not a first and a last node"),
        (NEGATIVES, {"type": list(BUYS)}, "has no field"),
        (LINK_COUNTS, {"split": {}}, "has no field"),
    ],
)
def test_other_requests_that_do_not_fit_are_sentences(
    services: list[Service], kind: str, fields: dict[str, Plain], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        services[0].accept(plain_request(services[0], kind, fields)).run()


def test_a_damaged_hop_is_refused_or_drawn_from_nodes_of_the_part(services: list[Service]) -> None:
    """A byte of the frontier is another node, or an error that a request may give: never anything else."""
    request, drawn = bytearray(hop_request(services[0])), random.Random(3)
    outcomes, mistakes = set(), []
    for _ in range(300):
        damaged = bytearray(request)
        for _ in range(drawn.randint(1, 3)):
            damaged[drawn.randrange(len(damaged))] = drawn.randrange(256)
        del damaged[len(damaged) - drawn.choice((0, 0, 0, 8)) :]
        try:
            list(services[0].accept(bytes(damaged)).run())
            outcomes.add("drawn")
        except ServerError as error:
            outcomes.add(error.code)
            mistakes += [str(error)] * ("Error on the server" in str(error))
    assert outcomes >= {"drawn", "invalid"}
    assert not mistakes
