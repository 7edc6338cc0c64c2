"""The order in which an epoch uses its seeds, and a rank's share of every step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from khop.arguments import seed_number, truth, whole_number
from khop.draw import DrawKey, Purpose
from khop.kernels.philox import permutation_slice
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True, eq=False)
class GroupSeeds:
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

    def at_hand(self, step: StepShare) -> tuple[GroupSeeds, StepShare]:
        """Return this list and `step` unchanged: every process has all elements."""
        return self, step

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

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield nothing: groups are dealt by position."""
        return iter(())

    def digest(self) -> str:
        """Return the hash of the settings and the seed nodes."""

        def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
            update(f"{self.kind}:{self.count}:{self.size}:{self.settings}".encode())
            for node_type, nodes in self.targets.items():
                update(f"{node_type}:{nodes.numel()}:".encode())
                update(array_bytes(nodes))

        return digest_of(hash_into)


SeedKind = Literal["nodes", "links", "groups"]  # groups: the sampler makes them of all seed nodes


NODES: frozenset[SeedKind] = frozenset({"nodes"})


GROUPS: frozenset[SeedKind] = frozenset({"groups"})


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
    """Seed nodes and seed links of a batch (or of a rank's share of it), duplicates allowed."""

    nodes: Mapping[NodeType, Tensor]  # int64 (n), global ids
    positions: Mapping[NodeType, Tensor]  # int64 (n), positions (of groups) in the epoch's global order
    times: Mapping[NodeType, Tensor] | None = None  # int64 (n), a time limit per seed
    links: LinkSeeds | None = None  # for a LinkSampler
    batch_nodes: Mapping[NodeType, Tensor] | None = (
        None  # int64 (m), of all ranks in this step; None: `nodes`
    )
    listed: StepShare | None = None  # numbers in a list on servers, which look the seeds up; None: all above
    tuple_labels: Mapping[NodeType, Tensor] | None = None  # (tuples, ...), if `nodes` are those of tuples
    groups: GroupShare | None = None  # for a sampler of groups; there are no other seeds then

    @property
    def count(self) -> int:
        """Number of seeds of all types."""
        num_links = 0 if self.links is None else self.links.count
        return num_links + sum(nodes.numel() for nodes in self.nodes.values())


Fingerprint = Mapping[str, str | int | bool]
Type = TypeVar("Type", bound=Hashable)


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


class SeedList(Protocol):
    """The seeds of an epoch: seeds of several types, numbered type after type."""

    @property
    def counts(self) -> Mapping[NodeType, int] | Mapping[tuple[str, str, str], int]:
        """Number of seeds by type."""
        ...

    def at_hand(self, step: StepShare) -> tuple[SeedList, StepShare]:
        """Return a list in this process with the seeds of a whole step, and the step by their numbers in it.

        Collective where the list is partitioned across ranks.
        """
        ...

    def taken(self, share: StepShare) -> Seeds:
        """Return the seeds of a rank's share, by type, in global order."""
        ...

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield by type the nodes near which seeds of a share are best sampled, and the seeds' positions."""
        ...

    def digest(self) -> str:
        """Return the hash of all that identifies this list, by `digest_of`."""
        ...


@dataclass(frozen=True, eq=False)
class NodeSeeds:
    """A list of seed nodes, duplicates allowed."""

    nodes: Mapping[NodeType, Tensor]  # int64 (seeds), global ids
    times: Mapping[NodeType, Tensor] | None = None  # int64 (seeds), a time limit per seed

    @property
    def counts(self) -> Mapping[NodeType, int]:
        """Number of seeds by type."""
        return {node_type: ids.numel() for node_type, ids in self.nodes.items()}

    def at_hand(self, step: StepShare) -> tuple[NodeSeeds, StepShare]:
        """Return this list and `step` unchanged: every process has all seeds."""
        return self, step

    def taken(self, share: StepShare) -> Seeds:
        """Return the nodes of a rank's share, by type, in global order."""
        picked = {t: (numbers, at) for t, numbers, at in numbers_by_type(self.counts, share)}
        times, nodes = self.times, {t: self.nodes[t][numbers] for t, (numbers, _) in picked.items()}
        return Seeds(
            nodes,
            {t: at for t, (_, at) in picked.items()},
            None if times is None else {t: times[t][numbers] for t, (numbers, _) in picked.items()},
            batch_nodes=nodes if share.is_whole else self._nodes(share.of_all_ranks),
        )

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
    drop_last: bool = False  # leave out the last step of an epoch if it has fewer than `batch_size` seeds
    group: int = 1  # so many seeds next to each other are one item: dealt to one rank. Divides `batch_size`
    micro_batches: int = 1  # batches that a rank makes of its part of a step

    def __post_init__(self) -> None:
        for name in ("batch_size", "micro_batches"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        object.__setattr__(self, "run_seed", seed_number(self.run_seed))
        truth("shuffle", self.shuffle)
        truth("drop_last", self.drop_last)
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
        return (self.num_seeds if self.drop_last else self.num_seeds + self.batch_size - 1) // self.batch_size

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
