"""Objects of a run that are built in the same way for every task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.config.values import RunConfig, Sampler
from khop.distributed.partitioned_links import PartitionedLinks
from khop.loading.columns import NamesByType
from khop.loading.device_placement import CacheSize
from khop.loading.ordered_map import InFlight
from khop.models.rgcn import RGCN
from khop.models.sage import SAGE
from khop.models.sizes import ModelSizes
from khop.models.stack import Stack
from khop.rules.rule import Rule
from khop.rules.temporal import Temporal, TemporalStrategy
from khop.rules.uniform import Uniform
from khop.rules.weighted import Weighted
from khop.sampling.link_seeds import Links
from khop.sampling.neighbor import Expansion
from khop.sampling.sampler import Sampler as SamplesSeeds
from khop.schema import EdgeType, NodeType

Name = TypeVar("Name", bound=str)


def seeds_loader(
    config: RunConfig,
    sampler: SamplesSeeds,
    seeds: dict[NodeType, torch.Tensor] | Links | PartitionedLinks,
    columns: Sequence[str],
    seed_columns: NamesByType,
    seed_times: str | None = None,
) -> Loader:
    """Make a loader of training batches: shuffled, on the run's device, with its threads."""
    return Loader(
        sampler,
        seeds,
        config.training.batch_size,
        shuffle=True,
        drop_last=config.training.drop_last,
        seed=config.training.seed,
        columns=columns,
        seed_columns=seed_columns,
        seed_times=seed_times,
        device=config.device,
        threads=config.threads,
        prefetch=config.prefetch,
        prefetch_bytes=config.prefetch_bytes,
        locality=config.parts.locality,
    )


def in_flight_of(config: RunConfig) -> InFlight:
    """Return the prefetch limits of evaluation."""
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


def rule_of(sampler: Sampler) -> Rule:
    """Return the rule by which a run draws neighbors."""
    plain = Uniform(sampler.replacement)
    inner = plain if sampler.weight is None else Weighted(sampler.weight, sampler.replacement)
    if sampler.time is None:
        return inner
    window = None if sampler.window is None else (sampler.window[0], sampler.window[1])
    return Temporal(sampler.time, TemporalStrategy(sampler.temporal_strategy), window, inner)


def expansion_of(config: RunConfig) -> Expansion:
    """Return the expansion: the nodes that each hop expands."""
    return Expansion(config.sampler.expansion)


def input_columns(config: RunConfig, graph: Graph) -> list[str]:
    """Return the input column, or no column if all node types use embeddings."""
    types = graph.schema.node_types
    there = any(config.model.column in graph.schema.columns.get(t, {}) for t in types)
    return [config.model.column] if there else []


def stack_of(config: RunConfig, sizes: ModelSizes) -> Stack:
    """Make the network, with new weights from torch's generator."""
    model, layers = config.model, config.model.layers
    assert layers is not None
    options = (model.hidden, layers, model.dropout, model.norm, model.residual)
    if model.kind == "rgcn":
        return RGCN(sizes, *options, bases=model.bases)
    return SAGE(sizes, *options, encoder=model.encoder)


def dtype_of(config: RunConfig) -> torch.dtype:
    """Return the dtype of the weights."""
    return torch.float64 if config.precision == "float64" else torch.float32


def known_metric(name: str | None, known: Iterable[Name]) -> Name:
    """Return the metric of this name. Raises ValueError if it is not in `known`."""
    names = list(known)
    for each in names:
        if each == name:
            return each
    raise ValueError(f"metric {name!r}: must be one of {', '.join(names)}")


def words_of(edge_type: EdgeType) -> str:
    """Return the name of an edge type in a run, such as "user buys item"."""
    return " ".join(edge_type)
