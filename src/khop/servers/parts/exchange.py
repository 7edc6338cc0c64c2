"""Concurrent requests to the owners of other parts, and owners.toml, the list of the owners' addresses.

Any server of a part can answer its requests.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

from torch import Tensor

from khop.distributed.link_split import LinkCounts, SplitCounts, Touched
from khop.distributed.owners import EdgeSources, NodeDegrees, Offsets, OwnerQuestion, Result, Subject
from khop.distributed.partitioned_features import RowQuestion
from khop.distributed.partitioned_graph import DegreeQuestion, HopQuestion, NegativeQuestion
from khop.draw import RANDOMNESS
from khop.errors import PeerLost
from khop.servers import messages
from khop.servers.access import Access, Address, Buffer, CallContext, Limits, parsed_addresses
from khop.servers.call_timeouts import Caller, present_caller
from khop.servers.codec import VERSION, Frame, parsed_description, received
from khop.servers.connections import Pool
from khop.servers.errors import (
    InvalidAnswer,
    InvalidRequest,
    MachineFailed,
    PartLost,
    Retry,
    ServerError,
    WrongGraph,
    WrongVersion,
)
from khop.servers.registry import described

Own = TypeVar("Own")
Value = TypeVar("Value")
Body = TypeVar("Body")
_MOST_ANSWER = 1 << 36  # bytes
KINDS = {kind: name for name, kind in messages.PART_REQUESTS.items()}
_ATTEMPTS = 3  # within the time limit of a request's sender
_UNBOUNDED = 1 << 20  # threads; they only wait, and a bound could make servers wait in a circle


class PartExchange:
    """The owners of the other parts of a graph. Threads may share it."""

    def __init__(self, fingerprint: str, part: int, owners: Mapping[int, Pool], limits: Limits) -> None:
        self.part = part
        self._fingerprint, self._owners, self._limits = fingerprint, owners, limits
        self._threads = ThreadPoolExecutor(_UNBOUNDED, thread_name_prefix="khop-ask")
        self._numbers = count()  # of requests; an answer has its request's number

    @property
    def others(self) -> tuple[int, ...]:
        """Numbers of the other parts."""
        return tuple(self._owners)

    def ask(
        self,
        queries: Mapping[int, object],
        answer: type[Body],
        read: Callable[[int, Body], Value],
        meanwhile: Callable[[], Own],
    ) -> tuple[Own, dict[int, Value]]:
        """Query several parts concurrently, and compute this server's share meanwhile.

        Returns the local result, and by part the value that `read` makes of each answer. PartLost if no owner
        of a part answers within the time limit of the current request's sender.
        """
        caller = present_caller()
        checked = partial(_checked, answer, read)
        waiting: dict[int, Future[Value]] = {
            part: self._threads.submit(self._answer, part, query, checked, caller)
            for part, query in queries.items()
        }
        own = meanwhile()
        return own, {part: answer.result() for part, answer in waiting.items()}

    def _answer(
        self,
        part: int,
        query: object,
        read: Callable[[int, Frame], Value],
        caller: Caller | None,
    ) -> Value:
        number, kind = next(self._numbers), KINDS[type(query)]
        message = messages.request(kind, self._fingerprint, query, part=part, request=number)
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
            raise  # about the client's request, as for a graph without parts
        except ServerError as error:
            # An owner that is refused does not make this server one of another graph.
            made = MachineFailed if error.retry is Retry.OTHERS else type(error)
            raise made(f"{where}: {error}") from error
        except ValueError as error:
            raise InvalidAnswer(f"{where}: {error}") from error


def _checked(answer: type[Body], read: Callable[[int, Body], Value], part: int, frame: Frame) -> Value:
    return read(part, frame.body(messages.CODEC, answer))


def _answer_to(number: int, pieces: Iterator[Buffer]) -> Frame:
    """Read an answer; ValueError if it belongs to another request, such as one of another step."""
    frame = received(pieces, _MOST_ANSWER, "answer")
    if (found := frame.whole("request")) != number:
        raise ValueError(f"answer: is to request {found}, and this request is {number}")
    return frame


def within(limits: Limits, patience_s: float) -> Limits:
    """Return limits for several attempts within the sender's time limit."""
    return Limits(min(limits.deadline_s, patience_s), min(limits.attempt_s, patience_s / _ATTEMPTS))


def identity_of_owner(fingerprint: str, part: int) -> Callable[[bytes], str]:
    """Return a function that checks that a server's description is of this part of this graph."""

    def identity(description: bytes) -> str:
        given = parsed_description(description)
        for name, here in (("wire", VERSION), ("randomness", RANDOMNESS)):
            if given.get(name) != here:
                raise WrongVersion(
                    f"the server has version {given.get(name)} of {name}, and this one has {here}; "
                    "install the same khop on all servers"
                )
        found = str(given.get("fingerprint"))
        if found != fingerprint:
            raise WrongGraph(
                f"the server has graph {found[:12]}..., but this one stores a part of {fingerprint[:12]}...; "
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


@dataclass(frozen=True)
class PartOwners:
    """The servers of a graph's parts as owners (an Owners); each part is an owner.

    Requests to other servers contain each step of a view. Parts with an empty query do not get a request.
    """

    exchange: PartExchange
    view: messages.View = ()
    is_collective: ClassVar[bool] = False
    is_first: ClassVar[bool] = True

    @property
    def own(self) -> int:
        """Number of the part of this server."""
        return self.exchange.part

    @property
    def count(self) -> int:
        """Number of parts."""
        return len(self.exchange.others) + 1

    def bounds(self, offsets: Offsets) -> Sequence[int]:
        """Return the first id of each part, and the end of the last."""
        return offsets

    def span(self, offsets: Offsets, owner: int) -> tuple[int, int]:
        """Return the first id of a part, and the id after its last."""
        return offsets[owner], offsets[owner + 1]

    def after(self, step: object) -> PartOwners:
        """Return the owners of a graph after a step of its view, or with only some edge types."""
        step = messages.Only(step) if isinstance(step, tuple) else step
        assert isinstance(step, messages.Step)
        return replace(self, view=(*self.view, step))

    def ask(
        self, question: OwnerQuestion, queries: Sequence[Any], use: Callable[[Sequence[Any]], Result]
    ) -> Result:
        """Send each part its query, and return the result of `use` over the answers; see Owners."""
        own = self.own
        asked = {q: query for q, query in enumerate(queries) if q != own and not question.is_empty(query)}
        bodies = {q: self._body(question, question.request(q, query)) for q, query in asked.items()}

        def read(part: int, answer: messages.OctetsAnswer) -> object:
            return question.read(answer.content, asked[part])

        def work() -> object:
            query = queries[own]
            return question.here(query, None if question.is_empty(query) else question.worked([query])[0])

        mine, found = self.exchange.ask(bodies, messages.OctetsAnswer, read, work)
        found[own] = mine
        return use(
            [found[q] if q in found else question.here(query, None) for q, query in enumerate(queries)]
        )

    def each(
        self,
        subject: Subject,
        rows: Callable[[int], Tensor],
        check: Callable[[int, Tensor], None],
    ) -> list[Tensor]:
        """Return the rows of every part, by part; see Owners."""
        own = rows(self.own)

        def read(part: int, answer: messages.PartAnswer) -> Tensor:
            found = answer.rows
            if found.dtype != own.dtype or found.shape[1:] != own.shape[1:]:
                raise ValueError(f"rows: are {found.dtype} {tuple(found.shape)}, not {own.dtype}")
            check(part, found)
            return found

        bodies = dict.fromkeys(self.exchange.others, self._about(subject))
        _, found = self.exchange.ask(bodies, messages.PartAnswer, read, lambda: None)
        found[self.own] = own
        return [found[part] for part in range(self.count)]

    def count_traffic(self, counts: dict[str, float]) -> None:
        """Do nothing: batches of servers have the counters of their clients."""

    def _body(self, question: OwnerQuestion, content: Tensor) -> object:
        """Return the message for a question to a part."""
        match question:
            case HopQuestion():
                hop, sent = question.hop, {t: tuple(names) for t, names in question.wire.fields.items()}
                rule = described(hop.rule)
                drawn = (hop.number, hop.fanouts, rule, hop.edge_ids, question.key, sent)
                return messages.HopOf(self.view, *drawn, content)
            case NegativeQuestion():
                wire, kind = question.wire, described(question.negatives)
                of_links = (wire.has_until, wire.time_column)
                return messages.NegativesOf(
                    self.view, question.edge_type, kind, *of_links, question.key, content
                )
            case DegreeQuestion():
                return messages.NodeDegreesOf(self.view, question.edge_type, content)
            case RowQuestion():
                return messages.PartRowsOf(self.view, content)
        raise AssertionError(f"{question} is not asked of servers")

    def _about(self, subject: Subject) -> object:
        """Return the message for a subject."""
        match subject:
            case NodeDegrees():
                return messages.PartDegreesOf(self.view, subject.edge_type)
            case EdgeSources():
                return messages.EdgesOf(self.view, subject.edge_type, subject.begin, self.own)
            case SplitCounts():
                of: Any = subject.of
                split: Any = subject.split
                return messages.SplitCountsOf(self.view, split, of.edge_type, of.shift, of.prefix, of.above)
            case LinkCounts():
                assert isinstance(subject.part, messages.SplitPart)
                return messages.LinkCountsOf((*self.view, subject.part), subject.edge_type)
            case Touched():
                return messages.TouchedOf(self.view, subject.limit)
        raise AssertionError(f"{subject} is not asked of servers")


_ATTEMPT_S = 5.0
_FILES = ("token_file", "ca", "client_cert", "client_key")
_NUMBERS = ("attempt", "deadline")
_KEYS = {"parts", "insecure", *_FILES, *_NUMBERS}
_FORM = 'parts = [["10.0.0.5:7311"], ["10.0.0.6:7311", "10.0.0.7:7311"]]'


@dataclass(frozen=True)
class OwnerAddresses:
    """Addresses of the servers of each part, and how servers reach each other."""

    parts: tuple[tuple[str, ...], ...]  # by part number; any of a part's servers may answer
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=lambda: Limits(attempt_s=_ATTEMPT_S))

    def addresses(self, part: int) -> tuple[Address, ...]:
        """Return the addresses of the servers of a part."""
        return parsed_addresses(self.parts[part])

    def check(self, part: int, num_parts: int) -> None:
        """Raise ValueError unless the list fits a graph with `num_parts` parts that include `part`."""
        if len(self.parts) != num_parts:
            raise ValueError(
                f"--owners: lists servers of {len(self.parts)} parts, and the graph has {num_parts}; "
                "list each part once, in order"
            )
        if not 0 <= part < num_parts:
            raise ValueError(f"--part {part}: the graph has parts 0 to {num_parts - 1}")
        if num_parts == 1:
            raise ValueError("--part: the graph has one part; serve the folder without --part and --owners")


def read_owners(path: Path) -> OwnerAddresses:
    """Read owners.toml; ValueError names an invalid key. Paths in it are relative to its folder."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is not TOML ({error})") from None
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
    found = OwnerAddresses(parts, Access(**files, encryption="off" if insecure else "remote"), limits)
    for part in range(len(parts)):
        found.addresses(part)
    return found


def _parts(path: Path, given: object) -> tuple[tuple[str, ...], ...]:
    found = [_texts(each) for each in given] if isinstance(given, list) else []
    if not found or not all(found):
        _refuse(path, "parts", given, f"a list of addresses for each part, as in {_FORM}")
    return tuple(found)


def _texts(given: object) -> tuple[str, ...]:
    """Return the texts of a list; empty if it is not a list of texts."""
    texts = tuple(each for each in given if isinstance(each, str)) if isinstance(given, list) else ()
    return texts if isinstance(given, list) and len(texts) == len(given) else ()


def _file(path: Path, name: str, given: object) -> Path:
    if not isinstance(given, str):
        _refuse(path, name, given, "the path of a file")
    return path.parent / given


def _refuse(path: Path, key: str, value: object, wanted: str) -> NoReturn:
    raise ValueError(f"{path}: {key} {value!r}: must be {wanted}")
