"""Protocol between a loader and samplers: seeds in, samples out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

from khop.arguments import graph_of, shown
from khop.batch import Sample
from khop.draw import DrawKey
from khop.graph.store import GraphStore
from khop.schema import EdgeType, EdgeTypeName, NodeType


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
    """A sampler of neighborhoods. A sampler of your own subclasses `SamplerBase`."""

    @property
    def graph(self) -> GraphStore:
        """The graph that samples are drawn from."""
        ...

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the blocks (and, with the subgraph expansion, the subgraph) that reach the seeds.

        A pure function of (seeds, key), called from several threads at once.
        """
        ...

    def prepare(self, *edge_types: EdgeTypeName) -> None:
        """Build now the arrays that samples of links of these types need. Collective where the graph is."""
        ...

    def with_threads(self, threads: int) -> Sampler:
        """Return a sampler of the same bits that uses up to `threads` threads for each sample."""
        ...


class SamplerBase(ABC):
    """A sampler of your own: a subclass writes `sample`, a pure function of (seeds, key).

    `sample` is called from several threads at once.
    """

    def __init__(self, graph: GraphStore) -> None:
        graph_of("graph", graph)
        self._graph = graph

    @property
    def graph(self) -> GraphStore:
        """The graph that samples are drawn from."""
        return self._graph

    @abstractmethod
    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Return the blocks (and, with the subgraph expansion, the subgraph) that reach the seeds."""

    def prepare(self, *edge_types: EdgeTypeName) -> None:  # noqa: B027
        """Do nothing: samples need no other arrays than the graph's edges."""

    def with_threads(self, threads: int) -> Self:
        """Return this sampler: it uses one thread for each sample."""
        return self


def checked_sampler(sampler: object) -> Sampler:
    """Return the sampler; ValueError if it is none."""
    if not isinstance(sampler, SamplerBase):
        raise ValueError(
            f"sampler {shown(sampler)}: must be a khop.NeighborSampler, a khop.LinkSampler, or an instance "
            "of your own subclass of khop.SamplerBase"
        )
    return sampler
