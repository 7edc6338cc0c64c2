"""Links as seeds of a loader, and digests of lists of links, whole or partitioned across ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import as_mapping
from khop.graph.features.store import FeatureStore
from khop.graph.inputs import described, tensor_of
from khop.graph.store import GraphStore
from khop.kernels.philox import mixed, signed
from khop.sampling.seeds import (
    LinkSeeds,
    ListedSeeds,
    Reference,
    SeedKind,
    SeedLinks,
    SeedList,
    Seeds,
    SeedTimes,
    StepShare,
    check_ids,
    digest_of,
    numbers_by_type,
)
from khop.schema import EdgeType, NodeType, Schema, by_edge_type, only

_AT_ONCE = 1 << 18  # links
_FACTOR = signed(0x9E3779B97F4A7C15)  # odd


def links_digest(numbers: Tensor, facts: Sequence[Tensor]) -> int:
    """Return the sum over links of a 64-bit hash of each link's number, ends and columns, modulo 2^64.

    `numbers` are int64 (links), and `facts` have one row per link. The digests of pieces of a list add up to
    the digest of the list.
    """
    total = 0
    for start in range(0, numbers.numel(), _AT_ONCE):
        words = numbers[start : start + _AT_ONCE]
        for fact in facts:
            if fact.numel():
                for column in _words(fact[start : start + _AT_ONCE]).unbind(1):
                    words = mixed(words * _FACTOR + column)
        total += int(words.sum())
    return total & (1 << 64) - 1


def link_list_metadata(
    edge_type: EdgeType, count: int, facts: Mapping[str, tuple[torch.dtype, Sequence[int]]]
) -> bytes:
    """Return a list's metadata as bytes to hash: edge type, count, and each fact's dtype and row shape."""
    described = [f"{what}:{dtype}:{list(shape)}" for what, (dtype, shape) in facts.items()]
    return f"{edge_type}:{count}:{described}:".encode()


def _words(fact: Tensor) -> Tensor:
    """Return int64 (links, words): the bytes of every row, padded with zeros."""
    rows = fact.reshape(fact.shape[0], -1).contiguous().view(torch.uint8)
    filled = rows.new_zeros(rows.shape[0], -(-rows.shape[1] // 8) * 8)
    filled[:, : rows.shape[1]] = rows
    return filled.view(torch.int64)


ByEdgeType = Mapping[EdgeType, Tensor]
GivenByEdgeType = Tensor | npt.ArrayLike | Mapping[EdgeType, Any] | Mapping[str, Any]
PADDING = -1  # in the given negatives of links that have fewer than others, for evaluation
SOLE: EdgeType = ("*", "*", "*")  # the only edge type, while the graph is not known yet


class LinkList(SeedList):
    """A list of links of one or several edge types: in this process, across ranks, or on servers."""

    seed_kind: ClassVar[SeedKind] = "links"
    where: ClassVar[str] = ""  # the reason why this process does not have all links, for errors

    @property
    def counts(self) -> Mapping[EdgeType, int]:
        """Number of links by edge type."""
        raise NotImplementedError

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of the given columns of links, of "labels", "times", "negatives" and "relations"."""
        raise NotImplementedError

    def rows(self, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
        """Return the links of a type with these numbers as a batch.

        Collective where the list is partitioned across ranks.
        """
        raise NotImplementedError

    def of_graph(
        self, graph: GraphStore, times: SeedTimes | None = None, features: FeatureStore | None = None
    ) -> LinkList:
        """Return the list for a graph; ValueError if it does not fit."""
        if times is not None:
            raise ValueError(
                "seed_times with links: times of links belong to the links, give khop.Links(..., times=...)"
            )
        return self

    def output_types(self, schema: Schema) -> tuple[NodeType, ...]:
        """Return the node types at the ends of the links, in schema order."""
        ends = {end for source, _, destination in self.counts for end in (source, destination)}
        return tuple(t for t in schema.node_types if t in ends)

    def in_this_process(self, what: str) -> Links:
        """Return the links if this process has all of them; else ValueError, for the operation `what`."""
        raise ValueError(f"{what}: {self.where}")


@dataclass(frozen=True, eq=False)
class ListedLinks(ListedSeeds, LinkList):
    """Links of one or several edge types in a list on servers."""

    where: ClassVar[str] = (
        "the links are on servers; request some with links.rows(edge_type, numbers), or open the graph's "
        "folder with khop.open_graph"
    )

    num_links: Mapping[EdgeType, int]
    listed_as: Reference
    digested: Callable[[Reference], str]
    given: tuple[str, ...]
    fetched: Callable[[Reference, EdgeType, Tensor], SeedLinks]  # asks a server
    serves: Callable[[GraphStore], bool]

    def of_graph(
        self, graph: GraphStore, times: SeedTimes | None = None, features: FeatureStore | None = None
    ) -> LinkList:
        """Return the list; ValueError for a graph that is not on servers of this list."""
        if not self.serves(graph):
            raise ValueError(
                f"links of {list(self.num_links)}: are on servers of another graph; give links that "
                "khop.split_links returns for the graph of the sampler, or a khop.Links"
            )
        return super().of_graph(graph, times, features)

    @property
    def counts(self) -> Mapping[EdgeType, int]:
        """Number of links by edge type."""
        return self.num_links

    @property
    def reference(self) -> Reference:
        """The name of the list on every server."""
        return self.listed_as

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of the given columns of links."""
        return self.given

    def rows(self, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
        """Return the links of a type with these numbers as a batch, from a server."""
        return self.fetched(self.listed_as, edge_type, numbers)


@dataclass(frozen=True, eq=False, init=False)
class Links(LinkList):
    """A list of links of one or several edge types, duplicates allowed, with optional columns.

    Links need not be edges of the sampled graph. A column given for one edge type must be given for all.
    Each argument is a tensor, an array, a list or a Series, or a mapping of these by edge type, ("user",
    "buys", "item") or "user buys item". Without a mapping, the graph has one edge type.

    Args:
        edges: Global ids (2, links), sources over destinations.
        labels: Labels (links, ...); default None.
        times: A time limit for each link (links); default None.
        negatives: Destinations (links, k) that are not linked to the source; -1 pads a row. Default None.
        relations: The relation of each link (links), 0 or more; default None.
    Raises:
        ValueError: A column has another shape or dtype than stated, or lacks an edge type.
    Example:
        >>> links = khop.Links({"user buys item": [[0, 1], [1, 2]]}, labels={"user buys item": [1, 0]})
        >>> links.counts
        {('user', 'buys', 'item'): 2}
    """

    edges: ByEdgeType
    labels: ByEdgeType | None = None
    times: ByEdgeType | None = None
    negatives: ByEdgeType | None = None
    relations: ByEdgeType | None = None

    def __init__(
        self,
        edges: GivenByEdgeType,
        labels: GivenByEdgeType | None = None,
        times: GivenByEdgeType | None = None,
        negatives: GivenByEdgeType | None = None,
        relations: GivenByEdgeType | None = None,
    ) -> None:
        given = {"edges": edges, "labels": labels, "times": times, "negatives": negatives}
        given["relations"] = relations
        for what, values in given.items():
            found = None if values is None and what != "edges" else _by_edge_type(what, values)
            object.__setattr__(self, what, found)
        _check_columns(self.edges, dict(self._facts()))

    def of_schema(self, schema: Schema) -> Links:
        """Return the same links, with the schema's only edge type as key if they were given as one tensor.

        Args:
            schema: Schema of the graph.
        """
        if SOLE not in self.edges:
            return self
        named = dict.fromkeys(schema.edge_types, 0)
        sole = only({edge_type: edge_type for edge_type in named}, "links given as one tensor: edge types")
        facts = {what: {sole: by_type[SOLE]} for what, by_type in self._facts()}
        return Links({sole: self.edges[SOLE]}, **facts)

    def of_graph(
        self, graph: GraphStore, times: SeedTimes | None = None, features: FeatureStore | None = None
    ) -> Links:
        """Return the same links by edge type; ValueError unless they are between nodes of the graph.

        Args:
            graph: The graph.
            times: Must be None: times of links belong to the links.
            features: Columns of the graph; not read.
        """
        super().of_graph(graph, times, features)
        links = self.of_schema(graph.schema)
        check_links(graph, links)
        return links

    def in_this_process(self, what: str) -> Links:
        """Return the links, which are all in this process.

        Args:
            what: Name of the operation, for errors of other lists.
        """
        return self

    @property
    def counts(self) -> Mapping[EdgeType, int]:
        """Number of links by edge type."""
        return {edge_type: ends.shape[1] for edge_type, ends in self.edges.items()}

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of the given columns of links, of "labels", "times", "negatives" and "relations"."""
        return tuple(what for what, _ in self._facts())

    def rows(self, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
        """Return some links of a type as a batch.

        Args:
            edge_type: The edge type.
            numbers: Numbers of the links, int64 (n).
        """
        edges = self.edges[edge_type][:, numbers]
        facts = {what: of_type[edge_type][numbers] for what, of_type in self._facts()}
        return SeedLinks(edges, numbers, edges, **facts, batch_relations=facts.get("relations"))

    def taken(self, share: StepShare) -> Seeds:
        """Return the links of a rank's share, by type, in global order.

        Args:
            share: The share of a step.
        """
        step = numbers_by_type(self.counts, share.of_all_ranks)
        whole = {edge_type: numbers for edge_type, numbers, _ in step}
        by_type = {
            edge_type: SeedLinks(
                self.edges[edge_type][:, numbers],
                positions,
                self.edges[edge_type][:, whole[edge_type]],
                **{name: of_type[edge_type][numbers] for name, of_type in self._facts()},
                batch_relations=None
                if self.relations is None
                else self.relations[edge_type][whole[edge_type]],
            )
            for edge_type, numbers, positions in numbers_by_type(self.counts, share)
        }
        return Seeds({}, {}, links=LinkSeeds(by_type, share.negative_key))

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield by edge type the links' sources, where negatives are drawn, and the links' positions.

        Args:
            share: The share of a step.
        """
        for edge_type, numbers, positions in numbers_by_type(self.counts, share):
            yield edge_type[0], self.edges[edge_type][0, numbers], positions

    def digest(self) -> str:
        """Return the hash of types, ends and columns of the links."""

        def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
            for edge_type, count in self.counts.items():
                facts = {what: by_type[edge_type] for what, by_type in self._facts()}
                digest = links_digest(torch.arange(count), [self.edges[edge_type].T, *facts.values()])
                layout = {what: (values.dtype, values.shape[1:]) for what, values in facts.items()}
                update(link_list_metadata(edge_type, count, layout))
                update(digest.to_bytes(8, "big"))

        return digest_of(hash_into)

    def _facts(self) -> Iterator[tuple[str, ByEdgeType]]:
        facts = (
            ("labels", self.labels),
            ("times", self.times),
            ("negatives", self.negatives),
            ("relations", self.relations),
        )
        yield from ((what, by_type) for what, by_type in facts if by_type is not None)


def check_links(graph: GraphStore, links: Links | LinkSeeds) -> None:
    """Raise ValueError unless all links are of edge types of the graph and between its nodes."""
    edges = links.edges if isinstance(links, Links) else {t: of.edges for t, of in links.by_type.items()}
    for edge_type, ends in edges.items():
        if edge_type not in graph.schema.edge_types:
            there = list(graph.schema.edge_types)
            raise ValueError(f"links of {edge_type}: not an edge type; there are {there}")
        for what, node_type, ids in zip(
            ("sources", "destinations"), (edge_type[0], edge_type[2]), ends, strict=True
        ):
            check_ids(f"links of {edge_type}, {what}", ids, graph.num_nodes(node_type))


def _by_edge_type(what: str, given: object) -> ByEdgeType:
    by_type: dict[EdgeType, Any] = by_edge_type(as_mapping(given, lambda values: {SOLE: values}))
    return {t: _read(what, t, values) for t, values in by_type.items()}


def _read(what: str, edge_type: EdgeType, given: object) -> Tensor:
    name = f"{what} of links" if edge_type == SOLE else f"{what} of {edge_type}"
    values = tensor_of(name, given)
    if what == "labels" or values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        return values  # `_check_columns` refuses ids and times that are not whole numbers
    return values.long()


def _check_columns(edges: ByEdgeType, columns: Mapping[str, ByEdgeType]) -> None:
    """Raise ValueError unless ends and columns of links have the dtypes and shapes that `Links` states."""
    for edge_type, ends in edges.items():
        if ends.dtype != torch.int64 or ends.dim() != 2 or ends.shape[0] != 2:
            raise ValueError(
                f"links of {edge_type}: {described(ends)}; give int64 (2, links), sources over destinations"
            )
    for what, by_type in columns.items():
        for edge_type in by_type:
            if edge_type not in edges:
                raise ValueError(
                    f"{what} of {edge_type}: there are links of {list(edges)} only; "
                    "leave them out, or add the links"
                )
        for edge_type, ends in edges.items():
            if edge_type not in by_type:
                raise ValueError(
                    f"{what} of {edge_type}: none, but links of {list(by_type)} have them; "
                    "give them for all links"
                )
            _check_column(f"{what} of {edge_type}", what, by_type[edge_type], ends.shape[1])


def _check_column(name: str, what: str, values: Tensor, count: int) -> None:
    wanted = {"labels": "one row per link", "negatives": "int64 (links, k)"}.get(what, "int64 (links)")
    dimensions = {"times": 1, "negatives": 2, "relations": 1}.get(what, max(1, values.dim()))
    fits = values.dim() == dimensions and values.shape[0] == count
    if not fits or (what != "labels" and values.dtype != torch.int64):
        raise ValueError(f"{name}: {described(values)} for {count} links; give {wanted}")
    if what == "relations" and count and int(values.min()) < 0:
        raise ValueError(f"{name}: {int(values.min())} is below 0; number relations from 0")
