"""Seeds: the list of an epoch, its order, and the seeds of a batch.

`SeedList.of` takes every kind of seeds. Each kind is a class: `NodeSeeds`, `NodeTuples`, `GroupSeeds` and
`ListedNodes` in this module, `SeedTable` in `seed_table`, lists of links in `links.link_seeds` and
`distributed.link_split`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import as_mapping, checked_field, seed_number, shown, truth, whole_number
from khop.batch import Change, LossWeights, Sample, map_all
from khop.draw import DrawKey, Purpose
from khop.graph.features.store import FeatureStore, Rows
from khop.graph.features.table import NO_COLUMNS
from khop.graph.inputs import described, is_array_like, refuse_numeric_mask, tensor_of, whole_ids
from khop.graph.node_ids import UNDATED
from khop.graph.store import GraphStore
from khop.kernels.philox import permutation_slice
from khop.schema import EdgeType, NodeType, Schema, sole_type

ALL_NODES: Literal["all"] = "all"
SeedKind = Literal["nodes", "links", "groups"]  # groups: the sampler makes them of all seed nodes
NODES: frozenset[SeedKind] = frozenset({"nodes"})
GROUPS: frozenset[SeedKind] = frozenset({"groups"})
Reference = Mapping[str, object]  # plain values that name a list on every server
Type = TypeVar("Type", bound=Hashable)


@dataclass(frozen=True)
class SeedLinks:
    """Seed links of one edge type for a batch (or for a rank's share of it), duplicates allowed."""

    edges: Tensor  # int64 (2, n), global ids: sources over destinations
    positions: Tensor  # int64 (n), positions in the epoch's global order
    batch_edges: Tensor  # int64 (2, m), the links of all ranks in this step
    labels: Tensor | None = None  # (n, ...)
    times: Tensor | None = None  # int64 (n), a time limit per link
    negatives: Tensor | None = None  # int64 (n, k), global ids of the destination type
    relations: Tensor | None = None  # int64 (n), the relation of each link
    batch_relations: Tensor | None = None  # int64 (m), the relations of `batch_edges`


@dataclass(frozen=True)
class LinkSeeds:
    """Links by type, and the key for drawing their negatives."""

    by_type: Mapping[EdgeType, SeedLinks]
    negative_key: DrawKey

    @property
    def count(self) -> int:
        """Number of links of all types."""
        return sum(links.positions.numel() for links in self.by_type.values())


@dataclass(frozen=True)
class GroupShare:
    """A rank's groups of seeds in a step. A group is some elements of a list, next to each other."""

    elements: Tensor  # int64 (n), numbers in the list, group after group
    offsets: Tensor  # int64 (groups + 1), the elements of each group
    first: int  # the first group's position in the epoch's global order
    total: int  # groups of all ranks in this step
    num_groups: int  # of an epoch
    targets: Mapping[NodeType, Tensor]  # int64 (nodes), global ids of all nodes with a loss

    @property
    def count(self) -> int:
        """Number of groups of this rank."""
        return self.offsets.numel() - 1

    @property
    def positions(self) -> Tensor:
        """int64 (groups of this rank), positions in the epoch's global order; draws are keyed by them."""
        return torch.arange(self.first, self.first + self.count)

    @property
    def num_targets(self) -> int:
        """Number of nodes of all types with a loss."""
        return sum(nodes.numel() for nodes in self.targets.values())


@dataclass(frozen=True)
class Seeds:
    """Seed nodes and seed links of a batch (or of a rank's share of it), duplicates allowed.

    Args:
        nodes: Global ids by node type, int64 (n).
        positions: Positions of the seeds (or of their groups) in the epoch's global order by node type,
            int64 (n).
        times: Time limits by node type, int64 (n); default None.
        links: Links, for a `LinkSampler`; default None.
        batch_nodes: Seed nodes of all ranks in this step by node type, int64 (m). None (default): those
            of `nodes`.
        listed: Numbers in a list on servers, which look the seeds up; default None.
        tuple_labels: Labels (tuples, ...) by node type, if `nodes` are those of tuples; default None.
        groups: Groups, for a sampler of groups; there are no other seeds then. Default None.
        labels: Labels (n, ...) by node type, if `nodes` are those of a `khop.SeedTable`; default None.
        loss_weights: Weights of the rows of a `khop.SeedTable` in the loss; default None.
    Example:
        >>> seeds = khop.Seeds({"package": torch.tensor([7, 9])}, {"package": torch.tensor([0, 1])})
        >>> sample = khop.NeighborSampler(khop.open_graph("debian"), [5]).sample(seeds, khop.DrawKey(1))
        >>> seeds.count
        2
    """

    nodes: Mapping[NodeType, Tensor]
    positions: Mapping[NodeType, Tensor]
    times: Mapping[NodeType, Tensor] | None = None
    links: LinkSeeds | None = None
    batch_nodes: Mapping[NodeType, Tensor] | None = None
    listed: StepShare | None = None
    tuple_labels: Mapping[NodeType, Tensor] | None = None
    groups: GroupShare | None = None
    labels: Mapping[NodeType, Tensor] | None = None
    loss_weights: LossWeights | None = None

    def added_to(self, sample: Sample, move: Change = lambda tensor: tensor) -> Sample:
        """Return a sample of these seeds with their positions, times, labels and loss weights.

        Args:
            sample: Sample that a sampler has drawn for the seeds.
            move: Moves a tensor of the seeds to the device of the sample.
        Raises:
            ValueError: The sampler has weighted the losses too.
        """
        weights = self.loss_weights
        if weights is not None and sample.loss_weights is not None:
            raise ValueError(
                "khop.SeedTable with weights: the sampler gives the losses weights too; leave one of them out"
            )
        return replace(
            sample,
            seed_positions=map_all(self.positions, move),
            seed_times=map_all(self.times or {}, move),
            seed_labels=map_all(self.labels or {}, move),
            tuple_labels=map_all(self.tuple_labels or {}, move),
            loss_weights=sample.loss_weights if weights is None else weights.map(move),
        )

    @property
    def count(self) -> int:
        """Number of seeds of all types."""
        num_links = 0 if self.links is None else self.links.count
        return num_links + sum(nodes.numel() for nodes in self.nodes.values())


@dataclass(frozen=True)
class StepShare:
    """A rank's share of a step in the epoch's global order."""

    order: Tensor  # int64 (seeds of the step over all ranks), their numbers in the seed list
    start: int  # the position of the first one
    mine: Tensor  # int64, ascending: indices into `order` of this rank's seeds
    negative_key: DrawKey  # the key for drawing negatives

    @property
    def positions(self) -> Tensor:
        """int64 (seeds of this rank), positions in the global order."""
        return self.mine + self.start

    @property
    def is_whole(self) -> bool:
        """True if all seeds of the step are this rank's."""
        return self.mine.numel() == self.order.numel()

    @property
    def of_all_ranks(self) -> StepShare:
        """The whole step as one share."""
        return replace(self, mine=torch.arange(self.order.numel()))


class SeedList:
    """Base of lists of seeds: the seeds of an epoch, of one or several types, numbered type after type.

    An implementation has `counts`, `taken` and `digest`. The other members have defaults, for a list that
    every process has whole.
    """

    seed_kind: ClassVar[SeedKind] = "nodes"
    is_collective: ClassVar[bool] = False  # reads ask other ranks
    is_for_kernels: ClassVar[bool] = True  # kernels of a GPU may draw the batches

    @staticmethod
    def of(
        graph: GraphStore,
        seeds: GivenSeeds,
        times: SeedTimes | None = None,
        features: FeatureStore | None = None,
    ) -> SeedList:
        """Return the checked list of seeds of any kind; ValueError if they do not fit the graph.

        `seeds` is a list of seeds, such as `khop.Links` or `khop.SeedTable`, or nodes, also by type: ids, a
        boolean mask or "all". `times` are limits for each seed node, also by type, or the name of a column.
        """
        if isinstance(seeds, SeedList):
            return seeds.of_graph(graph, times, features)
        types = graph.schema.node_types
        by_type = as_mapping(seeds, lambda nodes: _spread(types, nodes))
        for node_type in by_type:
            if node_type not in types:
                raise ValueError(f"seeds of {node_type!r}: not a node type; there are {types}")
        given = {t: by_type[t] for t in types if t in by_type}
        listed = ListedNodes.joined(graph, given, times)
        if listed is not None:
            return listed
        here = {t: ids_here(ids) for t, ids in given.items()}
        nodes = {t: node_ids(f"seeds of {t!r}", ids, graph.num_nodes(t)) for t, ids in here.items()}
        if times is None:
            return NodeSeeds(nodes)
        return NodeSeeds(nodes, seed_times(times, nodes, graph.schema, features))

    @property
    def counts(self) -> Mapping[NodeType, int] | Mapping[EdgeType, int]:
        """Number of seeds by type."""
        raise NotImplementedError

    @property
    def reference(self) -> Reference | None:
        """The name of the list on servers; None for a list that is not there."""
        return None

    def of_graph(
        self, graph: GraphStore, times: SeedTimes | None = None, features: FeatureStore | None = None
    ) -> SeedList:
        """Return the list for a graph; ValueError if it does not fit."""
        if times is not None:
            raise ValueError(f"seed_times with seeds that are {type(self).__name__}: they have no times")
        return self

    def output_types(self, schema: Schema) -> tuple[NodeType, ...]:
        """Return the node types for which a model outputs rows, in schema order."""
        return tuple(t for t in schema.node_types if t in self.counts)

    def at_hand(self, step: StepShare) -> tuple[SeedList, StepShare]:
        """Return a list in this process with the seeds of a whole step, and the step by their numbers in it.

        Collective where the list is partitioned across ranks.
        """
        return self, step

    def taken(self, share: StepShare) -> Seeds:
        """Return the seeds of a rank's share, by type, in global order."""
        raise NotImplementedError

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield by type the nodes near which seeds of a share are best sampled, and the seeds' positions."""
        return iter(())

    def digest(self) -> str:
        """Return the hash of all that identifies this list, by `digest_of`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class NodeSeeds(SeedList):
    """A list of seed nodes, duplicates allowed."""

    nodes: Mapping[NodeType, Tensor]  # int64 (seeds), global ids
    times: Mapping[NodeType, Tensor] | None = None  # int64 (seeds), a time limit per seed

    @property
    def counts(self) -> Mapping[NodeType, int]:
        """Number of seeds by type."""
        return {node_type: ids.numel() for node_type, ids in self.nodes.items()}

    def taken(self, share: StepShare) -> Seeds:
        """Return the nodes of a rank's share, by type, in global order."""
        picked = {t: (numbers, at) for t, numbers, at in numbers_by_type(self.counts, share)}
        times, nodes = self.times, {t: self.nodes[t][numbers] for t, (numbers, _) in picked.items()}
        seeds = Seeds(
            nodes,
            {t: at for t, (_, at) in picked.items()},
            None if times is None else {t: times[t][numbers] for t, (numbers, _) in picked.items()},
            batch_nodes=nodes if share.is_whole else self._nodes(share.of_all_ranks),
        )
        return self._with_columns(seeds, {t: numbers for t, (numbers, _) in picked.items()}, share)

    def _with_columns(self, seeds: Seeds, numbers: Mapping[NodeType, Tensor], share: StepShare) -> Seeds:
        """Return seeds with further columns of the list; `numbers` are theirs in it."""
        return seeds

    def _nodes(self, share: StepShare) -> dict[NodeType, Tensor]:
        return {t: self.nodes[t][numbers] for t, numbers, _ in numbers_by_type(self.counts, share)}

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield by type the seed nodes and their positions."""
        for node_type, numbers, at in numbers_by_type(self.counts, share):
            yield node_type, self.nodes[node_type][numbers], at

    def digest(self) -> str:
        """Return the hash of types, ids and times."""
        return digest_of(self._hash_into)

    def _hash_into(self, update: Callable[[bytes | memoryview], None]) -> None:
        for node_type, ids in self.nodes.items():
            update(f"{node_type}:{ids.numel()}:".encode())
            update(array_bytes(ids))
        for node_type, times in (self.times or {}).items():
            update(f"times:{node_type}:".encode())
            update(array_bytes(times))


@dataclass(frozen=True, eq=False, init=False)
class NodeTuples(SeedList):
    """Seeds of N tuples of M nodes each, such as hyperedges; each tuple is one seed, used once per epoch.

    A batch has the nodes of its n tuples as seeds, tuple after tuple, so the output of a model has n * M
    rows. `batch.tuple_labels` has the labels of the tuples by node type. `batch.global_mean` takes one loss
    per tuple. Duplicates are allowed.

    Args:
        nodes: Global ids (N, M), a row per tuple, as a tensor, an array or a list; of several node types
            as a mapping by type.
        labels: Labels (N, ...), one per tuple, of the same forms. Default None.
    Raises:
        ValueError: The ids are not whole numbers (N, M), or labels are not one per tuple.
    Example:
        >>> tuples = khop.NodeTuples([[0, 1, 2], [2, 3, 4]], labels=[0.5, 1.0])
        >>> loader = khop.Loader(khop.NeighborSampler(khop.open_graph("debian"), [5]), tuples, batch_size=2)
        >>> loader.batch(epoch=0, step=0).tuple_labels
        {'package': tensor([0.5000, 1.0000])}
    """

    is_for_kernels: ClassVar[bool] = False

    nodes: Mapping[NodeType, Tensor]
    labels: Mapping[NodeType, Tensor]

    def __init__(
        self,
        nodes: npt.ArrayLike | Tensor | Mapping[NodeType, Any],
        labels: npt.ArrayLike | Tensor | Mapping[NodeType, Any] | None = None,
    ) -> None:
        tuples = as_mapping(nodes, lambda ids: {SOLE: ids})
        given = as_mapping({} if labels is None else labels, lambda one: dict.fromkeys(tuples, one))
        object.__setattr__(self, "nodes", {t: _tuple_ids(t, ids) for t, ids in tuples.items()})
        object.__setattr__(
            self, "labels", {t: tensor_of(f"labels{of_type(t)}", values) for t, values in given.items()}
        )
        for t, values in self.labels.items():
            if t not in self.nodes or values.dim() == 0 or len(values) != len(self.nodes[t]):
                count = len(values) if values.dim() else "one"
                raise ValueError(
                    f"labels{of_type(t)}: {count} for {len(self.nodes.get(t, ()))} tuples; give one for each"
                )

    def of_graph(
        self, graph: GraphStore, times: SeedTimes | None = None, features: FeatureStore | None = None
    ) -> NodeTuples:
        """Return the same tuples by node type.

        Args:
            graph: Graph with the nodes.
            times: Must be None (default), because tuples have no times.
            features: Not used; default None.
        Returns:
            The tuples, of the graph's only node type if they had none.
        Raises:
            ValueError: An id is not a node of the graph, or `times` is given.
        """
        if times is not None:
            raise ValueError("khop.NodeTuples have no times; leave out seed_times")
        types = graph.schema.node_types
        found = self
        if SOLE in self.nodes:
            sole = sole_type(types, "tuples without a node type")
            labels = None if SOLE not in self.labels else {sole: self.labels[SOLE]}
            found = NodeTuples({sole: self.nodes[SOLE]}, labels)
        for node_type, ids in found.nodes.items():
            if node_type not in types:
                raise ValueError(f"tuples of {node_type!r}: not a node type; there are {types}")
            check_ids(f"tuples of {node_type!r}", ids.flatten(), graph.num_nodes(node_type))
        return found

    @property
    def counts(self) -> Mapping[NodeType, int]:
        """Number of tuples by type."""
        return {node_type: len(ids) for node_type, ids in self.nodes.items()}

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


SOLE: NodeType = "*"  # the only node type, while the graph is not known yet


def of_type(node_type: NodeType) -> str:
    """Return the end of an argument's name in errors: nothing while the only node type is not known."""
    return "" if node_type == SOLE else f" of {node_type!r}"


def _tuple_ids(node_type: NodeType, given: object) -> Tensor:
    name, wanted = f"tuples{of_type(node_type)}", "give int64 (N, M), a row of ids per group"
    ids = whole_ids(name, tensor_of(name, given, wanted), wanted)
    if ids.dim() != 2:
        raise ValueError(f"{name}: {described(ids)}; {wanted}")
    if ids.shape[1] < 1:
        raise ValueError(f"{name}: of 0 nodes each; give one or more")
    return ids


@dataclass(frozen=True, eq=False)
class GroupSeeds(SeedList):
    """The elements of an epoch, such as clusters or seed nodes. `size` of them in its order are a group."""

    kind: str  # of the elements, in messages
    count: int  # of elements
    size: int  # elements per group; the last group of an epoch may have fewer
    targets: Mapping[NodeType, Tensor]  # int64 (nodes), global ids of the nodes with a loss, by type
    settings: str = ""  # of the sampler, if groups depend on them: part of the fingerprint

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of elements."""
        return {self.kind: self.count}

    @property
    def num_groups(self) -> int:
        """Number of groups of an epoch."""
        return -(-self.count // self.size)

    def taken(self, share: StepShare) -> Seeds:
        """Return the groups of a rank's share, in global order."""
        groups = share.positions // self.size
        _, sizes = groups.unique_consecutive(return_counts=True)
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        first = int(groups[0]) if groups.numel() else 0
        total = -(-share.order.numel() // self.size)
        elements = share.order[share.mine]
        own = GroupShare(elements, offsets, first, total, self.num_groups, self.targets)
        return Seeds({}, {}, groups=own)

    def digest(self) -> str:
        """Return the hash of the settings and the seed nodes."""

        def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
            update(f"{self.kind}:{self.count}:{self.size}:{self.settings}".encode())
            for node_type, nodes in self.targets.items():
                update(f"{node_type}:{nodes.numel()}:".encode())
                update(array_bytes(nodes))

        return digest_of(hash_into)


class ListedSeeds(SeedList):
    """Base of lists of seeds on servers: a client has their sizes, and names seeds by their numbers."""

    digested: Callable[[Reference], str]  # asks a server
    serves: Callable[[GraphStore], bool]  # True if servers with this list make the batches of a graph

    def taken(self, share: StepShare) -> Seeds:
        """Return the numbers of a rank's share."""
        return Seeds({}, {}, listed=share)

    def digest(self) -> str:
        """Return the digest of the list, equal to that of the same seeds in this process."""
        assert self.reference is not None
        return self.digested(self.reference)


@dataclass(frozen=True, eq=False)
class ListedNodes(ListedSeeds):
    """The nodes of a split on servers, of one or several types. `fetch` brings the ids of one type here."""

    split: str
    num_nodes: Mapping[NodeType, int]
    fetched: Callable[[NodeType], Tensor]  # int64 (nodes of the type); asks a server
    digested: Callable[[Reference], str]
    serves: Callable[[GraphStore], bool]
    times: str | None = None  # the column with a time limit per node

    @classmethod
    def joined(cls, graph: GraphStore, given: Mapping[NodeType, object], times: object) -> ListedNodes | None:
        """Return nodes of types of one split on the graph's servers as one list; else None."""
        parts = [of for t, of in given.items() if isinstance(of, ListedNodes) and t in of.num_nodes]
        one_split = len({part.split for part in parts}) == 1 and len(parts) == len(given)
        if not one_split or not (times is None or isinstance(times, str)):
            return None
        if not all(part.serves(graph) for part in parts):
            return None
        return replace(
            parts[0], num_nodes={t: of.counts[t] for t, of in zip(given, parts, strict=True)}, times=times
        )

    def of_graph(
        self, graph: GraphStore, times: SeedTimes | None = None, features: FeatureStore | None = None
    ) -> SeedList:
        """Return the list with times by the name of a column, or the fetched ids with given times.

        The ids are also fetched for a graph that is not on servers of this list.
        """
        return SeedList.of(graph, dict.fromkeys(self.num_nodes, self), times, features)

    @property
    def counts(self) -> Mapping[NodeType, int]:
        """Number of nodes by type."""
        return self.num_nodes

    @property
    def reference(self) -> Reference:
        """The split, the types and the column of times."""
        return {"split": self.split, "types": [*self.num_nodes], "times": self.times}

    def __len__(self) -> int:
        """Return the number of nodes."""
        return sum(self.num_nodes.values())

    numel = __len__  # as of a tensor of ids

    def fetch(self) -> Tensor:
        """Return the ids of the only type, int64 (n): 8 bytes for each node of the split."""
        (node_type,) = self.num_nodes
        return self.fetched(node_type)


def ids_here(nodes: Tensor | ListedNodes) -> Tensor:
    """Return ids of nodes as a tensor, fetched from a server if they are listed there."""
    return nodes.fetch() if isinstance(nodes, ListedNodes) else nodes


SeedIds = Tensor | npt.ArrayLike | Literal["all"]  # ids of nodes, a boolean mask, or all nodes
SeedTimes = Tensor | npt.ArrayLike | Mapping[NodeType, Any] | str
NODES_REMEDY = (
    'give node ids or a boolean mask, as a tensor, an array or a list, or "all"; of several node types a '
    "mapping of them; or khop.Links"
)


def node_ids(name: str, given: SeedIds, count: int) -> Tensor:
    """Return int64 ids of nodes given by ids, by a mask or by "all"; `count` is the number of nodes."""
    values = seed_values(name, given, count)
    return values.nonzero().view(-1) if values.dtype == torch.bool else values


def seed_values(name: str, given: SeedIds, count: int | None) -> Tensor:
    """Return nodes as a mask, bool (count), or as ids, int64 (n); ValueError for other values.

    All entrances for seed nodes use it. Without `count`, the range is not checked.
    """
    if isinstance(given, str) and given == ALL_NODES and count is not None:
        return torch.arange(count)
    values = tensor_of(name, given, NODES_REMEDY)
    if values.dtype == torch.bool:
        if values.dim() != 1 or count not in (None, values.numel()):
            there = "" if count is None else f", but there are {count:,} nodes"
            raise ValueError(
                f"{name}: a mask of shape {tuple(values.shape)}{there}; "
                "give one true or false for each node, or ids"
            )
        return values
    ids = whole_ids(name, values, "give a vector of whole numbers, ids of nodes, or a boolean mask")
    if ids.dim() != 1:
        raise ValueError(
            f"{name}: {described(values)}; give a vector of whole numbers, ids of nodes, or a boolean mask"
        )
    if count is not None:
        refuse_numeric_mask(name, ids, count)
        check_ids(name, ids, count)
    return ids


def check_ids(what: str, ids: Tensor, num_nodes: int) -> None:
    """Raise ValueError unless `ids` is a list of node ids, each from 0 to `num_nodes` - 1."""
    if not isinstance(ids, Tensor):
        raise ValueError(f"{what}: a {type(ids).__name__}; give a 1-D int64 tensor of node ids")
    if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1:
        raise ValueError(
            f"{what}: {ids.dtype} of shape {tuple(ids.shape)}; give a 1-D int64 tensor of node ids"
        )
    if ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= num_nodes:
        stranger = low if low < 0 else high
        raise ValueError(f"{what}: there is no node {stranger}; ids go from 0 to {num_nodes - 1}")


def seed_times(
    given: SeedTimes, seeds: Mapping[NodeType, Tensor], schema: Schema, features: FeatureStore | None
) -> dict[NodeType, Tensor]:
    """Return int64 per seed type: one time per seed.

    A name selects a column of the seeds' node types; each of them must have it.
    """
    if isinstance(given, str):
        columns = {t: _column(given, t, ids, schema, features) for t, ids in seeds.items()}
        return {t: whole_times(f"seed_times of {t!r}", columns[t], ids) for t, ids in seeds.items()}
    by_type = as_mapping(given, lambda times: {sole_type(seeds, "seed_times given as one tensor"): times})
    for node_type in seeds:
        if node_type not in by_type:
            raise ValueError(
                f"seed_times: none for {node_type!r}, there are those of {list(by_type)}; give each seed one"
            )
    return {t: whole_times(f"seed_times of {t!r}", by_type[t], ids) for t, ids in seeds.items()}


def _column(
    name: str, node_type: NodeType, ids: Tensor, schema: Schema, features: FeatureStore | None
) -> Tensor:
    there = schema.columns.get(node_type, {})
    if name not in there:
        raise ValueError(
            f"seed_times: column {name!r} of {node_type!r}: not in the graph; there are {sorted(there)}; "
            "each seed needs a time; write the graph with this column for its node type"
        )
    if features is None or features is NO_COLUMNS:
        raise ValueError(f"seed_times {name!r}: the graph has no columns; give the times themselves")
    times = features.gather({node_type: Rows(ids, (name,))})[node_type][name]
    unknown = times == UNDATED
    if unknown.any():
        raise ValueError(
            f"seed_times: column {name!r} of {node_type!r} has no time for node {int(ids[unknown][0])} "
            f"({int(unknown.sum()):,} of {ids.numel():,} seeds), so its neighborhood would be empty; leave "
            "out such seeds, or give the times themselves"
        )
    return times


def whole_times(name: str, given: object, ids: Tensor) -> Tensor:
    """Return int64 (seeds): one time per seed; ValueError, with the name of the argument, for others."""
    times = tensor_of(name, given)
    if times.is_floating_point() or times.dtype == torch.bool or times.shape != ids.shape:
        raise ValueError(
            f"{name} are {times.dtype} of shape {tuple(times.shape)}: give a whole "
            f"number for each of {ids.numel()} seeds"
        )
    return times.long()


GivenSeeds = SeedList | SeedIds | Mapping[NodeType, Any]


def _spread(types: Sequence[NodeType], given: object) -> dict[NodeType, Any]:
    """Return seeds by type: of all types for "all", else of the only one."""
    if isinstance(given, str) and given == ALL_NODES:
        return dict.fromkeys(types, ALL_NODES)
    if not is_array_like(given):
        raise ValueError(f"seeds {shown(given)}: {NODES_REMEDY}")
    return {sole_type(types, "seeds that are not given by node type"): given}


Fingerprint = Mapping[str, str | int | bool]


@dataclass(frozen=True, eq=False)
class SeedAffinity:
    """The ranks that hold each node: contiguous ranges of ids, each held by contiguous ranks."""

    bounds: Mapping[NodeType, Sequence[int]]  # the first node of each part, and the end of the last part
    ranks: Sequence[range]  # one or several per part; the next part starts at the last of these or later

    def ranks_of(self, nodes: Iterable[tuple[NodeType, Tensor, Tensor]], sizes: Sequence[int]) -> Tensor:
        """Return int64 (seeds of a step): the rank of each seed. Rank r gets `sizes[r]` seeds.

        `nodes` are, by type, ids and their positions in the step. A seed goes to one of the ranks that hold
        it while one of them has room; earlier positions go first. The remaining seeds fill the remaining
        room.
        """
        parts = torch.empty(sum(sizes), dtype=torch.int64)
        for node_type, ids, places in nodes:
            ends = torch.tensor(self.bounds[node_type][1:])
            parts[places] = torch.searchsorted(ends, ids, right=True)
        starts = torch.tensor([of_part.start for of_part in self.ranks])
        groups, group_of_part = torch.unique_consecutive(starts, return_inverse=True)  # by first rank
        group = group_of_part[parts]
        slots = torch.tensor([0, *sizes]).cumsum(0)  # the first slot of each rank, rank after rank
        begins = slots[groups]
        room = torch.cat([begins, slots[-1:]]).diff()

        order = group.argsort(stable=True)
        count = torch.bincount(group, minlength=groups.numel())
        in_group = torch.arange(parts.numel()) - (count.cumsum(0) - count)[group[order]]
        has_room = in_group < room[group[order]]
        slot = torch.empty_like(parts)
        slot[order[has_room]] = (begins[group[order]] + in_group)[has_room]
        is_free = torch.ones_like(parts, dtype=torch.bool)
        is_free[slot[order[has_room]]] = False
        slot[order[~has_room].sort().values] = is_free.nonzero().view(-1)
        return torch.searchsorted(slots[1:], slot, right=True)


@dataclass(frozen=True)
class SeedOrder:
    """The seeds of every step: a pure function of the fields, without state and without memory but the seeds.

    All seeds, type after type, form one global order. A shuffled epoch permutes it, keyed by (run seed,
    epoch). Step s takes the s-th `batch_size` seeds of this order, and the last step takes the rest. With
    `drop_last` there is no such last step: the rest is counted over all ranks and omitted on all of them.
    Ranks share a step in parts of nearly equal size. Parts are contiguous; with `affinity`, each rank gets as
    many of the seeds that it holds as fit. A part may be empty, so that every rank makes every step.
    Micro-batches divide the part of a rank further, contiguously and in nearly equal parts.
    """

    seeds: SeedList
    batch_size: int  # seeds per step over all ranks
    shuffle: bool = False
    run_seed: int = 0
    rank: int = 0
    world_size: int = 1
    affinity: SeedAffinity | None = None
    drop_last: bool = False  # leave out the last step of an epoch if it has fewer items than others
    group: int = 1  # so many seeds next to each other are one item: dealt to one rank. Divides `batch_size`
    micro_batches: int = 1  # batches that a rank makes of its part of a step

    def __post_init__(self) -> None:
        for name in ("batch_size", "micro_batches"):
            checked_field(self, name, whole_number, 1)
        object.__setattr__(self, "run_seed", seed_number(self.run_seed))
        checked_field(self, "shuffle", truth)
        checked_field(self, "drop_last", truth)
        if self.num_seeds == 0:
            raise ValueError(
                f"seeds: none given for types {list(self.seeds.counts)}; an epoch needs one or more"
            )
        if self.num_steps == 0:
            raise ValueError(
                f"drop_last with {self.num_seeds} seeds and batch_size {self.batch_size}: no batch is "
                "complete; "
                "give a smaller batch_size, or leave drop_last out"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank {self.rank} of {self.world_size}: must be from 0 to {self.world_size - 1}"
            )

    @property
    def num_seeds(self) -> int:
        """Number of seeds of all types, over all ranks."""
        return sum(self.seeds.counts.values())

    @property
    def num_steps(self) -> int:
        """Steps per epoch, the same for every rank."""
        items, per_step = -(-self.num_seeds // self.group), self.batch_size // self.group
        return (items if self.drop_last else items + per_step - 1) // per_step

    @property
    def num_batches(self) -> int:
        """Batches that a rank makes per epoch: `micro_batches` for each step."""
        return self.num_steps * self.micro_batches

    def num_global_seeds(self, step: int) -> int:
        """Return the number of seeds, or of groups of them, of a step over all ranks."""
        start, stop = self._bounds(step)
        return -((start - stop) // self.group)

    def share(self, epoch: int, step: int, micro_batch: int = 0) -> Seeds:
        """Return this rank's seeds of a step, or of one of its micro-batches, by type, in global order."""
        start, stop = self._bounds(step)
        key = DrawKey.of(self.run_seed, Purpose.NEGATIVE, epoch, step)
        order = self._order(epoch, start, stop)
        seeds, step_of_all = self.seeds.at_hand(StepShare(order, start, torch.arange(stop - start), key))
        mine = self._mine(seeds, step_of_all)
        items = -(-mine.numel() // self.group)
        bounds = (items * part // self.micro_batches for part in (micro_batch, micro_batch + 1))
        first, last = (bound * self.group for bound in bounds)
        return seeds.taken(replace(step_of_all, mine=mine[first:last]))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Values that must be equal for (epoch, step) to mean the same seeds. Plain, for a JSON file."""
        return {
            "seeds": self.seeds.digest(),
            "batch_size": self.batch_size,
            "run_seed": self.run_seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    def _mine(self, seeds: SeedList, step: StepShare) -> Tensor:
        items = -(-step.order.numel() // self.group)
        shares = (items * rank // self.world_size for rank in range(self.world_size + 1))
        ends = [min(share * self.group, step.order.numel()) for share in shares]
        if self.affinity is None or self.world_size == 1:
            return torch.arange(ends[self.rank], ends[self.rank + 1])
        nodes = ((t, ids, positions - step.start) for t, ids, positions in seeds.affinity_nodes(step))
        sizes = [end - begin for begin, end in pairwise(ends)]
        return (self.affinity.ranks_of(nodes, sizes) == self.rank).nonzero().view(-1)

    def _bounds(self, step: int) -> tuple[int, int]:
        if not 0 <= step < self.num_steps:
            raise ValueError(f"step {step}: an epoch has steps 0 to {self.num_steps - 1}")
        return step * self.batch_size, min((step + 1) * self.batch_size, self.num_seeds)

    def _order(self, epoch: int, first: int, last: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(first, last)
        key = DrawKey.of(self.run_seed, Purpose.SHUFFLE, epoch)
        return permutation_slice(key.value, self.num_seeds, first, last)


def check_fingerprint(found: Fingerprint, expected: Fingerprint) -> None:
    """Raise ValueError that names the differences between a saved state and this run."""
    found = {"drop_last": False, **found}  # missing in states saved before drop_last existed
    words = {name: f"{name} ({found.get(name)}, here {expected[name]})" for name in expected}
    words |= {"seeds": "seed list", "run_seed": words["run_seed"].removeprefix("run_")}
    differing = [words[name] for name in expected if found.get(name) != expected[name]]
    if differing:
        raise ValueError(
            f"the loader's state was saved with another {' and another '.join(differing)}: "
            "its epoch and step would mean other seeds. Load it into a loader with the saved settings"
        )


def numbers_by_type(counts: Mapping[Type, int], share: StepShare) -> Iterator[tuple[Type, Tensor, Tensor]]:
    """Yield for each type the seeds' numbers in the type's list, and their positions, in global order."""
    order, positions = share.order[share.mine], share.positions
    start = 0
    for type_, count in counts.items():
        chosen = (order >= start) & (order < start + count)
        yield type_, order[chosen] - start, positions[chosen]
        start += count


def digest_of(hash_into: Callable[[Callable[[bytes | memoryview], None]], None]) -> str:
    """Return the hash of all bytes that `hash_into` passes on."""
    digest = hashlib.sha256()
    hash_into(digest.update)
    return digest.hexdigest()


def array_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's contents as bytes to hash."""
    return tensor.detach().contiguous().numpy().data.cast("B")
