"""Objects of a run that are built in the same way for every task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.split_links import AnyLinks
from khop.arguments import as_mapping
from khop.config.tables import GroupsTable
from khop.config.values import RunConfig
from khop.loading.columns import NamesByType
from khop.loading.device_placement import CacheSize
from khop.loading.ordered_map import InFlight
from khop.sampling.exclusion import Exclude
from khop.sampling.listed import ListedNodes
from khop.sampling.node_tuples import NodeTuples
from khop.sampling.sampler import Sampler
from khop.sampling.spot_target import SpotTarget
from khop.schema import EdgeType, NodeType, Schema

SplitNodes = dict[NodeType, torch.Tensor | ListedNodes]


def seeds_loader(
    config: RunConfig,
    sampler: Sampler,
    seeds: SplitNodes | AnyLinks | NodeTuples,
    columns: Sequence[str] | NamesByType,
    seed_columns: NamesByType,
    seed_times: str | None = None,
) -> Loader:
    """Make a loader of training batches: shuffled, on the run's device, with its threads."""
    table = config.sampler
    return Loader(
        sampler,
        seeds,
        table.groups_per_step if isinstance(table, GroupsTable) else config.training.batch_size,
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
    """Return the links of a training step that carry no message in it."""
    has_reverse = any(schema.reverse(edge_type) is not None for edge_type in edge_types)
    exclude = Exclude.EDGE_AND_REVERSE if has_reverse else Exclude.EDGE
    return SpotTarget(config.links.spot_target, exclude) if config.links.spot_target else exclude


def in_flight_of(config: RunConfig) -> InFlight:
    """Return the prefetch limits of evaluation and inference."""
    return InFlight(config.threads, config.prefetch, config.prefetch_bytes)


def device_cache_bytes(config: RunConfig, graph: Graph) -> int:
    """Return the bytes of the cache for remote rows on the device: of each rank of a partitioned graph.

    Of another graph on a GPU, `Graph.on` plans the cache.
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
    """Return the columns of a batch: the model's `input_columns` if it names some, else the input column.

    If all node types use embeddings, there are none. By type if the model reads columns of edges.
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
