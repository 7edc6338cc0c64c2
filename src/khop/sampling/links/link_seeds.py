"""Links as seeds: the list of an epoch's links, and a rank's share of a step.

Digests of link lists, also for lists that are partitioned across processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from khop.arguments import as_mapping
from khop.graph.inputs import refuse_unreadable
from khop.graph.store import GraphStore
from khop.kernels.philox import mixed, signed
from khop.sampling.node_set import check_ids
from khop.sampling.seeds import LinkSeeds, SeedLinks, SeedList, Seeds, StepShare, digest_of, numbers_by_type
from khop.schema import EdgeType, NodeType, Schema, by_edge_type, only

_AT_ONCE = 1 << 18  # links
_FACTOR = signed(0x9E3779B97F4A7C15)  # odd


def links_digest(first: int, facts: Sequence[Tensor]) -> int:
    """Return the sum over links of a 64-bit hash of each link's number, ends and columns, modulo 2^64.

    `facts` have one row per link; the link in row 0 has the number `first`. The digests of consecutive
    ranges of a list add up to the digest of the list.
    """
    total, count = 0, facts[0].shape[0]
    for start in range(0, count, _AT_ONCE):
        end = min(start + _AT_ONCE, count)
        words = torch.arange(first + start, first + end)
        for fact in facts:
            if fact.numel():
                for column in _words(fact[start:end]).unbind(1):
                    words = mixed(words * _FACTOR + column)
        total += int(words.sum())
    return total & (1 << 64) - 1


def told_apart(
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
GivenByEdgeType = ByEdgeType | Mapping[str, Tensor] | Tensor
PADDING = -1  # in the given negatives of links that have fewer than others, for evaluation
SOLE: EdgeType = ("*", "*", "*")  # the only edge type, while the graph is not known yet


class LinkList(SeedList, Protocol):
    """A list of links of one or several edge types: in this process, or partitioned across ranks."""

    @property
    def counts(self) -> Mapping[EdgeType, int]:
        """Number of links by edge type."""
        ...

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of the given columns of links, of "labels", "times", "negatives" and "relations"."""
        ...

    def rows(self, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
        """Return the links of a type with these numbers as a batch.

        Collective where the list is partitioned across ranks.
        """
        ...


@dataclass(frozen=True, eq=False, init=False)
class Links:
    """A list of links of one or several edge types, duplicates allowed, with optional columns.

    Links need not be edges of the sampled graph. A column given for one edge type must be given for all.
    Each argument is a mapping by edge type, ("user", "buys", "item") or "user buys item". A tensor is enough
    if the graph has one edge type.
    """

    edges: ByEdgeType  # int64 (2, links), global ids: sources over destinations
    labels: ByEdgeType | None = None  # (links, ...)
    times: ByEdgeType | None = None  # int64 (links), a time limit per link
    negatives: ByEdgeType | None = None  # int64 (links, k), destinations that are not linked to the source
    relations: ByEdgeType | None = None  # int64 (links), the relation of each link, 0 or more

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
        """Return the same links, with the schema's only edge type as key if they were given as one tensor."""
        if SOLE not in self.edges:
            return self
        named = dict.fromkeys(schema.edge_types, 0)
        sole = only({edge_type: edge_type for edge_type in named}, "links given as one tensor: edge types")
        facts = {what: {sole: by_type[SOLE]} for what, by_type in self._facts()}
        return Links({sole: self.edges[SOLE]}, **facts)

    @property
    def counts(self) -> Mapping[EdgeType, int]:
        """Number of links by edge type."""
        return {edge_type: ends.shape[1] for edge_type, ends in self.edges.items()}

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of the given columns of links, of "labels", "times", "negatives" and "relations"."""
        return tuple(what for what, _ in self._facts())

    def rows(self, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
        """Return the links of a type with these numbers as a batch."""
        edges = self.edges[edge_type][:, numbers]
        facts = {what: of_type[edge_type][numbers] for what, of_type in self._facts()}
        return SeedLinks(edges, numbers, edges, **facts, batch_relations=facts.get("relations"))

    def at_hand(self, step: StepShare) -> tuple[Links, StepShare]:
        """Return this list and `step` unchanged: every process has all links."""
        return self, step

    def taken(self, share: StepShare) -> Seeds:
        """Return the links of a rank's share, by type, in global order."""
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
        """Yield by edge type the links' sources, where negatives are drawn, and the links' positions."""
        for edge_type, numbers, positions in numbers_by_type(self.counts, share):
            yield edge_type[0], self.edges[edge_type][0, numbers], positions

    def digest(self) -> str:
        """Return the hash of types, ends and columns of the links."""

        def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
            for edge_type, count in self.counts.items():
                facts = {what: by_type[edge_type] for what, by_type in self._facts()}
                digest = links_digest(0, [self.edges[edge_type].T, *facts.values()])
                layout = {what: (values.dtype, values.shape[1:]) for what, values in facts.items()}
                update(told_apart(edge_type, count, layout))
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

    def of_sole_type(values: object) -> ByEdgeType:
        if isinstance(values, Tensor):
            return {SOLE: values}
        raise ValueError(
            f"{what} of links are a {type(values).__name__}: give a mapping from edge types to tensors, "
            "or a tensor where there is one edge type"
        )

    by_type: dict[EdgeType, Tensor] = by_edge_type(as_mapping(given, of_sole_type))
    for edge_type, values in by_type.items():
        name = f"{what} of links" if edge_type == SOLE else f"{what} of {edge_type}"
        if not isinstance(values, Tensor):
            raise ValueError(f"{name} are a {type(values).__name__}: give a tensor, as by torch.as_tensor")
        refuse_unreadable(values, name)
    return by_type


def _check_columns(edges: ByEdgeType, columns: Mapping[str, ByEdgeType]) -> None:
    """Raise ValueError unless ends and columns of links have the dtypes and shapes that `Links` states."""
    for edge_type, ends in edges.items():
        if ends.dtype != torch.int64 or ends.dim() != 2 or ends.shape[0] != 2:
            raise ValueError(
                f"links of {edge_type}: {_described(ends)}; give int64 (2, links), sources over destinations"
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
                    "give all links theirs"
                )
            _check_column(f"{what} of {edge_type}", what, by_type[edge_type], ends.shape[1])


def _check_column(name: str, what: str, values: Tensor, count: int) -> None:
    wanted = {"labels": "one row per link", "negatives": "int64 (links, k)"}.get(what, "int64 (links)")
    dimensions = {"times": 1, "negatives": 2, "relations": 1}.get(what, max(1, values.dim()))
    fits = values.dim() == dimensions and values.shape[0] == count
    if not fits or (what != "labels" and values.dtype != torch.int64):
        raise ValueError(f"{name}: {_described(values)} for {count} links; give {wanted}")
    if what == "relations" and count and int(values.min()) < 0:
        raise ValueError(f"{name}: {int(values.min())} is below 0; give relations from 0 on")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
