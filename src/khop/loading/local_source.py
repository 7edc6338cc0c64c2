"""Batch source of threads in this process: sampling, then one gather of all columns."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from types import MappingProxyType

import torch
from torch import Tensor

from khop.batch import Adjacency, Block, Columns, Sample, Span, Subgraph, num_bytes
from khop.graph.features.row_cache import RowCache
from khop.graph.features.store import FeatureStore, Rows
from khop.kernels.memory import pinned_results
from khop.loading.columns import ColumnChoice
from khop.loading.device.device_caching import DeviceColumns, counts_of_host, rows_in_cache
from khop.loading.device.transfer import Transfer
from khop.loading.ordered_map import InFlight, ordered_map
from khop.loading.source import BatchRequest, BatchTransform, CachedRows, Drawn
from khop.sampling.sampler import Sampler
from khop.schema import EdgeType, NodeType

EdgeColumns = Mapping[EdgeType, Mapping[str, Tensor]]
_Remaining = dict[EdgeType, dict[str, Tensor]]


@dataclass(frozen=True)
class LocalSource:
    """A batch source over a sampler and a feature store of this process."""

    sampler: Sampler
    features: FeatureStore | None  # None if no column was requested
    columns: ColumnChoice  # gathered on the CPU
    device: torch.device  # of the finished batches
    on_device: RowCache | None = None  # node rows already on the device; None: no rows are
    transfer: Transfer | None = None  # copies to the device ahead of the consumer; None: the loader copies
    device_columns: DeviceColumns | None = None  # gathered on the device after the copy
    transform: BatchTransform | None = None  # of complete batches, before the copy to the device

    def prepare(self) -> None:
        """Do nothing: the first draw that needs an array builds it, while other threads wait."""

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch with torch's number of threads."""
        return self.with_threads(torch.get_num_threads()).draw(request)

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Make batches on a few threads, each batch on one of them; see BatchSource and `ordered_map`."""
        return ordered_map(self.draw, requests, in_flight, num_bytes)

    def with_threads(self, threads: int) -> LocalSource:
        """Return a source of the same batches that uses up to `threads` threads for each."""
        features = None if self.features is None else self.features.with_threads(threads)
        return replace(self, sampler=self.sampler.with_threads(threads), features=features)

    def draw(self, request: BatchRequest) -> Drawn:
        """Make one batch on the calling thread. Several threads may do so at once."""
        if self.transfer is None:
            return self._made(request)
        with pinned_results():
            return self._sent(self._made(request), self.transfer)

    def _made(self, request: BatchRequest) -> Drawn:
        started = monotonic()
        seeds = request.seeds()
        sample = self.sampler.sample(seeds, request.key)
        sampling = Span.since(started, "sampling")
        columns: Columns = {}
        seed_columns: Columns = {}
        cached = self.on_device
        cached_rows = {} if cached is None else rows_in_cache(cached, self.columns, sample)
        copied = {} if self.device_columns is None else self.device_columns.in_cache
        if self.features is not None:
            sample, columns, seed_columns = gather_columns(self.features, self.columns, sample, cached_rows)
        drawn = Drawn(
            seeds.added_to(sample),
            {node_type: sample.nodes[node_type][index] for node_type, index in sample.seed_index.items()},
            columns,
            seed_columns,
            traffic=counts_of_host(sample.nodes, cached_rows, copied) if cached_rows or copied else {},
            cached_rows=cached_rows,
        )
        drawn = drawn if self.transform is None else self.transform.of_drawn(drawn, request)
        return replace(drawn, spans=(sampling, Span.since(sampling.ended, "gathering")))

    def _sent(self, drawn: Drawn, transfer: Transfer) -> Drawn:
        """Issue the copy to the device, and the gathers there."""
        columns = self.device_columns
        sent, arrival = transfer.send(drawn) if columns is None else transfer.send(drawn, columns.add)
        return replace(sent, arrival=arrival)


def gather_columns(
    features: FeatureStore,
    choice: ColumnChoice,
    sample: Sample,
    on_device: Mapping[NodeType, CachedRows] = MappingProxyType({}),
) -> tuple[Sample, Columns, Columns]:
    """Return the sample with its edge columns, the nodes' columns and the seeds' columns, by one gather.

    For nodes, only rows that are not on the device are gathered.
    """
    wanted: dict[NodeType | EdgeType, Rows] = {}
    for node_type in dict.fromkeys([*choice.of_nodes, *choice.of_seeds]):
        ids = sample.nodes[node_type]
        if node_type in on_device:
            ids = ids[on_device[node_type].others]
        wanted[node_type] = _node_rows(choice, sample, node_type, ids)
    for edge_type, names in choice.of_edges.items():
        widened = choice.as_float32.get(edge_type, frozenset())
        wanted[edge_type] = Rows(_edge_ids(sample, edge_type), names, as_float32=widened)
    gathered = features.gather(wanted)
    of_edges = {edge_type: gathered[edge_type] for edge_type in choice.of_edges}
    of_nodes = {t: {name: gathered[t][name] for name in names} for t, names in choice.of_nodes.items()}
    of_seeds = {
        t: {name: gathered[t][name][sample.seed_index[t]] for name in names}
        for t, names in choice.of_seeds.items()
    }
    return _with_edge_columns(sample, of_edges), of_nodes, of_seeds


def _node_rows(choice: ColumnChoice, sample: Sample, node_type: NodeType, ids: Tensor) -> Rows:
    """Return the rows to gather; columns that only seeds need stop after the seeds, which come first."""
    of_nodes = choice.of_nodes.get(node_type, ())
    of_seeds = [name for name in choice.of_seeds.get(node_type, ()) if name not in of_nodes]
    widened = choice.as_float32.get(node_type, frozenset())
    if not of_seeds:
        return Rows(ids, of_nodes, as_float32=widened)
    index = sample.seed_index[node_type]
    limit = int(index.max()) + 1 if index.numel() else 0
    names = (*of_nodes, *of_seeds)
    return Rows(ids, names, dict.fromkeys(of_seeds, limit), widened)


def _parts(sample: Sample, edge_type: EdgeType) -> list[Adjacency]:
    """Return the adjacencies with edges of a type: in the subgraph, also reversed, or in each block."""
    if sample.subgraph is not None:
        adjacencies = sample.subgraph.adjacencies
        return [adjacencies[t] for t in _types_of(sample.subgraph, edge_type) if t in adjacencies]
    return [b.adjacencies[edge_type] for b in sample.blocks if edge_type in b.adjacencies]


def _types_of(subgraph: Subgraph, edge_type: EdgeType) -> list[EdgeType]:
    """Return the types of the adjacencies with edge ids of `edge_type`."""
    return [edge_type, *(t for t, origin in subgraph.turned.items() if origin == edge_type)]


def _edge_ids(sample: Sample, edge_type: EdgeType) -> Tensor:
    """Return the edge ids of all adjacencies, concatenated."""
    ids = [part.edge_ids for part in _parts(sample, edge_type)]
    known = [of_part for of_part in ids if of_part is not None]
    if len(known) < len(ids):
        raise ValueError(
            f"columns of {edge_type}: the sampler returned no edge ids; make it with edge_ids=True"
        )
    return torch.cat(known) if known else torch.empty(0, dtype=torch.int64)


def _with_edge_columns(sample: Sample, columns: EdgeColumns) -> Sample:
    if not columns:
        return sample
    remaining = {t: dict(of_type) for t, of_type in columns.items()}
    if sample.subgraph is not None:
        adjacencies = dict(sample.subgraph.adjacencies)
        for edge_type in columns:
            for part in _types_of(sample.subgraph, edge_type):
                _fill(adjacencies, part, remaining, edge_type)
        subgraph = replace(sample.subgraph, adjacencies=adjacencies)
        return replace(sample, subgraph=subgraph, blocks=subgraph.blocks())
    return replace(sample, blocks=tuple(_filled(block, remaining) for block in sample.blocks))


def _filled(block: Block, remaining: _Remaining) -> Block:
    adjacencies = dict(block.adjacencies)
    for edge_type in remaining:
        _fill(adjacencies, edge_type, remaining, edge_type)
    return replace(block, adjacencies=adjacencies)


def _fill(
    adjacencies: dict[EdgeType, Adjacency], part: EdgeType, remaining: _Remaining, edge_type: EdgeType
) -> None:
    """Give one adjacency the next rows of each column of `edge_type` and remove them from `remaining`."""
    if part not in adjacencies:
        return
    columns = remaining[edge_type]
    count = adjacencies[part].indices.numel()
    taken = {name: column[:count] for name, column in columns.items()}
    adjacencies[part] = replace(adjacencies[part], columns=taken)
    remaining[edge_type] = {name: column[count:] for name, column in columns.items()}
