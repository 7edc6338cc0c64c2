"""Requests of a server to the owners of other parts: all parts at once, each to any of its servers.

Requests between servers of parts: their kinds, and the fields of hops and negatives.

The list of the servers that have each part of a graph: owners.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import NoReturn, TypeVar

import torch
from torch import Tensor

from khop.distributed.exchange.draw_wire import HopWire, NegativeWire
from khop.draw import RANDOMNESS, DrawKey, DrawnNegatives, Frontier, Positives, check_drawn
from khop.errors import PeerLost
from khop.graph.rule import Hop, Rule, check_rule
from khop.graph.rule_arrays import check_edge_type
from khop.schema import EdgeType, NodeType, Schema
from khop.servers.access import Access, Address, Buffer, CallContext, Exchange, Limits, parsed_addresses
from khop.servers.call_timeouts import Caller, present_caller
from khop.servers.codec import VERSION, Frame, parsed_json, received
from khop.servers.errors import InvalidAnswer, InvalidRequest, PartLost, ServerError, WrongGraph, WrongVersion
from khop.servers.messages import CODEC, HopOf, NegativesOf, View, request
from khop.servers.registry import Registry, described

Own = TypeVar("Own")
Value = TypeVar("Value")
Body = TypeVar("Body")
_MOST_ANSWER = 1 << 36  # bytes
_ATTEMPTS = 3  # within the time that the sender of a request waits
_UNBOUNDED = 1 << 20  # threads; they only wait, and a bound could make servers wait in a circle


class PartExchange:
    """The owners of the other parts of a graph. Threads may share it."""

    def __init__(self, fingerprint: str, part: int, owners: Mapping[int, Exchange], limits: Limits) -> None:
        self.part = part
        self._fingerprint, self._owners, self._limits = fingerprint, owners, limits
        self._threads = ThreadPoolExecutor(_UNBOUNDED, thread_name_prefix="khop-ask")
        self._numbers = count()  # of requests; an answer has that of its request

    @property
    def others(self) -> tuple[int, ...]:
        """Numbers of the other parts."""
        return tuple(self._owners)

    def ask(
        self,
        kind: str,
        queries: Mapping[int, object],
        answer: type[Body],
        read: Callable[[int, Body], Value],
        meanwhile: Callable[[], Own],
    ) -> tuple[Own, dict[int, Value]]:
        """Ask several parts at the same time, and do the share of this server meanwhile.

        Return its result, and by part what `read` makes of each answer. PartLost if no owner of a part
        answers for as long as the sender of the present request waits.
        """
        caller = present_caller()
        checked = partial(_checked, answer, read)
        waiting: dict[int, Future[Value]] = {
            part: self._threads.submit(self._answer, kind, part, query, checked, caller)
            for part, query in queries.items()
        }
        own = meanwhile()
        return own, {part: answer.result() for part, answer in waiting.items()}

    def _answer(
        self,
        kind: str,
        part: int,
        query: object,
        read: Callable[[int, Frame], Value],
        caller: Caller | None,
    ) -> Value:
        number = next(self._numbers)
        message = request(kind, self._fingerprint, query, part=part, request=number)
        owners = self._owners[part]
        context = CallContext(f"{kind} of part {part}", limits=self._limits)
        if caller is not None:
            limits = within(self._limits, caller.patience_s)
            context = CallContext(context.stage, stop=caller.gone, limits=limits)
        where = f"part {part} ({', '.join(owners.addresses)})"
        try:
            return owners.ask(context, message, lambda pieces: read(part, _answer_to(number, pieces))).value
        except PeerLost as error:
            raise PartLost(str(error)) from None
        except InvalidRequest:
            raise  # about the request of the client, as it would be without parts
        except ServerError as error:
            raise type(error)(f"{where}: {error}") from error
        except ValueError as error:
            raise InvalidAnswer(f"{where}: {error}") from error


def _checked(answer: type[Body], read: Callable[[int, Body], Value], part: int, frame: Frame) -> Value:
    return read(part, frame.body(CODEC, answer))


def _answer_to(number: int, pieces: Iterator[Buffer]) -> Frame:
    """Read an answer; ValueError if it is the answer to another request, such as one of another step."""
    frame = received(pieces, _MOST_ANSWER, "answer")
    if (found := frame.whole("request")) != number:
        raise ValueError(f"answer: is to request {found}, and this request is {number}")
    return frame


def within(limits: Limits, patience_s: float) -> Limits:
    """Return limits that end before a sender with this patience gives up, after several attempts."""
    return Limits(min(limits.deadline_s, patience_s), min(limits.attempt_s, patience_s / _ATTEMPTS))


def identity_of_owner(fingerprint: str, part: int) -> Callable[[bytes], str]:
    """Return the check of the description of a server, which has to have this part of this graph."""

    def identity(description: bytes) -> str:
        given = parsed_json(description, "server")
        if not isinstance(given, dict):
            raise ValueError("server: describes no graph")
        for name, here in (("wire", VERSION), ("randomness", RANDOMNESS)):
            if given.get(name) != here:
                raise WrongVersion(
                    f"the server has version {given.get(name)} of {name}, and this one has {here}; "
                    "install the same khop on all servers"
                )
        found = str(given.get("fingerprint"))
        if found != fingerprint:
            raise WrongGraph(
                f"the server has graph {found[:12]}..., and this one has a part of {fingerprint[:12]}...; "
                "start all servers with parts of one partitioned graph"
            )
        number = given.get("part")
        if number != part:
            has = "the whole graph" if number is None else f"part {number}"
            raise WrongGraph(
                f"the server has {has}, and owners.toml names it as an owner of part {part}; correct "
                "owners.toml, or the --part of that server"
            )
        return f"{found}, part {part}"

    return identity


_NOTHING = torch.empty(0, dtype=torch.int64)


def hop_of(view: View, hop: Hop, key: DrawKey, wire: HopWire, frontier: Tensor) -> HopOf:
    """Return the message of a hop from a frontier in the format of the wire."""
    sent = {t: tuple(names) for t, names in wire.fields.items()}
    rule = described(hop.rule)
    return HopOf(view, hop.number, hop.fanouts, rule, hop.edge_ids, key, sent, frontier)


@dataclass(frozen=True)
class HopQuestion:
    """A hop as a server reads it, with the format of its messages."""

    hop: Hop
    key: DrawKey
    wire: HopWire


def read_hop(
    given: HopOf,
    registry: Registry,
    schema: Schema,
    nodes: Mapping[NodeType, int],
    edges: Mapping[EdgeType, int],
) -> HopQuestion:
    """Read a hop over a graph; `nodes` and `edges` are its counts by type. ValueError names what is wrong."""
    for edge_type in given.fanouts:
        check_edge_type(edge_type, schema)
    rule: Rule = registry.made(given.rule)
    check_rule(rule, schema)
    hop = Hop(given.number, given.fanouts, rule, given.edge_ids)
    frontier = {}
    for node_type, sent in given.sent.items():
        if node_type not in schema.node_types:
            raise ValueError(f"sent: {node_type!r} is no node type; there are {schema.node_types}")
        if not set(sent) <= rule.frontier_fields:
            raise ValueError(f"sent: {sent} are not among those that {rule} reads")
        frontier[node_type] = Frontier(_NOTHING, **dict.fromkeys(sent, _NOTHING))
    return HopQuestion(hop, given.key, HopWire.of(frontier, hop, given.key, nodes, edges))


def negatives_of(
    view: View,
    edge_type: EdgeType,
    negatives: DrawnNegatives,
    positives: Positives,
    key: DrawKey,
    links: Tensor,
) -> NegativesOf:
    """Return the message of a draw of exact negatives for links in the format of the wire."""
    kind, until = described(negatives), positives.until is not None
    return NegativesOf(view, edge_type, kind, until, positives.time_column, key, links)


@dataclass(frozen=True)
class NegativeQuestion:
    """A draw of exact negatives as a server reads it, with the format of its messages."""

    edge_type: EdgeType
    negatives: DrawnNegatives
    key: DrawKey
    wire: NegativeWire


def read_negatives(
    given: NegativesOf, registry: Registry, schema: Schema, nodes: Mapping[NodeType, int]
) -> NegativeQuestion:
    """Read a draw of negatives; ValueError names what is wrong."""
    edge_type, key = given.edge_type, given.key
    check_edge_type(edge_type, schema)
    negatives: DrawnNegatives = registry.made(given.negatives)
    check_drawn(negatives)
    positives = Positives(_NOTHING, _NOTHING, _NOTHING if given.until else None, given.time_column)
    wire = NegativeWire.of(edge_type, negatives, positives, key, nodes[edge_type[2]])
    return NegativeQuestion(edge_type, negatives, key, wire)


_ATTEMPT_S = 5.0
_FILES = ("token_file", "ca", "client_cert", "client_key")
_NUMBERS = ("attempt", "deadline")
_KEYS = {"parts", "insecure", *_FILES, *_NUMBERS}
_FORM = 'parts = [["10.0.0.5:7311"], ["10.0.0.6:7311", "10.0.0.7:7311"]]'


@dataclass(frozen=True)
class Owners:
    """Addresses of the servers of each part, and how servers reach each other."""

    parts: tuple[tuple[str, ...], ...]  # by number of the part; any of a part's servers may be asked
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=lambda: Limits(attempt_s=_ATTEMPT_S))

    def addresses(self, part: int) -> tuple[Address, ...]:
        """Return the addresses of the servers of a part."""
        return parsed_addresses(self.parts[part])

    def check(self, part: int, num_parts: int) -> None:
        """Raise ValueError unless the list fits a graph with so many parts, of which `part` is one."""
        if len(self.parts) != num_parts:
            raise ValueError(
                f"--owners: lists servers of {len(self.parts)} parts, and the graph has {num_parts}; "
                "list each part once, in order"
            )
        if not 0 <= part < num_parts:
            raise ValueError(f"--part {part}: the graph has parts 0 to {num_parts - 1}")
        if num_parts == 1:
            raise ValueError("--part: the graph has one part; serve the folder without --part and --owners")


def read_owners(path: Path) -> Owners:
    """Read owners.toml; ValueError names the key that is wrong. Files in it are relative to its folder."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is no TOML ({error})") from None
    if unknown := sorted(given.keys() - _KEYS):
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
    parts = _parts(path, given.get("parts"))
    files = {name: _file(path, name, given[name]) for name in _FILES if name in given}
    insecure = given.get("insecure", False)
    if not isinstance(insecure, bool):
        _refuse(path, "insecure", insecure, "true or false")
    limits = Limits(
        deadline_s=given.get("deadline", Limits.deadline_s),
        attempt_s=given.get("attempt", _ATTEMPT_S),
    )
    found = Owners(parts, Access(**files, encryption="off" if insecure else "remote"), limits)
    for part in range(len(parts)):
        found.addresses(part)
    return found


def _parts(path: Path, given: object) -> tuple[tuple[str, ...], ...]:
    found = [_texts(each) for each in given] if isinstance(given, list) else []
    if not found or not all(found):
        _refuse(path, "parts", given, f"a list of addresses for each part, as in {_FORM}")
    return tuple(found)


def _texts(given: object) -> tuple[str, ...]:
    """Return the texts of a list; nothing if it is no list of texts."""
    texts = tuple(each for each in given if isinstance(each, str)) if isinstance(given, list) else ()
    return texts if isinstance(given, list) and len(texts) == len(given) else ()


def _file(path: Path, name: str, given: object) -> Path:
    if not isinstance(given, str):
        _refuse(path, name, given, "the path of a file")
    return path.parent / given


def _refuse(path: Path, key: str, value: object, wanted: str) -> NoReturn:
    raise ValueError(f"{path}: {key} {value!r}: must be {wanted}")
