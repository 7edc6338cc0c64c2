"""torch_geometric's sampler interface, implemented by khop's neighbor sampler."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from khop.arguments import instance_of
from khop.pyg.inputs import with_tensors
from khop.pyg.keyed import Draws, KeyedSampler, NegativeEnds, SamplerSettings, SupervisionWarning
from khop.pyg.outputs import EDGE, Output
from khop.pyg.source import Attributes, Directed, Direction
from khop.sampling.links.exclusion import Exclude, checked_exclude
from khop.schema import EdgeType


class NeighborSampler(BaseSampler):
    """Drop-in replacement for `torch_geometric.sampler.NeighborSampler`.

    `sample_from_nodes` and `sample_from_edges` draw from torch's generator. The attributes `num_neighbors`,
    `subgraph_type`, `replace`, `disjoint` and `temporal_strategy` may be assigned later, as torch_geometric's
    data modules do.

    Args:
        data: A `Data`, a `HeteroData`, or a tuple `(FeatureStore, GraphStore)`.
        num_neighbors: Fanout per hop, -1 for all neighbors; also a mapping by edge type.
        subgraph_type: "directional" (default), "bidirectional" or "induced".
        replace: True to sample with replacement (default False).
        disjoint: True for a separate subgraph per seed (default False; always with times).
        temporal_strategy: "uniform" (default) or "last", the most recent neighbors.
        time_attr: Attribute of node or edge times. Neighbors later than the seed are not sampled. Default: no
            times.
        weight_attr: Attribute of edge weights, to which sampling probabilities are proportional. Default: no
            weights.
        is_sorted: True if edges are sorted by destination, which saves a sort (default False).
        share_memory: No effect, because threads share memory (default False).
        directed: Deprecated in favor of `subgraph_type`; False means "induced" (default True).
        sample_direction: "forward" (default) samples in-neighbors, "backward" out-neighbors.
        time_window: `(before, after)`, in units of the times: only neighbors from `before` earlier than the
            seed to `after` later, with `after` 0 or less. Default: all that are not later.
        exclude: "edge" removes the seed links of a batch from its message graph, "edge+reverse" also their
            reverses. Default None: they stay.
    Raises:
        ValueError: `time_window` is given without `time_attr`, there is no such direction, or an argument
            does not fit the data.
    Example:
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.randn(100, 8), edge_index=torch.randint(100, (2, 500)))
        >>> sampler = khop.pyg.NeighborSampler(data, [10, 5], sample_direction="backward")
        >>> loader = khop.pyg.NeighborLoader(data, [10, 5], neighbor_sampler=sampler, batch_size=20)
    """

    is_bidirectional: ClassVar[bool] = False  # hops follow edges in both directions

    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighbors | Sequence[int] | Mapping[EdgeType, Sequence[int]],
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,  # no effect: threads share memory
        directed: bool = True,
        sample_direction: str = "forward",
        *,
        time_window: tuple[int, int] | None = None,
        exclude: Exclude | str | None = None,
    ) -> None:
        if not directed:
            subgraph_type = SubgraphType.induced
            warnings.warn(
                f"The usage of the 'directed' argument in '{type(self).__name__}' is deprecated. "
                "Use `subgraph_type='induced'` instead.",
                stacklevel=2,
            )
        if time_window is not None and time_attr is None:
            raise ValueError(f"time_window {time_window}: has no effect without times; give time_attr")
        self.sample_direction = Direction(sample_direction)
        if self.is_bidirectional:
            if self.sample_direction is not Direction.FORWARD:
                raise ValueError(
                    f"sample_direction {self.sample_direction}: hops follow both directions; leave it out"
                )
            self.sample_direction = Direction.BOTH
        self.exclude = None if exclude is None else checked_exclude(exclude)
        self.time_window = time_window
        data = with_tensors(data, time_attr, weight_attr)
        self._edges = Directed.of(data, Attributes(time_attr, weight_attr, is_sorted), self.sample_direction)
        self._ends = NegativeEnds(self._edges.source)
        self._warning = SupervisionWarning(is_needed=self.exclude is None)
        self._time_attr = time_attr
        self._weight_attr = weight_attr
        self.num_neighbors = num_neighbors
        self.subgraph_type = SubgraphType(subgraph_type)
        self.replace = replace
        self._disjoint = disjoint
        self.temporal_strategy = temporal_strategy
        self._keyed: KeyedSampler | None = None  # for the settings at the last call
        self.keyed()

    @property
    def num_neighbors(self) -> NumNeighbors:
        """Fanouts per hop, and per edge type."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: NumNeighbors | Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> None:
        value = _listed(value)
        remedy = "give a list with a number per hop, or one for each edge type"
        instance_of("num_neighbors is", value, (NumNeighbors, list, tuple, Mapping), remedy)
        self._num_neighbors = value if isinstance(value, NumNeighbors) else NumNeighbors(value)

    @property
    def disjoint(self) -> bool:
        """True if every seed has a separate subgraph; always true with times."""
        return self._disjoint or self._time_attr is not None

    @disjoint.setter
    def disjoint(self, value: bool) -> None:
        self._disjoint = value

    @property
    def is_hetero(self) -> bool:
        """True if nodes and edges have types: a `HeteroData`, or stores with edge types."""
        return self._edges.source.is_typed

    @property
    def edge_permutation(self) -> Tensor | Mapping[EdgeType, Tensor | None] | None:
        """Positions in the data of the sampler's edges, by edge type; None where they are equal."""
        permutations = self._edges.permutations
        return permutations if self._edges.source.is_typed else permutations[EDGE]

    def keyed(self) -> KeyedSampler:
        """Return a sampler with the current settings that takes its random draws as an argument."""
        settings = SamplerSettings(
            self._num_neighbors,
            self.replace,
            self.subgraph_type,
            self.disjoint,
            self.temporal_strategy,
            self.time_window,
            self._time_attr,
            self._weight_attr,
            self.exclude,
        )
        if self._keyed is None or self._keyed.settings != settings:
            hops = settings.hops(self._edges)
            self._keyed = KeyedSampler(settings, self._edges, hops, self._ends, self._warning)
        return self._keyed

    def sample_from_nodes(self, index: NodeSamplerInput) -> Output:
        """Sample the neighborhood of nodes.

        Args:
            index: Seeds and their times.
        Returns:
            A `SamplerOutput`, or a `HeteroSamplerOutput` for typed data.
        """
        return self.keyed().sample_nodes(index, Draws.from_torch())

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> Output:
        """Sample the neighborhood of the ends of links and of their negatives.

        Args:
            index: Seed links, their labels and times.
            neg_sampling: Negatives; default: none.
        Returns:
            A `SamplerOutput`, or a `HeteroSamplerOutput` for typed data.
        """
        return self.keyed().sample_edges(index, neg_sampling, Draws.from_torch())


def _listed(given: Any) -> Any:
    """Return fanouts with lists instead of arrays, tensors and Series, also by edge type."""
    if isinstance(given, Mapping):
        return {edge_type: _listed(fanouts) for edge_type, fanouts in given.items()}
    is_array = hasattr(given, "__array__") and np.ndim(given) == 1
    return np.asarray(given).tolist() if is_array else given


class BidirectionalNeighborSampler(NeighborSampler):
    """Drop-in replacement for `torch_geometric.sampler.BidirectionalNeighborSampler`.

    A hop samples in-neighbors and out-neighbors. An edge that is sampled in both directions is returned once.

    Args:
        data: A `Data`, a `HeteroData`, or a tuple `(FeatureStore, GraphStore)`.
        num_neighbors: Fanout per hop and direction, -1 for all neighbors; also a mapping by edge type.
        subgraph_type: "directional" (default), "bidirectional" or "induced".
        replace: True to sample with replacement (default False).
        disjoint: True for a separate subgraph per seed (default False; always with times).
        temporal_strategy: "uniform" (default) or "last", the most recent neighbors.
        time_attr: Attribute of node or edge times. Neighbors later than the seed are not sampled. Default: no
            times.
        weight_attr: Attribute of edge weights, to which sampling probabilities are proportional. Default: no
            weights.
        is_sorted: True if edges are sorted by destination, which saves a sort (default False).
        share_memory: No effect, because threads share memory (default False).
        directed: Deprecated in favor of `subgraph_type`; False means "induced" (default True).
        sample_direction: Only "forward" (default), because hops follow both directions.
        time_window: `(before, after)`, in units of the times: only neighbors from `before` earlier than the
            seed to `after` later, with `after` 0 or less. Default: all that are not later.
        exclude: "edge" removes the seed links of a batch from its message graph, "edge+reverse" also their
            reverses. Default None: they stay.
    Raises:
        ValueError: `sample_direction` is "backward", or an argument does not fit the data.
    Example:
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.randn(100, 8), edge_index=torch.randint(100, (2, 500)))
        >>> sampler = khop.pyg.BidirectionalNeighborSampler(data, [5, 5])
        >>> loader = khop.pyg.NeighborLoader(data, [5, 5], neighbor_sampler=sampler, batch_size=20)
    """

    is_bidirectional = True
