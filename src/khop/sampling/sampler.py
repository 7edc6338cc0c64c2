"""The seam between a loader and how neighborhoods are drawn."""

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
    """The links of one edge type that a batch (or a rank's share of it) is about, duplicates allowed."""

    edges: Tensor  # int64 (2, n), global ids: sources over destinations
    positions: Tensor  # int64 (n), positions in the epoch's global order
    batch_edges: Tensor  # int64 (2, m), the links of all ranks in this step
    labels: Tensor | None = None  # (n, ...)
    times: Tensor | None = None  # int64 (n), a time limit per link
    negatives: Tensor | None = None  # int64 (n, k), global ids of the destination type


@dataclass(frozen=True)
class LinkSeeds:
    """Links by type, and the key that their negatives are drawn with."""

    by_type: Mapping[EdgeType, SeedLinks]
    negative_key: DrawKey

    @property
    def count(self) -> int:
        """Links of all types together."""
        return sum(links.positions.numel() for links in self.by_type.values())


@dataclass(frozen=True)
class Seeds:
    """The nodes, and the links, that a batch (or a rank's share of it) is about, duplicates allowed."""

    nodes: Mapping[NodeType, Tensor]  # int64 (n), global ids
    positions: Mapping[NodeType, Tensor]  # int64 (n), positions in the epoch's global order
    times: Mapping[NodeType, Tensor] | None = None  # int64 (n), a time limit per seed
    links: LinkSeeds | None = None  # for a LinkSampler

    @property
    def count(self) -> int:
        """Seeds of all types together."""
        num_links = 0 if self.links is None else self.links.count
        return num_links + sum(nodes.numel() for nodes in self.nodes.values())


class Sampler(Protocol):
    """Draws the neighborhood of seeds: a pure function of (seeds, key), called from several threads."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """The blocks (and, of the subgraph expansion, the subgraph) that reach the seeds."""
        ...
