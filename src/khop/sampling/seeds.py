"""The order in which an epoch uses its seeds, and a rank's share of every step of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from khop.arguments import seed_number, truth
from khop.draw import DrawKey, Purpose
from khop.kernels.permutation import permutation_slice
from khop.sampling.sampler import Seeds
from khop.sampling.seed_affinity import SeedAffinity
from khop.schema import NodeType

Fingerprint = Mapping[str, str | int | bool]
Type = TypeVar("Type", bound=Hashable)


@dataclass(frozen=True)
class StepShare:
    """What a rank takes of a step of the epoch's global order."""

    order: Tensor  # int64 (seeds of the step over all ranks), their numbers in the seed list
    start: int  # the position of the first of them
    mine: Tensor  # int64, ascending: where in it this rank's are
    negative_key: DrawKey  # what negatives are drawn with

    @property
    def positions(self) -> Tensor:
        """int64 (seeds of this rank), positions in the global order."""
        return self.mine + self.start

    @property
    def of_all_ranks(self) -> StepShare:
        """The whole step."""
        return replace(self, mine=torch.arange(self.order.numel()))


class SeedList(Protocol):
    """What an epoch is about: seeds of several types, numbered type after type."""

    @property
    def counts(self) -> Mapping[NodeType, int] | Mapping[tuple[str, str, str], int]:
        """Seeds of each type."""
        ...

    def at_hand(self, step: StepShare) -> tuple[SeedList, StepShare]:
        """A list in this process that has the seeds of a whole step, and the step by their numbers there.

        Collective where ranks hold the list in parts.
        """
        ...

    def taken(self, share: StepShare) -> Seeds:
        """The seeds of a rank's share, by type, in global order."""
        ...

    def homes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """By type the nodes that seeds of a share are best sampled beside, and the seeds' positions."""
        ...

    def hash_into(self, update: Callable[[bytes | memoryview], None]) -> None:
        """Give `update` all that tells this list from another."""
        ...


@dataclass(frozen=True, eq=False)
class NodeSeeds:
    """A list of seed nodes, duplicates allowed."""

    nodes: Mapping[NodeType, Tensor]  # int64 (seeds), global ids
    times: Mapping[NodeType, Tensor] | None = None  # int64 (seeds), a time limit per seed

    @property
    def counts(self) -> Mapping[NodeType, int]:
        """Seeds of each type."""
        return {node_type: ids.numel() for node_type, ids in self.nodes.items()}

    def at_hand(self, step: StepShare) -> tuple[NodeSeeds, StepShare]:
        """Themselves: every process has all."""
        return self, step

    def taken(self, share: StepShare) -> Seeds:
        """The nodes of a rank's share, by type, in global order."""
        picked = {t: (numbers, at) for t, numbers, at in numbers_by_type(self.counts, share)}
        times = self.times
        return Seeds(
            {t: self.nodes[t][numbers] for t, (numbers, _) in picked.items()},
            {t: at for t, (_, at) in picked.items()},
            None if times is None else {t: times[t][numbers] for t, (numbers, _) in picked.items()},
        )

    def homes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """By type the nodes themselves, and their positions."""
        for node_type, numbers, at in numbers_by_type(self.counts, share):
            yield node_type, self.nodes[node_type][numbers], at

    def hash_into(self, update: Callable[[bytes | memoryview], None]) -> None:
        """Give `update` types, ids and times."""
        for node_type, ids in self.nodes.items():
            update(f"{node_type}:{ids.numel()}:".encode())
            update(array_bytes(ids))
        for node_type, times in (self.times or {}).items():
            update(f"times:{node_type}:".encode())
            update(array_bytes(times))


@dataclass(frozen=True)
class SeedOrder:
    """Which seeds every step uses: a pure function of its fields, with no state and no memory but the seeds.

    All seeds, type after type, stand in one global order; of a shuffled epoch, a permutation keyed by (run
    seed, epoch). Step s takes the s-th `batch_size` of it, the last step what is left, or with `drop_last`
    there is no such step: what is left is counted over all ranks, and left out on all. Ranks share a step
    in parts as equal as can be: contiguous ones, or where `homes` say which ranks hold a seed, as many of
    each rank's own as fit. A part may be empty, so that every rank makes every step.
    """

    seeds: SeedList
    batch_size: int  # seeds per step over all ranks
    shuffle: bool = False
    run_seed: int = 0
    rank: int = 0
    world_size: int = 1
    homes: SeedAffinity | None = None
    drop_last: bool = False  # leave out the last step of an epoch if it has fewer than `batch_size` seeds

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"batch_size {self.batch_size!r}: must be a whole number, 1 or more")
        object.__setattr__(self, "run_seed", seed_number(self.run_seed))
        truth("shuffle", self.shuffle)
        truth("drop_last", self.drop_last)
        if self.num_seeds == 0:
            raise ValueError(
                f"seeds: none given for types {list(self.seeds.counts)}; an epoch needs one or more"
            )
        if self.num_steps == 0:
            raise ValueError(
                f"drop_last with {self.num_seeds} seeds and batch_size {self.batch_size}: no batch is whole; "
                "give a smaller batch_size, or leave drop_last out"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank {self.rank} of {self.world_size}: must be from 0 to {self.world_size - 1}"
            )

    @property
    def num_seeds(self) -> int:
        """Seeds of all types, over all ranks."""
        return sum(self.seeds.counts.values())

    @property
    def num_steps(self) -> int:
        """Steps per epoch, the same for every rank."""
        return (self.num_seeds if self.drop_last else self.num_seeds + self.batch_size - 1) // self.batch_size

    def num_global_seeds(self, step: int) -> int:
        """Seeds of a step over all ranks."""
        start, stop = self._bounds(step)
        return stop - start

    def share(self, epoch: int, step: int) -> Seeds:
        """This rank's seeds of a step, by type, in global order."""
        start, stop = self._bounds(step)
        key = DrawKey.of(self.run_seed, Purpose.NEGATIVE, epoch, step)
        order = self._order(epoch, start, stop)
        seeds, step_of_all = self.seeds.at_hand(StepShare(order, start, torch.arange(stop - start), key))
        return seeds.taken(replace(step_of_all, mine=self._mine(seeds, step_of_all)))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What has to be equal for (epoch, step) to mean the same seeds: plain values, for a JSON file."""
        digest = hashlib.sha256()
        self.seeds.hash_into(digest.update)
        return {
            "seeds": digest.hexdigest(),
            "batch_size": self.batch_size,
            "run_seed": self.run_seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    def _mine(self, seeds: SeedList, step: StepShare) -> Tensor:
        ends = [step.order.numel() * rank // self.world_size for rank in range(self.world_size + 1)]
        if self.homes is None or self.world_size == 1:
            return torch.arange(ends[self.rank], ends[self.rank + 1])
        nodes = ((t, ids, positions - step.start) for t, ids, positions in seeds.homes(step))
        sizes = [end - begin for begin, end in pairwise(ends)]
        return (self.homes.ranks_of(nodes, sizes) == self.rank).nonzero().view(-1)

    def _bounds(self, step: int) -> tuple[int, int]:
        if not 0 <= step < self.num_steps:
            raise ValueError(f"step {step}: an epoch has steps 0 to {self.num_steps - 1}")
        return step * self.batch_size, min((step + 1) * self.batch_size, self.num_seeds)

    def _order(self, epoch: int, first: int, last: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(first, last)
        key = DrawKey.of(self.run_seed, Purpose.SHUFFLE, epoch)
        return permutation_slice(key, self.num_seeds, first, last)


def numbers_by_type(counts: Mapping[Type, int], share: StepShare) -> Iterator[tuple[Type, Tensor, Tensor]]:
    """Each type with the numbers of its seeds in its own list, and their positions, in global order."""
    order, positions = share.order[share.mine], share.positions
    start = 0
    for type_, count in counts.items():
        chosen = (order >= start) & (order < start + count)
        yield type_, order[chosen] - start, positions[chosen]
        start += count


def array_bytes(tensor: Tensor) -> memoryview:
    """A tensor's contents, to be hashed."""
    return tensor.detach().contiguous().numpy().data.cast("B")


def check_fingerprint(found: Fingerprint, expected: Fingerprint) -> None:
    """ValueError that names what differs between a saved state and this run."""
    found = {"drop_last": False, **found}  # not in states of before there was drop_last
    words = {name: f"{name} ({found.get(name)}, here {expected[name]})" for name in expected}
    words |= {"seeds": "seed list", "run_seed": words["run_seed"].removeprefix("run_")}
    differing = [words[name] for name in expected if found.get(name) != expected[name]]
    if differing:
        raise ValueError(
            f"the loader's state was saved with another {' and another '.join(differing)}: "
            "its epoch and step would mean other seeds. Load it into a loader made as the saved one was"
        )
