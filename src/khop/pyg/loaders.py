"""torch_geometric's `NeighborLoader` and `LinkNeighborLoader`, with khop's sampling and threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler
from torch_geometric import loader as theirs
from torch_geometric.sampler import BaseSampler, NegativeSampling
from torch_geometric.sampler.base import SubgraphType

from khop.forks import check_fork
from khop.pyg.columns import Columns, attach_links, columns_of
from khop.pyg.inputs import check_links, checked_nodes
from khop.pyg.iteration import Work, epoch
from khop.pyg.keyed import Draws
from khop.pyg.outputs import Output
from khop.pyg.sampler import NeighborSampler
from khop.pyg.typed_data import owner_of
from khop.pyg.typed_seeds import TypedSeeds
from khop.runtime.group import this_group
from khop.sampling.exclusion import Exclude

Neighbors = Any  # NumNeighbors, a list of fanouts per hop, or a list per edge type
Transform = Callable[[Any], Any]


class _OnThreads:
    """The parts of both loaders that replace torch's `DataLoader`; comes before torch_geometric's class."""

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch warns about more worker processes than cores, but here workers are threads."""

    def __iter__(self: Any) -> Iterator[Any]:
        """The batches of an epoch, in order."""
        _warn_of_ranks(self)
        return epoch(self, self._sampled, partial(self._batch, columns_of(self.data)))

    def collate_fn(self: Any, index: Tensor | Sequence[int]) -> Any:
        """Sample the given inputs, and add their columns if `filter_per_worker`."""
        sampled = self._sampled(Work(torch.as_tensor(index), Draws.from_torch()))
        return self.filter_fn(sampled) if self.filter_per_worker else sampled

    def filter_fn(self: Any, out: Output) -> Any:
        """Make the batch of a sampler's output."""
        return self._batch(columns_of(self.data), out)

    def _batch(self: Any, columns: Columns | None, out: Output) -> Any:
        if columns is None:
            return super().filter_fn(out)  # type: ignore[misc]
        if self.transform_sampler_output:
            out = self.transform_sampler_output(out)
        batch = self._made(columns, out)
        return batch if self.transform is None else self.transform(batch)


class NeighborLoader(_OnThreads, theirs.NeighborLoader):
    """torch_geometric's `NeighborLoader`: the same arguments, batches and errors (docs/pyg.md).

    Workers are threads. A batch depends only on the order of the seeds and one draw from torch's generator
    at `iter()`: the number of workers never changes it.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Neighbors,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        time_window: tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        check_fork()
        if neighbor_sampler is None:
            by = (subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted)
            neighbor_sampler = NeighborSampler(
                data, num_neighbors, *by, directed=directed, time_window=time_window
            )
        elif time_window is not None:
            raise ValueError(f"time_window {time_window}: give it to the neighbor_sampler")
        self._typed = TypedSeeds.of(data, input_nodes, input_time, neighbor_sampler)
        if self._typed is None:
            input_nodes = checked_nodes(data, input_nodes, None if time_attr is None else input_time)
        else:
            input_nodes, input_time = self._typed.places()
        super().__init__(
            data,
            num_neighbors,
            input_nodes=input_nodes,
            input_time=input_time,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            **_of_threads(kwargs),
        )

    def _sampled(self, work: Work) -> Output:
        if self._typed is not None:
            return self.node_sampler.keyed().sample_typed(self._typed.at(work.index), work.draws)
        inputs = self.input_data[work.index]
        if isinstance(self.node_sampler, NeighborSampler):
            return self.node_sampler.keyed().sample_nodes(inputs, work.draws)
        return self.node_sampler.sample_from_nodes(inputs)

    def _made(self, columns: Columns, out: Output) -> Any:
        batch = columns.batch(out, self.node_sampler.edge_permutation)
        of_seeds = {self.input_data.input_type: out.metadata} if self._typed is None else out.metadata
        for node_type, (input_id, times) in of_seeds.items():
            seeds = owner_of(batch, node_type)
            seeds.input_id, seeds.seed_time, seeds.batch_size = input_id, times, input_id.numel()
        return batch


class LinkNeighborLoader(_OnThreads, theirs.LinkNeighborLoader):
    """torch_geometric's `LinkNeighborLoader`: the same arguments, batches and errors (docs/pyg.md).

    Workers and draws are as for `NeighborLoader`; negatives are keyed by a link's position in the epoch.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Neighbors,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | str | None = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        exclude: Exclude | str | None = None,
        time_window: tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        check_fork()
        if neighbor_sampler is None:
            by = (subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted)
            neighbor_sampler = NeighborSampler(
                data, num_neighbors, *by, directed=directed, time_window=time_window, exclude=exclude
            )
        elif exclude is not None or time_window is not None:
            raise ValueError(
                f"exclude {exclude!r}, time_window {time_window}: give them to the neighbor_sampler"
            )
        check_links(data, edge_label_index, edge_label, None if time_attr is None else edge_label_time)
        super().__init__(
            data,
            num_neighbors,
            edge_label_index=edge_label_index,
            edge_label=edge_label,
            edge_label_time=edge_label_time,
            time_attr=time_attr,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            **_of_threads(kwargs),
        )
        if isinstance(self.link_sampler, NeighborSampler):
            self.link_sampler.keyed().prepare_negatives(self.input_data.input_type, self.neg_sampling)

    def _sampled(self, work: Work) -> Output:
        inputs = self.input_data[work.index]
        if isinstance(self.link_sampler, NeighborSampler):
            return self.link_sampler.keyed().sample_edges(inputs, self.neg_sampling, work.draws)
        return self.link_sampler.sample_from_edges(inputs, neg_sampling=self.neg_sampling)

    def _made(self, columns: Columns, out: Output) -> Any:
        batch = columns.batch(out, self.link_sampler.edge_permutation)
        attach_links(batch, self.input_data.input_type, out.metadata)
        return batch


def _warn_of_ranks(loader: Any) -> None:
    """Warn once if every rank uses all seeds, as in torch_geometric, without a DistributedSampler."""
    group = this_group()
    is_divided = isinstance(loader.sampler, DistributedSampler) or loader.batch_sampler is None
    if group.world_size > 1 and group.rank == 0 and not is_divided and not _warned:
        _warned.append(True)
        warnings.warn(
            f"khop.pyg loaders do not divide their seeds: each of the {group.world_size} ranks uses all that "
            "it is given, as in torch_geometric. Unless each rank is given its part, as by "
            "train_idx.chunk(world_size)[rank], use khop.Loader, which divides them",
            stacklevel=3,
        )


_warned: list[bool] = []  # in this process


def _of_threads(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a DataLoader's settings without the start method of processes; warns that it has no effect."""
    context = settings.pop("multiprocessing_context", None)
    if context is not None:
        warnings.warn(
            f"multiprocessing_context {context!r}: has no effect, workers are threads of this process; "
            "leave it out",
            stacklevel=3,
        )
    return settings
