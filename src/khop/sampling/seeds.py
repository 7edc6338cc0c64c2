"""The order in which an epoch uses its seeds, and a rank's share of every step of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from khop.draw import DrawKey, Purpose
from khop.kernels.permutation import permutation_slice
from khop.sampling.sampler import Seeds
from khop.schema import NodeType

Fingerprint = Mapping[str, str | int | bool]


@dataclass(frozen=True)
class SeedOrder:
    """Which seeds every step uses: a pure function of its fields, with no state and no memory but the seeds.

    All seeds, type after type, stand in one global order; of a shuffled epoch, a permutation keyed by (run
    seed, epoch). Step s takes the s-th `batch_size` of it, the last step what is left. Ranks share a step
    in contiguous parts, as equal as can be; a part may be empty, so that every rank makes every step.
    """

    seeds: Mapping[NodeType, Tensor]  # int64 (seeds), global ids, duplicates allowed
    batch_size: int  # seeds per step over all ranks
    shuffle: bool = False
    run_seed: int = 0
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"batch_size {self.batch_size!r}: must be a whole number, 1 or more")
        if self.num_seeds == 0:
            raise ValueError(
                f"seeds: none given for node types {list(self.seeds)}; an epoch needs one or more"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank {self.rank} of {self.world_size}: must be from 0 to {self.world_size - 1}"
            )

    @property
    def num_seeds(self) -> int:
        """Seeds of all types, over all ranks."""
        return sum(ids.numel() for ids in self.seeds.values())

    @property
    def num_steps(self) -> int:
        """Steps per epoch, the same for every rank."""
        return -(-self.num_seeds // self.batch_size)

    def num_global_seeds(self, step: int) -> int:
        """Seeds of a step over all ranks."""
        start, stop = self._bounds(step)
        return stop - start

    def share(self, epoch: int, step: int) -> Seeds:
        """This rank's seeds of a step, by type, in global order."""
        start, stop = self._bounds(step)
        count = stop - start
        first = start + count * self.rank // self.world_size
        last = start + count * (self.rank + 1) // self.world_size
        return self._seeds_at(self._order(epoch, first, last), torch.arange(first, last))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What has to be equal for (epoch, step) to mean the same seeds: plain values, for a JSON file."""
        digest = hashlib.sha256()
        for node_type, ids in self.seeds.items():
            digest.update(f"{node_type}:{ids.numel()}:".encode())
            digest.update(ids.contiguous().numpy().data)
        return {
            "seeds": digest.hexdigest(),
            "batch_size": self.batch_size,
            "run_seed": self.run_seed,
            "shuffle": self.shuffle,
        }

    def _bounds(self, step: int) -> tuple[int, int]:
        if not 0 <= step < self.num_steps:
            raise ValueError(f"step {step}: an epoch has steps 0 to {self.num_steps - 1}")
        return step * self.batch_size, min((step + 1) * self.batch_size, self.num_seeds)

    def _order(self, epoch: int, first: int, last: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(first, last)
        key = DrawKey.of(self.run_seed, Purpose.SHUFFLE, epoch)
        return permutation_slice(key, self.num_seeds, first, last)

    def _seeds_at(self, order: Tensor, positions: Tensor) -> Seeds:
        nodes: dict[NodeType, Tensor] = {}
        positions_by_type: dict[NodeType, Tensor] = {}
        start = 0
        for node_type, ids in self.seeds.items():
            chosen = (order >= start) & (order < start + ids.numel())
            nodes[node_type] = ids[order[chosen] - start]
            positions_by_type[node_type] = positions[chosen]
            start += ids.numel()
        return Seeds(nodes, positions_by_type)


def check_fingerprint(found: Fingerprint, expected: Fingerprint) -> None:
    """ValueError that names what differs between a saved state and this run."""
    words = {"seeds": "seed list", "batch_size": "batch_size", "run_seed": "seed", "shuffle": "shuffle"}
    differing = [
        words[name] if name == "seeds" else f"{words[name]} ({found.get(name)}, here {expected[name]})"
        for name in expected
        if found.get(name) != expected[name]
    ]
    if differing:
        raise ValueError(
            f"the loader's state was saved with another {' and another '.join(differing)}: "
            "its epoch and step would mean other seeds. Load it into a loader made as the saved one was"
        )
