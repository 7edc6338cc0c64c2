"""Seed nodes as users pass them: ids or a mask (a tensor, an array, a list or a Series), or all nodes.

Groups of nodes as seeds, of one size, such as hyperedges: one label each.

Seed lists that other machines hold: a client has their sizes, and names seeds by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import as_mapping, shown
from khop.graph.inputs import refuse_unreadable
from khop.graph.store import GraphStore
from khop.sampling.node_set import check_ids
from khop.sampling.seeds import SeedLinks, Seeds, StepShare, array_bytes, digest_of, numbers_by_type
from khop.schema import EdgeType, NodeType, sole_type

ALL_NODES: Literal["all"] = "all"


class SupportsArray(Protocol):
    """A value that NumPy reads, such as a Series or an Index of pandas."""

    def __array__(self) -> npt.NDArray[Any]:
        """Return the values."""
        ...


SeedIds = Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[bool] | SupportsArray | Literal["all"]


def seed_ids(graph: GraphStore, given: SeedIds | Mapping[NodeType, SeedIds]) -> dict[NodeType, Tensor]:
    """Return int64 ids by node type, in schema order; ValueError names values that cannot be seeds.

    "all" means every node; passed alone, every node of every type of the graph.
    """
    types = graph.schema.node_types
    by_type = as_mapping(given, lambda ids: _spread(types, ids))
    for node_type in by_type:
        if node_type not in types:
            raise ValueError(f"seeds of {node_type!r}: not a node type; there are {types}")
    return {t: node_ids(f"seeds of {t!r}", by_type[t], graph.num_nodes(t)) for t in types if t in by_type}


def node_ids(name: str, given: SeedIds, count: int) -> Tensor:
    """Return int64 ids of nodes given by ids, by a mask or by "all"; `count` is the number of nodes."""
    values = seed_values(name, given, count)
    return values.nonzero().view(-1) if values.dtype == torch.bool else values


def seed_values(name: str, given: SeedIds, count: int | None) -> Tensor:
    """Return nodes as a mask, bool (count), or as ids, int64 (n). All entrances for seed nodes use it.

    Args:
        name: Name of the argument, for errors.
        given: Ids or a mask, as a tensor, an array, a list or a tuple, or "all".
        count: Number of nodes of the type; None if it is not known, then the range is not checked.
    Raises:
        ValueError: The values are neither ids of nodes nor a mask.
    """
    _check_kind(name, given)
    if isinstance(given, str):
        return torch.arange(count or 0)
    values = _tensor(name, given)
    if values.dtype == torch.bool:
        if values.dim() != 1 or count not in (None, values.numel()):
            there = "" if count is None else f", but there are {count:,} nodes"
            raise ValueError(
                f"{name}: a mask of shape {tuple(values.shape)}{there}; "
                "give one true or false for each node, or ids"
            )
        return values
    dtype = str(values.dtype).removeprefix("torch.")
    if values.is_floating_point() or values.is_complex() or values.dim() != 1:
        raise ValueError(
            f"{name}: {dtype} of shape {tuple(values.shape)}; "
            "give a vector of whole numbers, ids of nodes, or a boolean mask"
        )
    is_byte = values.dtype in (torch.uint8, torch.int8)
    if is_byte and count and values.numel() == count and bool(((values == 0) | (values == 1)).all()):
        raise ValueError(
            f"{name}: {dtype} of shape {tuple(values.shape)} with only 0 and 1 is neither ids nor a mask; "
            "give a mask by .bool() or .astype(bool), or ids as int64"
        )
    ids = values.long()
    if count is not None:
        check_ids(name, ids, count)
    return ids


def _spread(types: Sequence[NodeType], given: object) -> dict[NodeType, Any]:
    """Return seeds by type: of all types for "all", else of the only one."""
    if isinstance(given, str) and given == ALL_NODES:
        return dict.fromkeys(types, ALL_NODES)
    _check_kind("seeds", given)
    return {sole_type(types, "seeds that are not given by node type"): given}


def _check_kind(name: str, given: object) -> None:
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    is_all = isinstance(given, str) and given == ALL_NODES
    if not (is_list or is_all or isinstance(given, Tensor) or hasattr(given, "__array__")):
        shown = repr(given) if isinstance(given, str | int | float) else f"of type {type(given).__name__}"
        raise ValueError(
            f"{name} {shown}: give node ids or a boolean mask, as a tensor, an array or a list, "
            'or "all"; of several node types a mapping of them; or khop.Links'
        )


def _tensor(name: str, given: Tensor | npt.NDArray[Any] | Sequence[object] | SupportsArray) -> Tensor:
    if isinstance(given, Tensor | np.ndarray):
        refuse_unreadable(given, name)
    if isinstance(given, Tensor):
        return given.detach().cpu()
    try:
        values = np.asarray(given)
        if values.dtype == object:  # nullable columns of pandas
            values = np.asarray(values.tolist())
        if values.size == 0 and not isinstance(given, np.ndarray):
            values = values.astype(np.int64)
        if values.dtype == np.uint64:  # torch cannot read it; ids above the largest int64 are no nodes
            values = np.minimum(values, np.uint64(2**63 - 1)).astype(np.int64)
        found = torch.from_numpy(np.array(values))  # a copy, because the given array may be read-only
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{name}: not ids of nodes ({error}); give whole numbers or a boolean mask"
        ) from error
    listed = given if isinstance(given, Sequence) and not isinstance(given, range) else ()
    if found.dtype != torch.bool and any(isinstance(one, bool | np.bool_) for one in listed):
        raise ValueError(f"{name}: truth values and numbers in one list; give ids or a boolean mask")
    return found


@dataclass(frozen=True, eq=False)
class NodeTuples:
    """Seeds of N groups of M nodes each, such as hyperedges; each group is one seed, used once per epoch.

    A batch has the nodes of its groups as seeds, group after group, so the output of a model has n * M rows.
    `batch.tuple_labels` has their labels by node type. `batch.global_mean` takes one loss per group.
    Duplicates are allowed.
    """

    nodes: Tensor | Mapping[NodeType, Tensor]  # int64 (N, M), global ids; of several types by node type
    labels: Tensor | Mapping[NodeType, Tensor] | None = None  # (N, ...), one per group

    def of_graph(self, graph: GraphStore) -> SeedTuples:
        """Return the seeds by node type; ValueError for values that do not fit."""
        types = graph.schema.node_types
        nodes = as_mapping(self.nodes, lambda one: {sole_type(types, "tuples without a node type"): one})
        labels = as_mapping({} if self.labels is None else self.labels, lambda one: dict.fromkeys(nodes, one))
        for node_type, ids in nodes.items():
            if node_type not in types:
                raise ValueError(f"tuples of {node_type!r}: not a node type; there are {types}")
            if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
                what = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else shown(ids)
                raise ValueError(
                    f"tuples of {node_type!r}: {what}; give int64 (N, M), a row of ids per group"
                )
            if ids.shape[1] < 1:
                raise ValueError(f"tuples of {node_type!r}: of 0 nodes each; give one or more")
            check_ids(f"tuples of {node_type!r}", ids.flatten(), graph.num_nodes(node_type))
            if node_type in labels and len(labels[node_type]) != len(ids):
                count = len(labels[node_type])
                raise ValueError(f"labels of {node_type!r}: {count} for {len(ids)} tuples; give one for each")
        return SeedTuples({t: ids.long() for t, ids in nodes.items()}, dict(labels))


@dataclass(frozen=True, eq=False)
class SeedTuples:
    """A list of tuples of nodes, checked."""

    nodes: Mapping[NodeType, Tensor]  # int64 (tuples, nodes), global ids
    labels: Mapping[NodeType, Tensor]  # (tuples, ...), of the types that have some

    @property
    def counts(self) -> Mapping[NodeType, int]:
        """Number of tuples by type."""
        return {node_type: len(ids) for node_type, ids in self.nodes.items()}

    def at_hand(self, step: StepShare) -> tuple[SeedTuples, StepShare]:
        """Return this list and `step` unchanged: every process has all tuples."""
        return self, step

    def taken(self, share: StepShare) -> Seeds:
        """Return the nodes of a rank's share, tuple after tuple, in global order."""
        nodes, positions, labels = {}, {}, {}
        for t, numbers, at in numbers_by_type(self.counts, share):
            width = self.nodes[t].shape[1]
            nodes[t] = self.nodes[t][numbers].flatten()
            positions[t] = (at[:, None] * width + torch.arange(width)).flatten()
            if t in self.labels:
                labels[t] = self.labels[t][numbers]
        whole = nodes if share.is_whole else self.taken(share.of_all_ranks).nodes
        return Seeds(nodes, positions, batch_nodes=whole, tuple_labels=labels)

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield by type the first nodes of the tuples and their positions."""
        for node_type, numbers, at in numbers_by_type(self.counts, share):
            yield node_type, self.nodes[node_type][numbers, 0], at

    def digest(self) -> str:
        """Return the hash of types, ids and labels."""

        def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
            for node_type, ids in self.nodes.items():
                update(f"tuples:{node_type}:{tuple(ids.shape)}:".encode())
                update(array_bytes(ids))
            for node_type, labels in self.labels.items():
                update(f"labels:{node_type}:{labels.dtype}:".encode())
                update(array_bytes(labels))

        return digest_of(hash_into)


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
