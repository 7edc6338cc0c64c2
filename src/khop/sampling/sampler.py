"""The seam between a loader and how neighbourhoods are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from khop.batch import Sample
from khop.draw import DrawKey
from khop.schema import NodeType


@dataclass(frozen=True)
class Seeds:
    """The nodes that a batch (or a rank's share of it) is about, duplicates allowed."""

    nodes: Mapping[NodeType, Tensor]  # int64 (n), global ids
    positions: Mapping[NodeType, Tensor]  # int64 (n), positions in the epoch's global order
    times: Mapping[NodeType, Tensor] | None = None  # int64 (n), a time limit per seed

    @property
    def count(self) -> int:
        """Seeds of all types together."""
        return sum(nodes.numel() for nodes in self.nodes.values())


class Sampler(Protocol):
    """Draws the neighbourhood of seeds: a pure function of (seeds, key), called from several threads."""

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """The blocks (and, of the subgraph expansion, the subgraph) that reach the seeds."""
        ...
