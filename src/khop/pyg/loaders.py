"""torch_geometric's `NeighborLoader` and `LinkNeighborLoader` with khop's sampling and threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler
from torch_geometric import loader as theirs
from torch_geometric.sampler import BaseSampler, NegativeSampling, NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType

from khop.arguments import as_mapping, whole
from khop.distributed.processes.group import this_group
from khop.loading.ordered_map import InFlight, ordered_map
from khop.process_tuning import check_fork, tune_for_training
from khop.pyg.inputs import check_links, checked_nodes, links_with_tensors, tensors_of, with_tensors
from khop.pyg.keyed import Draws
from khop.pyg.outputs import Columns, Output, TypedData, attach_links, columns_of, num_bytes, owner_of
from khop.pyg.sampler import NeighborSampler
from khop.sampling.links.exclusion import Exclude
from khop.schema import NodeType

Sampled = Any  # a sampler's output
Batch = Any  # a data object, or the result of a transform


@dataclass(frozen=True)
class Work:
    """The input of one batch."""

    index: Tensor  # int64 (seeds), indices into the loader's input
    draws: Draws


def epoch(
    loader: Any, sample: Callable[[Work], Sampled], join: Callable[[Sampled], Batch]
) -> Iterator[Batch]:
    """Yield the batches of one epoch in order; without workers, each is made on request.

    With workers, `join` runs in the worker if the loader has `filter_per_worker`, else in the consumer. The
    draws are seeded from torch's generator now, not at the first batch.
    """
    tune_for_training()
    stages = _Stages(sample, join, loader.filter_per_worker)
    works = _works(iter(loader._index_sampler), Draws.from_torch(loader.generator))
    if loader.num_workers == 0:
        return (stages.here(_pinned(loader, stages.ahead(work))) for work in works)
    return _on_threads(loader, stages, list(works))


@dataclass(frozen=True)
class _Stages:
    """The stages of a batch: in a worker, and in the consumer."""

    sample: Callable[[Work], Sampled]
    join: Callable[[Sampled], Batch]
    joins_ahead: bool

    def ahead(self, work: Work) -> Any:
        sampled = self.sample(work)
        return self.join(sampled) if self.joins_ahead else sampled

    def here(self, made: Any) -> Batch:
        return made if self.joins_ahead else self.join(made)


def _works(indices: Iterator[Any], draws: Draws) -> Iterator[Work]:
    position = 0
    for step, index in enumerate(indices):
        seeds = torch.as_tensor(index, dtype=torch.int64).view(-1)
        yield Work(seeds, replace(draws, step=step, position=position))
        position += seeds.numel()


def _on_threads(loader: DataLoader[int], stages: _Stages, works: list[Work]) -> Generator[Batch, None, None]:
    threads = loader.num_workers
    in_flight = InFlight(threads, threads * (loader.prefetch_factor or 2))
    made = ordered_map(partial(_Worker(loader).made, stages.ahead), works, in_flight, num_bytes)
    with closing(made):
        yield from map(stages.here, made)


class _Worker:
    """Batch maker shared by threads. Each thread calls `worker_init_fn` before its first batch."""

    def __init__(self, loader: DataLoader[int]) -> None:
        self._loader = loader
        self._numbers = count()
        self._local = threading.local()

    def made(self, ahead: Callable[[Work], Any], work: Work) -> Any:
        if not hasattr(self._local, "number"):
            self._local.number = next(self._numbers)
            if self._loader.worker_init_fn is not None:
                self._loader.worker_init_fn(self._local.number)
        return _pinned(self._loader, ahead(work))


def _pinned(loader: DataLoader[int], made: Any) -> Any:
    """Move a batch to pinned memory if the loader has `pin_memory` and there is a GPU."""
    can_pin = loader.pin_memory and torch.cuda.is_available() and hasattr(made, "pin_memory")
    return made.pin_memory() if can_pin else made


@dataclass(frozen=True, eq=False)
class TypedSeeds:
    """The seeds of an epoch, type after type. A batch may have seeds of several types."""

    by_type: Mapping[NodeType, NodeSamplerInput]

    @classmethod
    def of(cls, data: Any, nodes: Any, times: Any, sampler: BaseSampler, input_ids: Any) -> TypedSeeds | None:
        """Make seeds of ids or a mask per node type, None for all nodes; times and input ids are by type too.

        Returns None for input nodes that are not a mapping by type.
        """
        if not isinstance(nodes, Mapping):
            return None
        typed = TypedData.of(data)
        if typed is None or not typed.is_typed or not isinstance(sampler, NeighborSampler):
            raise ValueError(
                "input_nodes by node type are for a HeteroData and khop's sampler; give ids, or (type, ids)"
            )
        by_time = dict.fromkeys(nodes) if times is None else as_mapping(times, lambda _: {})
        if set(by_time) != set(nodes):
            raise ValueError(f"input_time: give a mapping with the times of each of {list(nodes)}")
        numbers = {} if input_ids is None else input_ids
        if not isinstance(numbers, Mapping) or not set(numbers) <= set(nodes):
            raise ValueError(f"input_id: give a mapping with the ids of each of {list(nodes)}")
        if not nodes:
            raise ValueError("input_nodes is an empty mapping: give a node type with its ids, a mask or None")
        by_type = {}
        for node_type, given in nodes.items():
            _, ids = checked_nodes(data, (node_type, given), by_time[node_type])
            inputs = _inputs(typed.nodes, node_type, ids, by_time[node_type])
            if node_type in numbers:
                inputs.input_id = tensors_of("input_id", numbers[node_type])
                if inputs.input_id.numel() != inputs.node.numel():
                    raise ValueError(
                        f"input_id of {node_type!r} has {inputs.input_id.numel()} ids, and there are "
                        f"{inputs.node.numel()} input nodes"
                    )
            by_type[node_type] = inputs
        return cls(by_type)

    def places(self) -> tuple[tuple[NodeType, Tensor], None]:
        """Return dummy input nodes, one per seed, for a loader that only counts them."""
        count = sum(inputs.node.numel() for inputs in self.by_type.values())
        return (next(iter(self.by_type)), torch.zeros(count, dtype=torch.int64)), None

    def at(self, places: Tensor) -> dict[NodeType, NodeSamplerInput]:
        """Return the seeds at some positions, by type, in the order of the positions."""
        found, first = {}, 0
        for node_type, inputs in self.by_type.items():
            count = inputs.node.numel()
            own = places[(places >= first) & (places < first + count)] - first
            found[node_type] = inputs[own]
            first += count
        return found


def _inputs(
    nodes: Mapping[NodeType, Any], node_type: NodeType, given: Tensor | None, times: Tensor | None
) -> NodeSamplerInput:
    ids = torch.arange(nodes[node_type].num_nodes) if given is None else given
    is_mask = ids.dtype == torch.bool
    seeds = ids.nonzero().view(-1) if is_mask else ids
    # As in torch_geometric: a mask's inputs are numbered by node, ids by their position.
    return NodeSamplerInput(seeds if is_mask else None, seeds, times, node_type)


Neighbors = Any  # NumNeighbors, a list of fanouts per hop, or a list per edge type
Transform = Callable[[Any], Any]


class _OnThreads:
    """The parts of both loaders that replace torch's `DataLoader`; comes before torch_geometric's class."""

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch warns about too many worker processes, but these workers are threads."""

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
    """Drop-in replacement for `torch_geometric.loader.NeighborLoader`, with threads as workers.

    Arguments, batches and errors are those of torch_geometric; docs/pyg-arguments.md lists the differences.
    A batch depends only on the order of the seeds and on one draw from torch's generator at `iter()`: the
    number of workers never changes it.

    Args:
        data: A `Data`, a `HeteroData`, or a tuple `(FeatureStore, GraphStore)`.
        num_neighbors: Fanout per hop, -1 for all neighbors; also a mapping by edge type.
        input_nodes: Seeds: ids, a boolean mask, or `(node type, ids)`; default: all nodes. A mapping from
            node type to ids, a mask or None gives seeds of several types.
        input_time: Time per seed, int64; default: the times of the seeds in `time_attr`.
        replace: True to sample with replacement (default False).
        subgraph_type: "directional" (default), "bidirectional" or "induced".
        disjoint: True for a separate subgraph per seed (default False; always with times).
        temporal_strategy: "uniform" (default) or "last", the most recent neighbors.
        time_attr: Attribute of node or edge times. Neighbors later than the seed are not sampled. Default: no
            times.
        weight_attr: Attribute of edge weights, to which sampling probabilities are proportional. Default: no
            weights.
        transform: Function of each batch, whose result the loader yields; default None.
        transform_sampler_output: Function of each sampler output, before features are gathered; default None.
        is_sorted: True if edges are sorted by destination, which saves a sort (default False).
        filter_per_worker: True to gather features on the worker's thread; default: chosen by the data.
        neighbor_sampler: Sampler of the batches, which replaces the sampling arguments; default: a
            `khop.pyg.NeighborSampler`.
        directed: Deprecated in favor of `subgraph_type`; False means "induced" (default True).
        time_window: `(before, after)`, in units of the times: only neighbors from `before` earlier than the
            seed to `after` later, with `after` 0 or less. Default: all that are not later.
        **kwargs: Arguments of `torch.utils.data.DataLoader`, such as `batch_size`, `shuffle`, `num_workers`.
    Raises:
        ValueError: An argument does not fit the data, or `time_window` conflicts with `neighbor_sampler`.
    Example:
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.randn(100, 8), edge_index=torch.randint(100, (2, 500)))
        >>> loader = khop.pyg.NeighborLoader(data, num_neighbors=[10, 5], batch_size=20, num_workers=2)
        >>> next(iter(loader)).batch_size
        20
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
        data, input_time = with_tensors(data, time_attr, weight_attr), tensors_of("input_time", input_time)
        if neighbor_sampler is None:
            by = (subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted)
            neighbor_sampler = NeighborSampler(
                data, num_neighbors, *by, directed=directed, time_window=time_window
            )
        elif time_window is not None:
            raise ValueError(f"time_window {time_window}: set it on the neighbor_sampler")
        self._typed = TypedSeeds.of(data, input_nodes, input_time, neighbor_sampler, kwargs.get("input_id"))
        if self._typed is None:
            input_nodes = checked_nodes(data, input_nodes, None if time_attr is None else input_time)
        else:
            kwargs.pop("input_id", None)
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
    """Drop-in replacement for `torch_geometric.loader.LinkNeighborLoader`, with threads as workers.

    Arguments, batches and errors are those of torch_geometric; docs/pyg-arguments.md lists the differences.
    A batch depends only on the order of the links and on one draw from torch's generator at `iter()`. The
    negatives of a link depend on its position in the epoch.

    Args:
        data: A `Data`, a `HeteroData`, or a tuple `(FeatureStore, GraphStore)`.
        num_neighbors: Fanout per hop, -1 for all neighbors; also a mapping by edge type.
        edge_label_index: Seed links: ends (2, n), or `(edge type, ends)`; default: all edges.
        edge_label: Label per link; default: 1 for links if negatives are sampled, else none.
        edge_label_time: Time per link, int64; needed with `time_attr`. Default None.
        replace: True to sample with replacement (default False).
        subgraph_type: "directional" (default), "bidirectional" or "induced".
        disjoint: True for a separate subgraph per link (default False; always with times).
        temporal_strategy: "uniform" (default) or "last", the most recent neighbors.
        neg_sampling: "binary", "triplet" or a `NegativeSampling`; default: no negatives.
        neg_sampling_ratio: Negatives per link, a short form of binary `neg_sampling`. Default None.
        time_attr: Attribute of node or edge times. Neighbors later than the link are not sampled. Default: no
            times.
        weight_attr: Attribute of edge weights, to which sampling probabilities are proportional. Default: no
            weights.
        transform: Function of each batch, whose result the loader yields; default None.
        transform_sampler_output: Function of each sampler output, before features are gathered; default None.
        is_sorted: True if edges are sorted by destination, which saves a sort (default False).
        filter_per_worker: True to gather features on the worker's thread; default: chosen by the data.
        neighbor_sampler: Sampler of the batches, which replaces the sampling arguments; default: a
            `khop.pyg.NeighborSampler`.
        directed: Deprecated in favor of `subgraph_type`; False means "induced" (default True).
        exclude: "edge" removes the links of a batch from its message graph, "edge+reverse" also their
            reverses. Default None: they stay, as in torch_geometric, and a warning counts them.
        time_window: `(before, after)`, in units of the times: only neighbors from `before` earlier than the
            link to `after` later, with `after` 0 or less. Default: all that are not later.
        **kwargs: Arguments of `torch.utils.data.DataLoader`, such as `batch_size`, `shuffle`, `num_workers`.
    Raises:
        ValueError: An argument does not fit the data, or `exclude` or `time_window` conflicts with
            `neighbor_sampler`.
    Example:
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.randn(100, 8), edge_index=torch.randint(100, (2, 500)))
        >>> settings = {"neg_sampling": "binary", "exclude": "edge", "batch_size": 50}
        >>> next(iter(khop.pyg.LinkNeighborLoader(data, [5, 5], **settings))).edge_label.shape
        torch.Size([100])
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
        data = with_tensors(data, time_attr, weight_attr)
        edge_label_index = links_with_tensors(edge_label_index)
        edge_label = tensors_of("edge_label", edge_label)
        edge_label_time = tensors_of("edge_label_time", edge_label_time)
        if neighbor_sampler is None:
            by = (subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr, is_sorted)
            neighbor_sampler = NeighborSampler(
                data, num_neighbors, *by, directed=directed, time_window=time_window, exclude=exclude
            )
        elif exclude is not None or time_window is not None:
            raise ValueError(
                f"exclude {exclude!r}, time_window {time_window}: set them on the neighbor_sampler"
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
            f"khop.pyg loaders do not divide their seeds: each of the {group.world_size} ranks uses all "
            "seeds that it is given, as in torch_geometric. Give each rank its part, such as "
            "train_idx.chunk(world_size)[rank], or use khop.Loader, which divides them",
            stacklevel=3,
        )


_warned: list[bool] = []  # in this process


def _of_threads(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a DataLoader's settings without the multiprocessing context, after a warning."""
    for name in ("batch_size", "num_workers", "prefetch_factor"):  # torch only accepts Python integers
        number = whole(settings.get(name))
        if number is not None:
            settings[name] = number
    context = settings.pop("multiprocessing_context", None)
    if context is not None:
        warnings.warn(
            f"multiprocessing_context {context!r}: has no effect, because workers are threads of this "
            "process; leave it out",
            stacklevel=3,
        )
    return settings
