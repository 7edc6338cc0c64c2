"""The interface between a loader and samplers: seeds, and the `Sampler` protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from khop.batch import Sample
from khop.draw import DrawKey
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class SeedLinks:
    """Seed links of one edge type for a batch (or for a rank's share of it), duplicates allowed."""

    edges: Tensor  # int64 (2, n), global ids: sources over destinations
    positions: Tensor  # int64 (n), positions in the epoch's global order
    batch_edges: Tensor  # int64 (2, m), the links of all ranks in this step
    labels: Tensor | None = None  # (n, ...)
    times: Tensor | None = None  # int64 (n), a time limit per link
    negatives: Tensor | None = None  # int64 (n, k), global ids of the destination type


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
class Seeds:
    """Seed nodes and seed links of a batch (or of a rank's share of it), duplicates allowed."""

    nodes: Mapping[NodeType, Tensor]  # int64 (n), global ids
    positions: Mapping[NodeType, Tensor]  # int64 (n), positions in the epoch's global order
    times: Mapping[NodeType, Tensor] | None = None  # int64 (n), a time limit per seed
    links: LinkSeeds | None = None  # for a LinkSampler

    @property
    def count(self) -> int:
        """Number of seeds of all types."""
        num_links = 0 if self.links is None else self.links.count
        return num_links + sum(nodes.numel() for nodes in self.nodes.values())


class Sampler(Protocol):
    """A sampler of neighborhoods: a pure function of (seeds, key), called from several threads."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the blocks (and, with the subgraph expansion, the subgraph) that reach the seeds."""
        ...
