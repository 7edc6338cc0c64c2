"""Owners of the rows of a partitioned graph, and the one interface that queries them.

An owner is a rank, or a part of the graph on servers. Hops, feature rows, negatives and splits are
implemented once on top of `Owners`. Below it are collectives between ranks, and requests between servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Message, check_below, moved, naming
from khop.schema import EdgeType

Result = TypeVar("Result")
Offsets = Sequence[int]  # first id of each partition, and the end of the last
NO_BYTES = torch.empty(0, dtype=torch.uint8)
MOST_EDGES = 1 << 48


class OwnerQuestion(Protocol):
    """A question about rows: its messages, and the work of the owner that answers it.

    A query is one owner's share of the question, an answer is that owner's reply. `work` is what an owner
    computes for its reply.
    """

    asking: ClassVar[Message]
    answering: ClassVar[Message]

    @property
    def most_bytes(self) -> int:
        """Limit of the bytes of a request."""
        ...

    def is_empty(self, query: Any) -> bool:  # noqa: ANN401
        """Return True if a query is empty."""
        ...

    def request(self, owner: int, query: Any) -> Tensor:  # noqa: ANN401
        """Encode the query for an owner, uint8 (n)."""
        ...

    def asked(self, message: Tensor) -> Any:  # noqa: ANN401
        """Decode the query of another process; ValueError names the invalid part."""
        ...

    def worked(self, queries: Sequence[Any]) -> Sequence[Any]:
        """Do the work for the queries of several processes at once."""
        ...

    def size_of(self, work: Any) -> int:  # noqa: ANN401
        """Return the bytes of an answer."""
        ...

    def write(self, work: Any, message: Tensor) -> None:  # noqa: ANN401
        """Write an answer into a message of this size."""
        ...

    def size(self, query: Any) -> int | None:  # noqa: ANN401
        """Return the bytes of the answer to a query; None if only the owner knows it."""
        ...

    def read(self, message: Tensor, query: Any) -> Any:  # noqa: ANN401
        """Decode the answer to a query; ValueError names the invalid part."""
        ...

    def here(self, query: Any, work: Any) -> Any:  # noqa: ANN401
        """Return the local answer to this process's query; `work` is None for an empty query."""
        ...


class Subject:
    """Rows that every owner sends to all others, outside of batches."""

    stage: ClassVar[str]
    counted: ClassVar[str] = "id"  # category of the bytes: "id" or "row"


class Owners(Protocol):
    """The processes that own the rows of a partitioned graph. Threads may share it."""

    @property
    def own(self) -> int:
        """Number of this process among the owners."""
        ...

    @property
    def count(self) -> int:
        """Number of owners."""
        ...

    @property
    def is_collective(self) -> bool:
        """True if all owners have to ask the same number of questions."""
        ...

    @property
    def is_first(self) -> bool:
        """True unless another owner has the same rows and sends them."""
        ...

    def bounds(self, offsets: Offsets) -> Sequence[int]:
        """Return bounds, (owners + 1) ids: owner q is asked for ids in [bounds[q], bounds[q + 1])."""
        ...

    def span(self, offsets: Offsets, owner: int) -> tuple[int, int]:
        """Return an owner's id range: the first id, and the id after the last."""
        ...

    def after(self, step: object) -> Owners:
        """Return the owners of the same rows of a graph after a step of its view."""
        ...

    def ask(
        self, question: OwnerQuestion, queries: Sequence[Any], use: Callable[[Sequence[Any]], Result]
    ) -> Result:
        """Send each owner its query, and return the result of `use` over the answers by owner.

        Answers may be views of messages, which are valid while `use` runs.
        """
        ...

    def each(
        self,
        subject: Subject,
        rows: Callable[[int], Tensor],
        check: Callable[[int, Tensor], None],
    ) -> list[Tensor]:
        """Return the rows of every owner, by owner, outside of batches. Collective if owners are ranks.

        `rows(q)` are the rows of this process for owner q, (n, ...); all have one dtype and shape of a row.
        `check(q, rows)` raises ValueError for rows of owner q that do not fit.
        """
        ...

    def count_traffic(self, counts: dict[str, float]) -> None:
        """Add to the counters of the batch."""
        ...


@dataclass(frozen=True)
class PartitionOwners:
    """Contiguous partitions assigned to ranks in order: several per rank, or several ranks per partition.

    The assignment is the same on every rank. Only the rank to ask depends on `rank`: itself for a partition
    that it stores, otherwise one of the ranks that store it. Different ranks ask different owners, so no
    owner answers all requests.
    """

    parts: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.parts < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"{self.parts} parts on rank {self.rank} of {self.world_size}: there must be at least "
                "one part, and ranks count from 0"
            )

    def parts_of(self, rank: int) -> range:
        """Return the partitions that a rank stores: at least one."""
        if self.world_size >= self.parts:
            part = rank * self.parts // self.world_size
            return range(part, part + 1)
        return range(-(-rank * self.parts // self.world_size), -(-(rank + 1) * self.parts // self.world_size))

    def ranks_of(self, part: int) -> range:
        """Return the ranks that store a partition: at least one."""
        if self.world_size < self.parts:
            rank = part * self.world_size // self.parts
            return range(rank, rank + 1)
        return range(-(-part * self.world_size // self.parts), -(-(part + 1) * self.world_size // self.parts))

    @property
    def is_first(self) -> bool:
        """True if this rank is the first of the ranks with its partitions, which sends for all of them."""
        return self.ranks_of(self.parts_of(self.rank).start).start == self.rank

    def asked(self, part: int) -> int:
        """Return the rank that answers this rank's requests for a partition."""
        ranks = self.ranks_of(part)
        return self.rank if self.rank in ranks else ranks[self.rank % len(ranks)]

    def held(self, offsets: Offsets, rank: int) -> tuple[int, int]:
        """Return a rank's id range: the first id, and the id after the last."""
        parts = self.parts_of(rank)
        return offsets[parts.start], offsets[parts.stop]

    def bounds(self, offsets: Offsets) -> list[int]:
        """Return bounds, (ranks + 1) ids: rank q is asked for ids in [bounds[q], bounds[q + 1])."""
        ends = [0] * self.world_size
        for part in range(self.parts):
            ends[self.asked(part)] = offsets[part + 1]
        for rank in range(1, self.world_size):  # an empty range for ranks that this one does not ask
            ends[rank] = max(ends[rank], ends[rank - 1])
        return [offsets[0], *ends]


@dataclass(frozen=True)
class RankOwners:
    """The ranks of a group as owners. All ranks ask the same questions in the same order.

    A question takes three collectives: sizes of requests, requests, and answers. A fourth is needed if only
    owners know the size of an answer.
    """

    holders: PartitionOwners
    lanes: Lanes
    is_collective: ClassVar[bool] = True

    @property
    def own(self) -> int:
        """This rank."""
        return self.holders.rank

    @property
    def count(self) -> int:
        """Number of ranks."""
        return self.holders.world_size

    @property
    def is_first(self) -> bool:
        """True unless an earlier rank has the same partitions."""
        return self.holders.is_first

    def bounds(self, offsets: Offsets) -> Sequence[int]:
        """Return bounds, (ranks + 1) ids: rank q is asked for ids in [bounds[q], bounds[q + 1])."""
        return self.holders.bounds(offsets)

    def span(self, offsets: Offsets, owner: int) -> tuple[int, int]:
        """Return a rank's id range: the first id, and the id after the last."""
        return self.holders.held(offsets, owner)

    def after(self, step: object) -> RankOwners:
        """Return the same ranks: all of them apply the step."""
        return self

    def ask(
        self, question: OwnerQuestion, queries: Sequence[Any], use: Callable[[Sequence[Any]], Result]
    ) -> Result:
        """Send each rank its query, and answer all ranks; see Owners. The query to itself is not sent."""
        peers, own = self.lanes.peers, self.own
        with peers.turn:  # held until all results are copied out of the received messages
            requests = [
                NO_BYTES if rank == own else question.request(rank, query)
                for rank, query in enumerate(queries)
            ]
            asked = []
            received = peers.exchange(requests, question.asking, question.most_bytes)
            for rank, message in enumerate(received):
                if rank == own:
                    asked.append(queries[own])
                    continue
                with naming(peers, rank, question.asking):
                    asked.append(question.asked(message))
            work = question.worked(asked)
            answers = peers.outgoing([0 if q == own else question.size_of(of) for q, of in enumerate(work)])
            for rank, of_rank in enumerate(work):
                if rank != own:
                    question.write(of_rank, answers.payloads[rank])
            sizes = [0 if rank == own else question.size(query) for rank, query in enumerate(queries)]
            known = [size for size in sizes if size is not None]
            if len(known) == len(sizes):
                received = peers.reply(answers, known, question.answering)
            else:
                received = peers.exchange(answers, question.answering, _MOST_ANSWER)
            found = []
            for rank, message in enumerate(received):
                if rank == own:
                    found.append(question.here(queries[own], work[own]))
                    continue
                with naming(peers, rank, question.answering):
                    found.append(question.read(message, queries[rank]))
            return use(found)

    def each(
        self,
        subject: Subject,
        rows: Callable[[int], Tensor],
        check: Callable[[int, Tensor], None],
    ) -> list[Tensor]:
        """Return the rows of every rank, by rank, in two collectives; see Owners."""
        if self.lanes.is_lane:
            raise ValueError(
                f"{subject}: the ranks must exchange this before batches are made. A khop.Loader with a "
                "khop.LinkSampler does so; otherwise first draw negatives for no links on all ranks"
            )
        peers, message = self.lanes.peers, Message(subject.stage, subject.counted)
        found = moved(peers, [rows(rank) for rank in range(self.count)], message)
        for rank, of_rank in enumerate(found):
            with naming(peers, rank, message):
                check(rank, of_rank)
        return found

    def count_traffic(self, counts: dict[str, float]) -> None:
        """Add to the counters of the batch of this lane."""
        peers = self.lanes.peers
        with peers.turn:
            for name, number in counts.items():
                peers.counts[name] += number


_MOST_ANSWER = 1 << 36  # bytes


@dataclass(frozen=True)
class NodeDegrees(Subject):
    """In-degrees of nodes."""

    edge_type: EdgeType
    stage: ClassVar[str] = "counting the edges of nodes"

    def __str__(self) -> str:
        """Return the subject for messages."""
        return f"the numbers of edges of {self.edge_type}"


@dataclass(frozen=True)
class EdgeSources(Subject):
    """The edges at some positions, by the owner of their source."""

    edge_type: EdgeType
    begin: int
    stage: ClassVar[str] = "getting the partners of nodes"

    def __str__(self) -> str:
        """Return the subject for messages."""
        return f"the partners of nodes by {self.edge_type}"


@dataclass(frozen=True)
class JoinedRows(Subject):
    """Node rows that a caller computes on each rank."""

    stage: ClassVar[str] = "joining rows of nodes"
    counted: ClassVar[str] = "row"


def rows_of_all_nodes(
    owners: Owners,
    offsets: Offsets,
    rows: Tensor,
    subject: Subject,
    check: Callable[[Tensor], None] = lambda of_owner: None,
) -> Tensor:
    """Return the owner's row of each node of a type, (nodes, ...); see `Owners.each`.

    `rows` belong to the nodes of this process, in order. `check` raises ValueError for bad rows.
    """
    spans = [owners.span(offsets, owner) for owner in range(owners.count)]

    def fits(owner: int, of_owner: Tensor) -> None:
        first, end = spans[owner]
        if of_owner.shape[0] != end - first:
            raise ValueError(f"{of_owner.shape[0]} numbers, where {end - first} nodes are")
        check(of_owner)

    found = rows.new_empty(offsets[-1], *rows.shape[1:])
    for (first, end), of_owner in zip(spans, owners.each(subject, lambda _: rows, fits), strict=True):
        found[first:end] = of_owner
    return found


def counts_of_all_nodes(owners: Owners, offsets: Offsets, own: Tensor, subject: Subject) -> Tensor:
    """Return the owner's count of each node of a type, int64 (nodes)."""
    return rows_of_all_nodes(
        owners, offsets, own, subject, lambda counts: check_below(counts, MOST_EDGES, "number of edges")
    )


def summed(owners: Owners, numbers: Tensor, subject: Subject) -> Tensor:
    """Return the sums over all owners, (n, ...); all owners give the same number of rows."""
    own = numbers if owners.is_first else torch.zeros_like(numbers)

    def check(owner: int, of_owner: Tensor) -> None:
        if of_owner.shape != numbers.shape:
            raise ValueError(f"{of_owner.shape[0]} rows, where {numbers.shape[0]} are expected")

    return torch.stack(owners.each(subject, lambda _: own, check)).sum(0)
