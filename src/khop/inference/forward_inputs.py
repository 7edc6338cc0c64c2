"""Inputs of an evaluation with `model(batch)`: a sampler, and the columns that the model reads."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from khop.graph.folder import ORIGINAL_ID
from khop.graph.store import GraphStore
from khop.loading.columns import ColumnChoice, NamesByType
from khop.sampling.fanouts import Fanout
from khop.sampling.neighbor import NeighborSampler
from khop.sampling.sampler import Sampler
from khop.schema import Schema


def columns_read(
    model: nn.Module,
    schema: Schema,
    columns: Sequence[str] | NamesByType | None,
    of_loader: ColumnChoice | None,
) -> ColumnChoice:
    """Choose the columns of a batch: `columns`, else the model's `input_columns`, else the loader's.

    If none of them is given, all node columns except labels are used.
    """
    if columns is None:
        columns = getattr(model, "input_columns", None)
    if columns is not None:
        return ColumnChoice.of(schema, columns, (), ())
    if of_loader is not None:
        return replace(of_loader, of_seeds={})
    return ColumnChoice.of(
        schema,
        {
            node_type: [
                name
                for name, spec in schema.columns.get(node_type, {}).items()
                if spec.num_classes is None and name != ORIGINAL_ID
            ]
            for node_type in schema.node_types
        },
        (),
        (),
    )


def evaluation_sampler(
    graph: GraphStore, fanouts: Sequence[Fanout], columns: ColumnChoice, like: Sampler | None
) -> Sampler:
    """Make a sampler with these fanouts, and with the other settings of the loader's sampler."""
    edge_ids = bool(columns.of_edges)
    made = None if like is None else like.for_evaluation(graph, fanouts, edge_ids=edge_ids)
    return NeighborSampler(graph, fanouts, edge_ids=edge_ids) if made is None else made


def all_neighbors(model: nn.Module, like: Sampler | None, *, warn: bool) -> Sequence[Fanout]:
    """Return fanouts for exact evaluation with `model(batch)`: all neighbors, one hop per model layer.

    An edge type is left out at a hop if the loader's sampler does not follow it there. ValueError if the
    number of hops is unknown. With `warn`, a warning states the cost of this method.
    """
    name = type(model).__name__
    hops = (like.num_layers if like else None) or getattr(model, "num_layers", None)
    if not isinstance(hops, int):
        raise ValueError(
            f"{name} does not expose its layers, so the number of hops is unknown: give the loader "
            "that it is trained with, loader=..., or layers with forward(x, adjacency) in a "
            "khop.models.Sequential; or sample, with fanouts=[...]"
        )
    if warn:
        warnings.warn(
            f"{name} does not expose its layers: exact evaluation runs forward(batch) on batches of all "
            f"neighbors, {hops} hops deep, and computes a node anew for every batch that needs it; to "
            "compute each layer once per node, give layers with forward(x, adjacency) in a "
            "khop.models.Sequential",
            stacklevel=4,
        )
    exact = None if like is None else like.exact_fanouts
    return [-1] * hops if exact is None else exact
