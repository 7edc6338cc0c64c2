"""Parts that all tasks of a run build in the same way, such as loaders and graphs on servers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.serve import connect
from khop.api.split_links import time_cut_offs
from khop.arguments import as_mapping
from khop.errors import Unsupported
from khop.graph.folder import Folder, TimeCutOffs, recorded_cut_offs
from khop.graph.npy import ArrayEntry
from khop.loading.columns import NamesByType
from khop.loading.device.device_placement import CacheSize
from khop.loading.ordered_map import InFlight
from khop.run.read import RawRun
from khop.run.values import RunConfig
from khop.sampling.links.exclusion import Exclude, SpotTarget
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.sampler import Sampler
from khop.sampling.seed_table import SeedTable
from khop.sampling.seeds import ListedNodes, NodeTuples, ids_here
from khop.schema import EdgeType, NodeType, Schema

SplitNodes = dict[NodeType, torch.Tensor | ListedNodes]


def seeds_loader(
    config: RunConfig,
    sampler: Sampler,
    seeds: SplitNodes | LinkList | NodeTuples | SeedTable,
    columns: Sequence[str] | NamesByType,
    seed_columns: NamesByType,
    seed_times: str | None = None,
) -> Loader:
    """Make a loader of training batches: shuffled, on the run's device, with its threads."""
    table = config.sampler
    return Loader(
        sampler,
        seeds,
        getattr(table, "groups_per_step", config.training.batch_size),
        shuffle=True,
        drop_last=config.training.drop_last,
        micro_batches=config.training.micro_batches,
        seed=config.training.seed,
        columns=columns,
        seed_columns=seed_columns,
        seed_times=seed_times,
        device=config.device,
        threads=config.threads,
        prefetch=config.prefetch,
        prefetch_bytes=config.prefetch_bytes,
        gather=config.gather,
        seed_assignment="owner" if config.parts.locality else "position",
    )


def exclusion_of(config: RunConfig, schema: Schema, edge_types: Sequence[EdgeType]) -> Exclude | SpotTarget:
    """Return the exclusion of a step's target links from its message graph."""
    has_reverse = any(schema.reverse(edge_type) is not None for edge_type in edge_types)
    exclude = Exclude.EDGE_AND_REVERSE if has_reverse else Exclude.EDGE
    return SpotTarget(config.links.spot_target, exclude) if config.links.spot_target else exclude


def in_flight_of(config: RunConfig) -> InFlight:
    """Return the prefetch limits of evaluation and inference."""
    return InFlight(config.threads, config.prefetch, config.prefetch_bytes)


def device_cache_bytes(config: RunConfig, graph: Graph) -> int:
    """Return the size of the device cache for remote rows, on each rank of a partitioned graph.

    For other graphs on a GPU, `Graph.on` plans the cache.
    """
    if graph.lanes is None and config.device != "cpu":
        return 0
    columns = [
        graph.num_nodes(t) * math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize
        for t in graph.schema.node_types
        for spec in [graph.schema.columns.get(t, {}).get(config.model.column)]
        if spec is not None
    ]
    return CacheSize.of(config.gpu.cache).bytes_of(sum(columns))


def columns_of(config: RunConfig, graph: Graph, model: nn.Module) -> list[str] | NamesByType:
    """Return the columns of a batch: the model's `input_columns` if it has them, else the input column.

    Empty if all node types use embeddings. A dict by type if the model reads edge columns.
    """
    declared: Mapping[NodeType, Sequence[str]] | Sequence[str] = getattr(model, "input_columns", ())
    by_type = as_mapping(declared, lambda names: {"": names})
    if any(isinstance(type_, tuple) for type_ in by_type):
        return by_type
    of_types = by_type.values()
    names = list(dict.fromkeys(name for of_type in of_types for name in of_type)) or [config.model.column]
    schema = graph.schema
    return [name for name in names if any(name in schema.columns.get(t, {}) for t in schema.node_types)]


def dtype_of(config: RunConfig) -> torch.dtype:
    """Return the dtype of the weights."""
    return torch.float64 if config.precision == "float64" else torch.float32


def words_of(edge_type: EdgeType) -> str:
    """Return the name of an edge type in a run, such as "user buys item"."""
    return " ".join(edge_type)


@dataclass(frozen=True, eq=False)
class GraphOnServers:
    """A graph on servers instead of a run's graph folder. Ids are fetched when they are read."""

    graph: Graph
    path: Path  # the name of the graph, as in the run
    fingerprint: str
    arrays: Mapping[str, ArrayEntry] = field(default_factory=dict)  # none are on this machine
    documents: Mapping[str, str] = field(default_factory=dict)  # none are on this machine

    @property
    def schema(self) -> Schema:
        """Types of the graph, with their columns."""
        return self.graph.schema

    @property
    def row_order(self) -> Mapping[EdgeType, str]:
        """Return no column: rows are on the servers."""
        return {}

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        return self.graph.num_nodes(node_type)

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type."""
        return self.graph.num_edges(edge_type)

    def edge_id(self, edge_type: EdgeType) -> Tensor | None:
        """Raise Unsupported: positions of edges in the input are on the servers."""
        raise Unsupported(f"positions of edges in the input are on the servers, also those of {edge_type}")

    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Raise Unsupported: columns are on the servers."""
        raise Unsupported("columns are on the servers; gather rows from graph.features")

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits."""
        return self.graph.split_names

    def split(self, name: str) -> Mapping[NodeType, Tensor]:
        """Return the ids of a split by type, each fetched when it is read."""
        return _FetchedIds(self.graph, name)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        """Fetch the ids of a type before renumbering; None if its nodes were not renumbered."""
        return self.graph.original_ids(node_type)


def cut_offs_of(graph: Folder) -> TimeCutOffs | None:
    """Return the recorded cut-offs of a graph, in its folder or on servers, or None."""
    return time_cut_offs(graph.graph) if isinstance(graph, GraphOnServers) else recorded_cut_offs(graph)


@dataclass(frozen=True, eq=False)
class _FetchedIds(Mapping[NodeType, Tensor]):
    graph: Graph
    name: str

    def __getitem__(self, node_type: NodeType) -> Tensor:
        return ids_here(self.graph.split(self.name)[node_type])

    def __contains__(self, node_type: object) -> bool:
        return node_type in self.graph.split(self.name)

    def __iter__(self) -> Iterator[NodeType]:
        return iter(self.graph.split(self.name))

    def __len__(self) -> int:
        return len(self.graph.split(self.name))


def graph_on_servers(config: RunConfig, raw: RawRun) -> GraphOnServers:
    """Connect to the servers of a run. Raises ValueError if they do not have its graph."""
    servers = config.servers
    graph = connect(
        servers.addresses,
        token_file=servers.token_file,
        ca=servers.ca,
        client_cert=servers.client_cert,
        client_key=servers.client_key,
        encryption="off" if servers.insecure else "remote",
        deadline=servers.deadline,
        attempt=servers.attempt,
    )
    there = graph.servers
    assert there is not None
    wanted = Path(config.graph).name
    if wanted != there.name:
        raise ValueError(
            f"graph is {config.graph!r}: the servers have {there.name!r}; give --graph {there.name}, or "
            f"servers of {wanted} ({raw.where('graph', 'servers.addresses')})"
        )
    if config.gpu.topology not in ("auto", "host") or config.gpu.features not in ("auto", "host"):
        raise ValueError(
            f"gpu.topology is {config.gpu.topology!r}, gpu.features is {config.gpu.features!r}: the graph is "
            f"on servers, which send batches; leave them out ({raw.where('gpu.topology', 'gpu.features')})"
        )
    return GraphOnServers(graph, Path(config.graph), there.fingerprint)
