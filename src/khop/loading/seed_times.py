"""Time of each seed, given as numbers or as the name of a column."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from khop.arguments import as_mapping
from khop.features.store import FeatureStore, Rows
from khop.schema import NodeType, Schema, sole_type

SeedTimes = Tensor | Mapping[NodeType, Tensor] | str


def seed_times(
    given: SeedTimes, seeds: Mapping[NodeType, Tensor], schema: Schema, features: FeatureStore | None
) -> dict[NodeType, Tensor]:
    """Return int64 per seed type: one time per seed.

    A name selects a column of the seeds' node types; each of them must have it.
    """
    if isinstance(given, str):
        return {t: _whole(t, _column(given, t, ids, schema, features), ids) for t, ids in seeds.items()}
    by_type = as_mapping(given, lambda times: {sole_type(seeds, "seed_times given as one tensor"): times})
    for node_type in seeds:
        if node_type not in by_type:
            raise ValueError(
                f"seed_times: none for {node_type!r}, there are those of {list(by_type)}; give each seed one"
            )
    return {t: _whole(t, by_type[t], ids) for t, ids in seeds.items()}


def _column(
    name: str, node_type: NodeType, ids: Tensor, schema: Schema, features: FeatureStore | None
) -> Tensor:
    there = schema.columns.get(node_type, {})
    if name not in there:
        raise ValueError(
            f"seed_times: column {name!r} of {node_type!r}: not in the graph; there are {sorted(there)}; "
            "each seed needs a time; write the graph with this column for its node type"
        )
    if features is None:
        raise ValueError(f"seed_times {name!r}: the graph has no columns; give the times themselves")
    return features.gather({node_type: Rows(ids, (name,))})[node_type][name]


def _whole(node_type: NodeType, times: Tensor, ids: Tensor) -> Tensor:
    if not isinstance(times, Tensor):
        raise ValueError(
            f"seed_times of {node_type!r} are a {type(times).__name__}: give a tensor, as by torch.as_tensor"
        )
    if times.is_meta or times.layout != torch.strided:
        raise ValueError(
            f"seed_times of {node_type!r} are a {times.layout} tensor on {times.device}: give a dense one "
            "with values"
        )
    if times.is_floating_point() or times.dtype == torch.bool or times.shape != ids.shape:
        raise ValueError(
            f"seed_times of {node_type!r} are {times.dtype} of shape {tuple(times.shape)}: give a whole "
            f"number for each of {ids.numel()} seeds"
        )
    return times.long()
