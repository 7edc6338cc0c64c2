"""Requests of a server to the owners of other parts: all parts at once, each to any of its servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from khop.draw import RANDOMNESS
from khop.errors import PeerLost
from khop.servers.access import Limits
from khop.servers.caller import Caller, present_caller
from khop.servers.errors import (
    InvalidAnswer,
    InvalidRequest,
    PartLost,
    ServerError,
    WrongGraph,
    WrongVersion,
)
from khop.servers.frame import VERSION, Frame, Tensors, received, whole
from khop.servers.json_fields import Document, Plain
from khop.servers.transport import Buffer, CallContext, Exchange

Own = TypeVar("Own")
Value = TypeVar("Value")
_MOST_ANSWER = 1 << 36  # bytes
_ATTEMPTS = 3  # within the time that the sender of a request waits
_UNBOUNDED = 1 << 20  # threads; they only wait, and a bound could make servers wait in a circle


@dataclass(frozen=True)
class Query:
    """A request about one part."""

    fields: Mapping[str, Plain]
    tensors: Tensors = field(default_factory=Tensors)


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
        queries: Mapping[int, Query],
        read: Callable[[int, Frame], Value],
        meanwhile: Callable[[], Own],
    ) -> tuple[Own, dict[int, Value]]:
        """Ask several parts at the same time, and do the share of this server meanwhile.

        Return its result, and by part what `read` makes of each answer. PartLost if no owner of a part
        answers for as long as the sender of the present request waits.
        """
        caller = present_caller()
        waiting: dict[int, Future[Value]] = {
            part: self._threads.submit(self._answer, kind, part, query, read, caller)
            for part, query in queries.items()
        }
        own = meanwhile()
        return own, {part: answer.result() for part, answer in waiting.items()}

    def _answer(
        self,
        kind: str,
        part: int,
        query: Query,
        read: Callable[[int, Frame], Value],
        caller: Caller | None,
    ) -> Value:
        number = next(self._numbers)
        fields = {"kind": kind, "graph": self._fingerprint, "part": part, "request": number, **query.fields}
        request, owners = whole(fields, query.tensors.all), self._owners[part]
        context = CallContext(f"{kind} of part {part}", limits=self._limits)
        if caller is not None:
            limits = within(self._limits, caller.patience_s)
            context = CallContext(context.stage, stop=caller.gone, limits=limits)
        where = f"part {part} ({', '.join(owners.addresses)})"
        try:
            return owners.ask(context, request, lambda pieces: read(part, _answer_to(number, pieces))).value
        except PeerLost as error:
            raise PartLost(str(error)) from None
        except InvalidRequest:
            raise  # about the request of the client, as it would be without parts
        except ServerError as error:
            raise type(error)(f"{where}: {error}") from error
        except ValueError as error:
            raise InvalidAnswer(f"{where}: {error}") from error


def _answer_to(number: int, pieces: Iterator[Buffer]) -> Frame:
    """Read an answer; ValueError if it is the answer to another request, such as one of another step."""
    frame = received(pieces, _MOST_ANSWER, "answer")
    if (found := frame.document["request"].whole()) != number:
        raise ValueError(f"answer: is to request {found}, and this request is {number}")
    return frame


def within(limits: Limits, patience_s: float) -> Limits:
    """Return limits that end before a sender with this patience gives up, after several attempts."""
    return Limits(min(limits.deadline_s, patience_s), min(limits.attempt_s, patience_s / _ATTEMPTS))


def identity_of_owner(fingerprint: str, part: int) -> Callable[[bytes], str]:
    """Return the check of the description of a server, which has to have this part of this graph."""

    def identity(description: bytes) -> str:
        given = Document.parsed(description, "server")
        for name, here in (("wire", VERSION), ("randomness", RANDOMNESS)):
            if given[name].whole() != here:
                raise WrongVersion(
                    f"the server has version {given[name].whole()} of {name}, and this one has {here}; "
                    "install the same khop on all servers"
                )
        found = given["fingerprint"].text()
        if found != fingerprint:
            raise WrongGraph(
                f"the server has graph {found[:12]}..., and this one has a part of {fingerprint[:12]}...; "
                "start all servers with parts of one partitioned graph"
            )
        number = given.given("part")
        if number is None or number.whole() != part:
            has = "the whole graph" if number is None else f"part {number.whole()}"
            raise WrongGraph(
                f"the server has {has}, and owners.toml names it as an owner of part {part}; correct "
                "owners.toml, or the --part of that server"
            )
        return f"{found}, part {part}"

    return identity
