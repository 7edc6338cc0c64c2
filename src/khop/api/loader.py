"""The loader of training batches: prefetched in order, divided among ranks, and resumable at any step.

The storage of the graph decides where batches are made: on CPU threads, on a GPU, in lanes over ranks, or by
servers.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from khop.api.open_graph import Graph
from khop.arguments import check_word, instance_of, one_of, seed_number, shown, whole_number
from khop.batch import Batch, Sample, Span, num_bytes
from khop.distributed.device_lane_source import DeviceLaneSource
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Message, sent_to_all
from khop.distributed.placement import CacheBudgets, CacheBy, LaneSource, affinity_of, with_caches
from khop.distributed.processes.group import Group, RankValues, this_group
from khop.distributed.rank_rows import split_by_rows, without
from khop.draw import DrawKey
from khop.errors import Unsupported
from khop.graph.features.store import FeatureStore
from khop.graph.features.table import NO_COLUMNS
from khop.graph.node_ids import LABEL
from khop.inference.chunks import evaluating
from khop.loading.columns import ColumnChoice, DeferredColumns, Gather, NamesByType, Narrow, split_deferred
from khop.loading.device.batch_check import BatchCheck
from khop.loading.device.device_caching import (
    DeviceColumns,
    pinned_copies,
    rows_of_host,
    split_choice,
    visits_of,
)
from khop.loading.device.device_placement import Check, byte_size
from khop.loading.device.static_choice import static_batches_of
from khop.loading.device.streams import Streams, streams_of
from khop.loading.device.transfer import Transfer, device_of
from khop.loading.local_source import LocalSource
from khop.loading.ordered_map import InFlight
from khop.loading.source import (
    BatchSource,
    BatchTransform,
    Drawn,
    LoopProgress,
    Position,
    State,
    StepRequests,
    finished,
    request_of,
)
from khop.process_tuning import check_fork, cores_of_rank, sampler_threads, tune_for_training
from khop.sampling.groups import grouped
from khop.sampling.on_device.capacities import MEASURED
from khop.sampling.sampler import Sampler, check_seed_kind, sampler_of
from khop.sampling.seed_table import SeedTable
from khop.sampling.seeds import (
    GivenSeeds,
    GroupSeeds,
    SeedAffinity,
    SeedList,
    SeedOrder,
    Seeds,
    SeedTimes,
    digest_of,
)
from khop.schema import ColumnSpec
from khop.servers.graph import source_of
from khop.training.steps import mover, seeded

if TYPE_CHECKING:
    from khop.loading.device.device_source import DeviceSource, StaticBatches


def local_source(
    graph: Graph,
    sampler: Sampler,
    choice: ColumnChoice,
    order: SeedOrder,
    device: torch.device,
    streams: Streams | None,
) -> LocalSource:
    """Return the source of batches sampled on the CPU; placed columns are gathered on the device."""
    features, stores = _features(graph, choice), graph.stores
    transfer = None if streams is None else Transfer(streams)
    if stores is None or graph.lanes is not None or not (stores.edges or stores.columns):
        return LocalSource(sampler, features, choice, device, transfer=transfer)
    edges = graph.in_one_piece("stores on a device")
    of_host, of_device = split_choice(choice, stores)
    visits = visits_of(sampler, order, edges) if stores.plan.caches else {}
    copies = pinned_copies(stores, edges, of_device, visits)
    cached = None
    if features is not None and visits:
        cached = rows_of_host(stores, edges, of_host, features, visits)
    columns = None if of_device.is_empty else DeviceColumns(stores, graph.schema, of_device, copies)
    features = None if of_host.is_empty else features
    return LocalSource(sampler, features, of_host, device, cached, transfer, columns)


@dataclass(frozen=True)
class _Draws:
    """Kernels that make the batches of a loader, or in lanes their samples; or the reason for the CPU."""

    source: DeviceSource | None = None  # prepared; None: the CPU samples
    reason: ValueError | None = None  # why it does, although the edges are on a GPU

    @classmethod
    def of(cls, graph: Graph, local: LocalSource, order: SeedOrder, streams: Streams | None) -> _Draws:
        """Return the kernels for a loader on a graph with or without lanes. Collective with lanes."""
        if graph.lanes is None:
            return cls._by_kernels(graph, local, order, streams)
        return cls._in_lanes(graph, graph.lanes, local, order, streams)

    @classmethod
    def _by_kernels(
        cls, graph: Graph, local: LocalSource, order: SeedOrder, streams: Streams | None
    ) -> _Draws:
        stores = graph.stores
        if stores is None or stores.edges is None or streams is None:
            return cls()
        try:
            sampled = Graph.of(local.sampler.graph)
            if sampled.topology is not graph.topology:
                raise ValueError("the sampler's graph has other edges; place it, too, with Graph.on")
            if not order.seeds.is_for_kernels:
                raise ValueError(
                    f'{type(order.seeds).__name__}: these seeds are sampled on the CPU; set topology="host"'
                )
            # Imported on use, because it imports Triton, which only comes with CUDA builds of torch.
            module = import_module("khop.loading.device.device_source")
            source: DeviceSource = module.DeviceSource(local, stores, streams, partial(_warm_up, order))
            source.prepare()
        except ValueError as error:
            return cls(reason=error)
        return cls(source)

    @classmethod
    def _in_lanes(
        cls, graph: Graph, lanes: Lanes, local: LocalSource, order: SeedOrder, streams: Streams | None
    ) -> _Draws:
        """Return the kernels that sample; on no rank if one of them samples on the CPU.

        Collective if GPUs exchange columns.
        """
        choice = exchanged_columns(graph, local.columns)
        if streams is None or choice.is_empty:
            return cls()
        found, stores, on_host = cls(), graph.stores, without(local.columns, choice)
        if stores is None or stores.edges is None or order.seeds.is_collective:
            pass
        elif on_host.is_empty:
            samples = replace(local, features=None, columns=ColumnChoice(), on_device=None, transform=None)
            found = cls._by_kernels(graph, samples, order, streams)
        else:
            of_types = (on_host.of_nodes, on_host.of_edges, on_host.of_seeds)
            names = sorted({name for of in of_types for of_type in of.values() for name in of_type})
            found = cls(reason=ValueError(f"the CPU gathers the columns {names} of each batch"))
        has_source = torch.tensor([found.source is not None])
        if not all(map(bool, sent_to_all(lanes.peers, has_source, _CHOOSING))):
            found = replace(found, source=None)
        return found


_CHOOSING = Message("choosing where to sample", "id")


def batch_check(
    graph: Graph,
    local: LocalSource,
    draws: DeviceSource | None,
    choice: ColumnChoice,
    order: SeedOrder,
    streams: Streams | None,
) -> BatchCheck | None:
    """Return the check of GPU batches against the CPU; None if kernels have no part in them, or on request.

    Kernels draw with `draws`, and gather the columns that `local` has on the device. Columns that GPUs
    exchange are not compared, because the CPU would gather them by a collective.
    """
    stores = graph.stores
    if stores is None or streams is None or stores.plan.request.check is Check.NONE:
        return None
    if draws is None and local.device_columns is None:
        return None
    exchanged = exchanged_columns(graph, choice)
    compared = without(choice, exchanged)
    reference = LocalSource(local.sampler, _features(graph, compared), compared, torch.device("cpu"))
    return BatchCheck(reference, exchanged, order, streams)


def exchanged_columns(graph: Graph, choice: ColumnChoice) -> ColumnChoice:
    """Return the columns of a choice that GPUs exchange."""
    return ColumnChoice() if graph.rank_rows is None else split_by_rows(choice, graph.rank_rows)


def source_by_cpu(
    graph: Graph, local: LocalSource, draws: DeviceSource | None, order: SeedOrder, streams: Streams | None
) -> BatchSource:
    """Return the source of batches sampled on the CPU: in lanes if the graph is partitioned across ranks.

    Rows on GPUs are exchanged between GPUs, which sample too with `draws`.
    """
    if graph.lanes is None:
        return source_of(local, order.seeds.reference)
    lane_source = LaneSource(local, graph.lanes, tuple(order.seeds.counts))
    choice, rows = exchanged_columns(graph, local.columns), graph.rank_rows
    if rows is None or streams is None or choice.is_empty:
        return lane_source
    return DeviceLaneSource(lane_source, choice, rows, streams, partial(_warm_up, order), draws)


def _warm_up(order: SeedOrder) -> list[tuple[Seeds, DrawKey]]:
    """Return seeds and keys of the first batches, except a short last step."""
    steps = order.num_steps
    if steps > 1 and order.num_global_seeds(steps - 1) < order.num_global_seeds(0):
        steps -= 1
    requests = StepRequests(order, 0, range(min(MEASURED, steps * order.micro_batches)))
    return [(request.seeds(), request.key) for request in requests]


def _features(graph: Graph, choice: ColumnChoice) -> FeatureStore | None:
    if choice.is_empty:
        return None
    if graph.features is NO_COLUMNS:
        raise ValueError(
            "columns are requested, but the graph has none: give the loader graph=khop.Graph(...)"
        )
    return graph.features


SeedAssignment = Literal["owner", "position"]  # assignment of the seeds of a step to ranks
Ranks = Literal["all", "this"]  # ranks that divide the seeds of a loader
Batches = Generator[Batch, None, None]


class Loader:
    """Iterates over batches in order, prefetched by threads.

    The position can be saved and restored.

    Each loop `for batch in loader` is one whole epoch. It starts at step 0 of the next epoch, even if the
    previous loop ended early. `epoch(n)` iterates over epoch n. After `load_state_dict`, the first loop
    returns the rest of the saved epoch. Batch (epoch, step) is a pure function of graph, sampler, seeds,
    `batch_size`, `shuffle` and `seed`. Threads, prefetch and device never change it.

    Several ranks divide the seeds: give every rank the whole list and the same settings, and iterate over
    the same loaders on every rank. The first loop compares the loaders, and differences are an error.

    Args:
        sampler: Sampler of the neighborhoods.
        seeds: `khop.SeedTable`, `khop.Links`, `khop.NodeTuples`, or nodes: ids or a boolean mask, as
            tensor, array or list, or "all"; of several node types a mapping from type to nodes. Each seed
            is used once per epoch. A tensor or array is not copied: do not change it while the loader is
            used.
        batch_size: Seeds per step over all ranks. For samplers of groups (`SaintSampler`,
            `ClusterSampler`, `ShadowSampler`), the number of groups; each group is used once per epoch, by
            one rank.
        graph: Graph with the columns, by default the sampler's.
        shuffle: Use another order in each epoch; default False.
        drop_last: Drop the last step of an epoch if it has fewer than `batch_size` seeds, or groups for a
            sampler of groups; default False.
        micro_batches: Batches into which each step is split on each rank, to save memory (gradient
            accumulation). With the layered expansion, the sum of their gradients equals that of the step;
            update parameters after a batch with `batch.ends_step`. Default 1.
        seed: Random seed of the order and of all draws, default 0.
        columns: Columns to gather for all nodes of a batch: names, or a mapping from type to names, which
            may also name edge types (see `Adjacency.columns`). Default none.
        seed_columns: Columns to gather for the seeds: names, or a mapping from type to names. Default
            none.
        seed_times: One time per seed node, or the name of a column of them; `khop.Temporal` needs it.
            Default None.
        narrow: Dtype of float16, bfloat16 and quantized columns in batches: "float32" (default), or
            "stored".
        gather: "ahead" (default), or "deferred": rows of numeric columns in memory of the device are not
            copied into the batch; SAGE, GCN and other layers of khop that aggregate input rows read the
            table directly, with bit-identical results.
        device: Device of the batches, by default the GPU that the graph is placed on (`Graph.on`), else
            the CPU.
        threads: Threads that make batches; the default depends on the number of cores. Sampling on a GPU
            uses one.
        prefetch: Maximum number of batches in flight, default 4.
        prefetch_bytes: Limit on finished batches, in bytes or as a string such as "1GB"; at the limit, no
            new batch is started. Default 1 GiB. Has no effect if the graph is partitioned across ranks,
            unless GPUs sample.
        seed_assignment: Assignment of the seeds of a step to ranks in a graph that is partitioned across
            ranks: "owner" (default), to the rank that stores the seed, as far as shares stay equal, or
            "position", by position in the step.
        ranks: "all" (default) divides the seeds among the ranks; with "this", this rank uses all of them,
            for example in an evaluation under `if rank == 0`.
        transform: Function applied to each batch, for example to add columns. It runs on the threads that
            make batches, concurrently, before a batch is copied to a device; if columns are in GPU memory, it
            runs in the thread that uses the batch. It must only depend on the batch; for randomness, derive
            seeds from `batch.epoch` and `batch.step`. Default None.
    Raises:
        ValueError: Seeds, columns or settings do not fit the graph or the sampler.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.NeighborSampler(graph, fanouts=[10, 5])
        >>> loader = khop.Loader(sampler, range(256), batch_size=64, shuffle=True, columns=["x"])
        >>> for batch in loader:
        ...     features, blocks = batch["x"], batch.blocks
        >>> len(loader), loader.state_dict()["epoch"]
        (4, 1)
    """

    def __init__(
        self,
        sampler: Sampler,
        seeds: GivenSeeds,
        batch_size: int,
        *,
        graph: Graph | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        micro_batches: int = 1,
        seed: int = 0,
        columns: Sequence[str] | NamesByType = (),
        seed_columns: Sequence[str] | NamesByType = (),
        seed_times: SeedTimes | None = None,
        narrow: Narrow | str = Narrow.FLOAT32,
        gather: Gather | str = Gather.AHEAD,
        device: torch.device | str | int | None = None,
        threads: int | None = None,
        prefetch: int = 4,
        prefetch_bytes: int | str = 1 << 30,
        seed_assignment: SeedAssignment = "owner",
        ranks: Ranks = "all",
        transform: Callable[[Batch], Batch] | None = None,
    ) -> None:
        check_fork()
        if transform is not None and not callable(transform):
            raise ValueError(f"transform {shown(transform)}: must be a function from a batch to a batch")
        sampler = sampler_of(sampler)
        self._graph = graph = Graph.of(sampler.graph if graph is None else graph)
        self._group, self._device = this_group(), _device(device, graph)
        self._streams = streams_of(self._device)

        # The seeds, their order, columns, the source of batches, and the loop over them.
        given = SeedList.of(graph, seeds, seed_times, graph.features)
        # Not named `sampler`, because Lightning rebuilds a loader with that attribute as a DataLoader.
        self.graph_sampler = sampler
        check_seed_kind(sampler, given.seed_kind)
        self._types = given.output_types(graph.schema)
        division = _Division.of(graph, given, self._group, ranks, seed_assignment)
        self._order = division.order(sampler, given, batch_size, shuffle, seed, drop_last, micro_batches)
        self.columns, ahead, self._deferred = _columns(
            graph, given, columns, seed_columns, narrow, gather, self._device
        )
        self._seed_times = seed_times if isinstance(seed_times, str) else None
        self._transform = None if transform is None else BatchTransform(transform)
        local = local_source(graph, sampler, ahead, self._order, self._device, self._streams)
        self._on_device = self._drawn_on_device(local)
        source, late = self._source_of(local)
        if threads is None:
            threads = sampler_threads(cores_of_rank(self._group.local_world_size), self._device.type)
        self._progress = LoopProgress(self._order)
        self._batches = _OrderedBatches(
            source,
            self._order,
            self._device,
            InFlight(threads, prefetch, byte_size(prefetch_bytes, "prefetch_bytes", least=1)),
            self._progress,
            self._group,
            self._deferred,
            late,
            _EqualLoaders.of(self._group, _caller()) if division.is_shared else None,
            batch_check(graph, self._local, self._on_device, ahead, self._order, self._streams),
        )

    def _source_of(self, local: LocalSource) -> tuple[BatchSource, BatchTransform | None]:
        """Prepare the source of batches over these stores; return it, and the transform to apply after it.

        Batches that are complete in host memory are transformed by the source, on its threads.
        """
        graph, transform = self._graph, self._transform
        on_gpu = (graph.stores, graph.rank_rows, local.on_device)
        is_late = bool(self._deferred.tables) or any(part is not None for part in on_gpu)
        self._local = local = replace(local, transform=None if is_late else transform)
        source: BatchSource | None = self._on_device if graph.lanes is None else None
        if source is None:
            source = source_by_cpu(graph, local, self._on_device, self._order, self._streams)
        source.prepare()
        return source, transform if is_late else None

    def _drawn_on_device(self, local: LocalSource) -> DeviceSource | None:
        """Return the kernels that draw; None if the CPU draws.

        If khop placed the edges on the GPU by default, and kernels do not support the sampler, sampling falls
        back to the CPU, with a warning. If the place was requested, that is a ValueError.
        """
        draws = _Draws.of(self._graph, local, self._order, self._streams)
        if draws.reason is not None:
            assert self._graph.stores is not None, "it has the edges"
            if self._graph.stores.plan.request.topology is not None:
                raise draws.reason
            warnings.warn(f"batches are sampled on the CPU, not on the GPU: {draws.reason}", stacklevel=3)
        return draws.source

    def cache_features(
        self, budget_bytes: int | str, by: CacheBy | str = CacheBy.AUTO, *, device_cache_bytes: int | str = 0
    ) -> None:
        """Cache the rows that batches need most often, if they are on other ranks or on disk.

        Batches do not change; `batch.traffic` counts the cache hits as `host_cache_rows` and
        `device_cache_rows`. Collective: call it once on all ranks, before the first epoch. If the columns
        are in the memory of every rank, nothing is cached, and a warning is issued.

        Args:
            budget_bytes: Maximum size of the cache in host memory, in bytes or as a string such as "2GB".
            by: Estimate of access frequencies: "visits" computes the probability that a batch contains a
                node, "counts" samples the first epoch and counts, "auto" (default) uses counts if
                probabilities are not available: for partitioned edges, weights, times and links.
            device_cache_bytes: Maximum size of the cache on the device, for the most frequent rows. Default
                0.
        """
        budgets = CacheBudgets(
            byte_size(budget_bytes, "budget_bytes"), byte_size(device_cache_bytes, "device_cache_bytes")
        )
        topology, budget = self._graph.topology, budgets.host_cache_bytes or budgets.device_cache_bytes
        cached = with_caches(self._local, self._order, topology, budgets, one_of("by", by, CacheBy))
        if cached is self._local and budget and self._group.rank == 0:
            why = "the columns are mapped" if self._local.features else "the loader has no columns"
            warnings.warn(
                f"a cache for rows of other processes or on disk, of {budgets.host_cache_bytes:,} bytes in "
                f"host memory and {budgets.device_cache_bytes:,} on a device, has no effect: {why}. Leave "
                "it out (cache_features, --cache-bytes, --cache), read the columns from disk (--features "
                "disk), or let several processes share a partitioned graph",
                stacklevel=2,
            )
        if cached is not self._local:
            if self._on_device is not None and self._graph.lanes is None:
                self._on_device = self._on_device.over(cached)
            source, late = self._source_of(cached)
            self._batches = replace(self._batches, source=source, transform=late)

    def __len__(self) -> int:
        """Return the number of steps per epoch, the same on every rank."""
        return self._order.num_steps

    def batch(self, epoch: int, step: int) -> Batch:
        """Make one batch, bit-identical to that of an iteration. The position does not change.

        It contains the seeds of all micro-batches of the step on this rank, and uses torch's number of
        threads. If the graph is not partitioned, a single rank may call it: unlike a loop and
        `compare_ranks`, it does not compare the loader with those of other ranks.

        Args:
            epoch: Epoch, from 0.
            step: Step within the epoch, from 0.
        """
        return self._batches.one(replace(self._order, micro_batches=1), epoch, step)

    def whole_batch(self, epoch: int, step: int) -> Batch:
        """Make one batch with the seeds of all ranks, identical on each rank.

        Args:
            epoch: Epoch, from 0.
            step: Step within the epoch, from 0.
        """
        return self._batches.one(replace(self._order, rank=0, world_size=1, micro_batches=1), epoch, step)

    def __call__(self, seeds: GivenSeeds, seed_times: SeedTimes | None = None) -> Batch:
        """Make one batch of the given seeds. The position does not change.

        The same seeds always give the same batch. `global_mean` is the mean over these seeds only. If the
        graph is partitioned across ranks, every rank must call it, with any seeds or an empty list.

        Args:
            seeds: Seeds in one of the forms that a loader accepts, of the same types as those of this loader.
            seed_times: Times of the seeds; default: the column that this loader was given by name.
        Raises:
            ValueError: The seeds do not fit the graph, the sampler or the loader, or the sampler chooses the
                nodes of a batch itself, as `khop.ClusterSampler` and `khop.SaintSampler` do.
        """
        times = self._seed_times if seed_times is None and not isinstance(seeds, SeedTable) else seed_times
        given = SeedList.of(self._graph, seeds, times, self._graph.features)
        check_seed_kind(self.graph_sampler, given.seed_kind)
        types = given.output_types(self._graph.schema)
        if types != self._types:
            raise ValueError(
                f"seeds of {list(types)}: the seeds of this loader are of {list(self._types)}; give seeds of "
                "these types, with an empty list for a type without seeds"
            )
        count, own = sum(given.counts.values()), self._order.seeds
        if isinstance(own, GroupSeeds) and own.kind != "nodes":
            raise ValueError(
                f"a batch of given seeds: the sampler makes batches of its {own.kind}, and chooses their "
                "nodes itself; use a loader with a khop.NeighborSampler"
            )
        if count == 0 and (self._graph.is_collective or self._graph.features.is_collective):
            # Rank 0 of 2 has no part of a step with one seed.
            nothing = replace(self._order, batch_size=1, group=1, micro_batches=1, affinity=None)
            return self._batches.one(replace(nothing, rank=0, world_size=2), 0, 0)
        alone = _Division(0, 1, None, is_shared=False)
        order = alone.order(self.graph_sampler, given, max(1, count), False, self._order.run_seed, False, 1)
        return self._batches.one(order, 0, 0)

    def epoch(self, epoch: int) -> Batches:
        """Iterate over all batches of an epoch, in order.

        After `load_state_dict`, the first loop over the saved epoch returns the remaining batches.

        Args:
            epoch: Epoch, from 0.
        """
        epoch = whole_number("epoch", epoch, 0)
        self._progress.start(epoch)  # raises here, not at the first batch
        return self._batches.loop(epoch)

    def __iter__(self) -> Batches:
        """Iterate over all batches of the next epoch.

        After `load_state_dict`, the first loop returns the remaining batches of the saved epoch. The epoch of
        a loop is determined when its first batch is requested. Each loop advances by one epoch, even if the
        previous loop was left early or raised an error, so ranks that start the same loops are at the same
        epoch.
        """
        return self._batches.loop(None)

    def compare_ranks(self) -> None:
        """Compare this loader once with the corresponding loaders of the other ranks.

        The n-th loaders of all ranks correspond. The first loop also does this. `khop.Trainer` calls it
        before it reads a checkpoint and before its first step. Collective; it does nothing for
        `ranks="this"`.

        Raises:
            ValueError: The ranks gave different seeds or settings, such as a slice of the seeds on each.
            PeerLost: A rank did not arrive within the deadline.
        """
        self._batches.compare()

    def static_batches(self, saved: State | None = None) -> StaticBatches:
        """Return batches with static shapes, for steps that a trainer records as CUDA graphs.

        Like `batch`, it does not compare the loader with those of other ranks; a trainer has done so before.
        Raises Unsupported, with the reason, unless GPU kernels make the whole batch.

        Args:
            saved: Capacities saved in a checkpoint; default None.
        """
        if self._transform is not None:
            raise Unsupported("batches with a transform cannot be recorded; leave launches out")
        if self._graph.rank_rows is not None:
            raise Unsupported("GPUs exchange the columns of each batch; leave launches out")
        made = (self._on_device, self._order, self._progress, self._graph.schema, self._deferred)
        return static_batches_of(*made, saved or {}, self._batches.check)

    def state_dict(self) -> dict[str, object]:
        """Return the position of the next batch that the latest loop has not returned, as plain values."""
        return self._progress.next.state(self._order)

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state, with any number of threads or ranks.

        Args:
            state: Result of `state_dict`.
        Raises:
            ValueError: The state belongs to other seeds or settings.
        """
        self._progress.load(state)


def drawn_size(loader: Loader, epoch: int, step: int) -> tuple[Sample, int, int]:
    """Draw a batch without its rows; return the sample, its bytes, and the bytes of its rows."""
    local, features = loader._local, loader._graph.features
    drawn = replace(local, features=None, transform=None).make(request_of(loader._order, epoch, step))
    rows = sum(
        ids.numel() * _row_bytes(features.specs[t][name], name in local.columns.as_float32.get(t, ()))
        for t, ids in drawn.sample.nodes.items()
        for name in local.columns.of_nodes.get(t, ())
    )
    return drawn.sample, num_bytes(drawn), rows


def _row_bytes(spec: ColumnSpec, is_widened: bool) -> int:
    item = torch.float32.itemsize if is_widened else getattr(torch, spec.dtype).itemsize
    return math.prod(spec.shape) * item


@dataclass(frozen=True)
class _OrderedBatches:
    """Batches of a source in the order of the seeds, finished on the device."""

    source: BatchSource
    order: SeedOrder
    device: torch.device
    in_flight: InFlight
    progress: LoopProgress
    group: Group
    deferred: DeferredColumns
    transform: BatchTransform | None  # for batches that are only complete on the device
    equal: _EqualLoaders | None  # None: the ranks do not divide the seeds
    check: BatchCheck | None  # check of the first batch of each loop; None: no check

    def one(self, order: SeedOrder, epoch: int, step: int) -> Batch:
        """Make one batch. The progress does not change."""
        epoch = whole_number("epoch", epoch, 0)
        step = whole_number("step", step)  # the upper limit is checked by the order
        drawn = self.source.make(request_of(order, epoch, step))
        return self._completed(finished(drawn, order, Position(epoch, step), self.device))

    def compare(self) -> None:
        """Compare the loader with those of the other ranks if they divide the seeds."""
        if self.equal is not None:
            self.equal.check(self.order)

    def loop(self, epoch: int | None) -> Batches:
        """Iterate over an epoch, by default the next. It begins when its first batch is requested."""
        self.compare()
        tune_for_training()
        loop, start = self.progress.begin(epoch)
        micro_batches = self.order.micro_batches
        batches = range(start.step * micro_batches, self.order.num_batches)
        requests = StepRequests(self.order, start.epoch, batches)
        check = nullcontext() if self.check is None else self.check.of_loop(requests)
        with closing(self.source.stream(requests, self.in_flight)) as drawn, check:
            for number in batches:
                position = Position(start.epoch, *divmod(number, micro_batches))
                yield self._received(drawn, position, loop)

    def _received(self, stream: Generator[Drawn], position: Position, loop: int) -> Batch:
        # A separate function, so that the suspended generator does not hold the batch.
        self._at("waiting for its batch", position)
        started = monotonic()
        drawn = next(stream)
        waiting = Span.since(started, "waiting")
        batch = finished(drawn, self.order, position, self.device)
        if self.check is not None:
            self.check.received(partial(batch.map, torch.clone))
        batch = self._completed(batch)
        moving = Span.since(waiting.ended, "moving")
        self.progress.received(loop, position)
        self._at("computing", position)
        return replace(batch, spans=(*batch.spans, waiting, moving))

    def _completed(self, batch: Batch) -> Batch:
        """Add deferred columns, and transform the batch if the source has not."""
        batch = self.deferred.added_to(batch) if self.deferred.tables else batch
        return batch if self.transform is None else self.transform(batch)

    def _at(self, stage: str, position: Position) -> None:
        """Record this rank's stage, for error messages of ranks that wait for it."""
        if self.group.watch is not None:
            self.group.watch.at(stage, position.epoch, position.step)


@dataclass
class _EqualLoaders:
    """The comparison of a rank's n-th loader with the n-th loaders of the other ranks."""

    values: RankValues
    where: str  # the line that made the loader
    is_checked: bool = False

    @classmethod
    def of(cls, group: Group, where: str) -> _EqualLoaders | None:
        """Return the comparison of the next loader; None for one rank."""
        values = RankValues.of(group)
        return None if values is None else cls(values, where)

    def check(self, order: SeedOrder) -> None:
        """Compare the loaders once: ValueError if they differ, PeerLost if a rank is missing."""
        if self.is_checked:
            return
        fingerprint = {**order.fingerprint, "micro_batches": order.micro_batches}
        name = (
            f"the loader made at {self.where} (loader {self.values.number + 1} of this process, "
            f"{order.num_seeds:,} seeds, batch_size {order.batch_size})"
        )
        group = self.values.group
        group.at(f"waiting for all ranks to iterate over {name}")
        description = json.dumps({"num_seeds": order.num_seeds, "where": self.where, **fingerprint})
        digest = digest_of(lambda update: update(repr(fingerprint).encode()))
        found = self.values.others(digest, description, partial(_late, group.rank, name))
        if found:
            raise ValueError(_different(group.rank, {rank: json.loads(each) for rank, each in found.items()}))
        self.is_checked = True


def _late(rank: int, name: str, missing: Sequence[int], deadline_s: float) -> str:
    """Return the error message for a loader that other ranks do not iterate over."""
    others = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    return (
        f"rank {rank} iterates over {name}, but {others} did not within {deadline_s:g} s. A khop.Loader "
        "divides its seeds among all ranks: make it and iterate over it on every rank, in the same order "
        '(not under `if rank == 0`), or give ranks="this", which does not divide the seeds'
    )


def _different(rank: int, loaders: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the error message for loaders that differ between two ranks."""
    mine = loaders[rank]
    other, theirs = next((r, each) for r, each in loaders.items() if _settings(each) != _settings(mine))
    (low, first), (high, second) = sorted([(rank, mine), (other, theirs)], key=lambda pair: pair[0])
    places = f"rank {low} at {first['where']}, rank {high} at {second['where']}"
    if first["seeds"] == second["seeds"]:
        names = [name for name in _settings(first) if first[name] != second[name]]
        differences = ", ".join(
            f"{name.removeprefix('run_')} is {first[name]} on rank {low} and {second[name]} on rank {high}"
            for name in names
        )
        return (
            f"the ranks made different loaders ({places}): {differences}. Give the same settings on every "
            "rank; batch_size is the number of seeds per step over all ranks"
        )
    counts = f"{first['num_seeds']:,} seeds on rank {low}, {second['num_seeds']:,} on rank {high}"
    return (
        f"the ranks gave different seeds to a khop.Loader ({places}): {counts}, not the same list. The "
        "loader divides the list among the ranks itself: give every rank the whole list, as "
        "khop.Loader(sampler, train_idx, ...) without train_idx.split(...)[rank], and make the same "
        "loaders in the same order on every rank. For "
        'a loader on one rank that does not divide its seeds, give ranks="this"'
    )


def _settings(loader: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in loader.items() if name not in ("where", "num_seeds")}


def _caller() -> str:
    """Return file and line of the user's code that made the loader."""
    frame = sys._getframe(2)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@dataclass(frozen=True)
class _Division:
    """The share of the seeds of each step that this rank uses."""

    rank: int
    world_size: int
    affinity: SeedAffinity | None
    is_shared: bool  # the ranks divide the seeds

    @classmethod
    def of(
        cls, graph: Graph, seeds: SeedList, group: Group, ranks: Ranks, seed_assignment: SeedAssignment
    ) -> _Division:
        """Divide seeds among all ranks, or use all of them; ValueError if the graph needs the other ranks."""
        check_word("seed_assignment", seed_assignment, SeedAssignment)
        check_word("ranks", ranks, Ranks)
        if ranks == "all":
            affinity = _affinity(graph, seed_assignment, group.rank)
            return cls(group.rank, group.world_size, affinity, is_shared=True)
        if graph.is_collective or graph.features.is_collective or seeds.is_collective:
            raise ValueError(
                'ranks="this": the graph is partitioned across ranks, so every rank takes part in every '
                'batch; leave ranks out, or open the graph with placement="whole"'
            )
        return cls(0, 1, None, is_shared=False)

    def order(
        self,
        sampler: Sampler,
        seeds: SeedList,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        micro_batches: int,
    ) -> SeedOrder:
        """Return this rank's seeds of every step, or its groups for a sampler of groups."""
        groups, affinity, size = grouped(sampler, seeds), self.affinity, 1
        if groups is not None:
            seeds, affinity, size = groups, None, groups.size
            batch_size = whole_number("batch_size", batch_size, 1) * size
        place = (self.rank, self.world_size, affinity)
        return SeedOrder(seeds, batch_size, shuffle, seed, *place, drop_last, size, micro_batches)


def _columns(
    graph: Graph,
    seeds: SeedList,
    columns: Sequence[str] | NamesByType,
    seed_columns: Sequence[str] | NamesByType,
    narrow: Narrow | str,
    gather: Gather | str,
    device: torch.device,
) -> tuple[ColumnChoice, ColumnChoice, DeferredColumns]:
    """Return the columns of batches: all columns, those gathered ahead, and deferred ones."""
    choice = ColumnChoice.of(
        graph.schema,
        columns,
        seed_columns,
        seeds.output_types(graph.schema),
        one_of("narrow", narrow, Narrow),
    )
    labels = seeds.labels if isinstance(seeds, SeedTable) else None
    for node_type in labels or {}:
        if LABEL in choice.of_seeds.get(node_type, ()):
            raise ValueError(
                f"seed_columns with {LABEL!r}: this name is used for the labels of the khop.SeedTable; "
                "leave it out"
            )
    placed = graph.stores if graph.rank_rows is None else None  # none if they are partitioned across ranks
    gather = one_of("gather", gather, Gather)
    return choice, *split_deferred(choice, gather, graph.features, placed, device)


def _device(given: torch.device | str | int | None, graph: Graph) -> torch.device:
    """Return the device of batches: the given one, or else the graph's."""
    if given is None:
        return graph.device
    device = device_of(given)
    if graph.stores is not None and (device.type, device.index or 0) != (
        graph.device.type,
        graph.device.index or 0,
    ):
        raise ValueError(f"device {given!r}: the graph is placed on {graph.device}; leave device out")
    return device


def _affinity(graph: Graph, seed_assignment: SeedAssignment, rank: int) -> SeedAffinity | None:
    """Return the ranks that store each node, if seeds are assigned to owners."""
    if seed_assignment == "owner":
        return affinity_of(graph, graph.lanes)
    if graph.lanes is None and graph.partition_options is None and rank == 0:
        warnings.warn(
            "seed_assignment 'position' has no effect, because the graph is not partitioned. Leave it out, "
            "or partition the graph with `khop partition`",
            stacklevel=4,
        )
    return None


_TRIED = 10  # maximum number of batches to reach every node and edge type


def initialize(model: nn.Module, loader: Loader, seed: int = 0) -> None:
    """Initialize a model's lazy modules by running it on batches of the loader, before DDP wraps it.

    Every rank runs it on the same whole batches, so all ranks get the same sizes, and, with `seed`, the same
    weights.

    Args:
        model: Model with lazy modules.
        loader: Loader of its batches.
        seed: Random seed of the weights, default 0.
    Raises:
        ValueError: A module is not initialized after ten batches.
    Example:
        >>> class Words(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.linear = torch.nn.LazyLinear(58)
        ...
        ...     def forward(self, batch):
        ...         return self.linear(batch["x"][batch.seed_index].float())
        >>> model, sampler = Words(), khop.NeighborSampler(khop.open_graph("debian"), [5])
        >>> khop.initialize(model, khop.Loader(sampler, range(64), batch_size=64, columns=["x"]))
        >>> model.linear.in_features
        512
    """

    instance_of("model", model, nn.Module, "must be a torch.nn.Module")
    instance_of("loader", loader, Loader, "must be a khop.Loader")
    seed = seed_number(seed)

    def run() -> nn.Module:
        for step in range(min(len(loader), _TRIED)):
            if not _unsized(model):
                break
            model(loader.whole_batch(0, step).map(mover(model)))
        return model

    with evaluating(model):
        seeded(seed, run)
    if left := _unsized(model):
        raise ValueError(
            f"the first {_TRIED} batches do not initialize {', '.join(left[:4])}: give these modules their "
            "sizes, or leave them out"
        )


def _unsized(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
