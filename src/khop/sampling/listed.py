"""Seed lists that other machines hold: a client has their sizes, and names seeds by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from torch import Tensor

from khop.arguments import as_mapping
from khop.sampling.sampler import SeedLinks, Seeds
from khop.sampling.seeds import StepShare
from khop.schema import EdgeType, NodeType

Given = TypeVar("Given")
SeedType = TypeVar("SeedType", NodeType, EdgeType)
Reference = Mapping[str, object]  # plain values that name a list on every server


@dataclass(frozen=True, eq=False)
class ListedNodes:
    """The nodes of a split on servers. A loader takes them as they are; `fetch` brings the ids here."""

    split: str
    node_type: NodeType
    count: int
    fetched: Callable[[], Tensor]  # int64 (count)
    digested: Callable[[Reference], str]  # asks a server

    def numel(self) -> int:
        """Return the number of nodes, as of a tensor of ids."""
        return self.count

    def __len__(self) -> int:
        """Return the number of nodes."""
        return self.count

    def fetch(self) -> Tensor:
        """Return the ids, int64 (count): 8 bytes for each node of the split."""
        return self.fetched()


@dataclass(frozen=True, eq=False)
class _Listed(Generic[SeedType]):
    """Seeds of one or several types in a list on servers."""

    counts: Mapping[SeedType, int]
    reference: Reference
    digested: Callable[[Reference], str]  # asks a server

    def at_hand(self, step: StepShare) -> tuple[Self, StepShare]:
        """Return this list and `step` unchanged: the seeds of a step are named by their numbers."""
        return self, step

    def taken(self, share: StepShare) -> Seeds:
        """Return the numbers of a rank's share."""
        return Seeds({}, {}, listed=share)

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield nothing: every server can make every batch."""
        return iter(())

    def digest(self) -> str:
        """Return the digest of the list, equal to that of the same seeds in this process."""
        return self.digested(self.reference)


@dataclass(frozen=True, eq=False)
class ListedSeeds(_Listed[NodeType]):
    """Seed nodes of one or several types in a list on servers."""


@dataclass(frozen=True, eq=False)
class ListedLinks(_Listed[EdgeType]):
    """Seed links of one or several edge types in a list on servers."""

    facts: tuple[str, ...]
    fetched: Callable[[Reference, EdgeType, Tensor], SeedLinks]  # asks a server

    def rows(self, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
        """Return the links of a type with these numbers as a batch, from a server."""
        return self.fetched(self.reference, edge_type, numbers)


def listed_seeds(given: object, node_types: Sequence[NodeType], times: object) -> ListedSeeds | None:
    """Return the list of seeds on servers that is given, with times by the name of a column; None for others.

    It is made of types of one split: a mapping as `Graph.split` gives it, or the nodes of one type.
    """
    if not (times is None or isinstance(times, str)):
        return None
    by_type = as_mapping(given, _of_one_type)
    nodes = [by_type[t] for t in node_types if t in by_type]
    listed = [of_type for of_type in nodes if isinstance(of_type, ListedNodes)]
    if not listed or len(listed) < len(by_type) or len({of_type.split for of_type in listed}) > 1:
        return None
    types = [of_type.node_type for of_type in listed]
    reference = {"split": listed[0].split, "types": types, "times": times}
    return ListedSeeds({t.node_type: t.count for t in listed}, reference, listed[0].digested)


def _of_one_type(given: object) -> Mapping[NodeType, ListedNodes]:
    return {given.node_type: given} if isinstance(given, ListedNodes) else {}


def fetched_seeds(
    given: Given | ListedNodes | Mapping[NodeType, Tensor | ListedNodes],
) -> Given | Mapping[NodeType, Tensor]:
    """Return seeds with ids instead of lists on servers, one by one: types of several splits, for example."""
    match given:
        case ListedNodes():
            return {given.node_type: given.fetch()}
        case Mapping():
            return {t: ids_here(ids) for t, ids in given.items()}
    return given


def ids_here(nodes: Tensor | ListedNodes) -> Tensor:
    """Return ids of nodes as a tensor, fetched from a server if they are listed there."""
    return nodes.fetch() if isinstance(nodes, ListedNodes) else nodes
