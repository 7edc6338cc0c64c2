"""Seed nodes as users pass them: ids or a mask (a tensor, a NumPy array or a list), or all nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import as_mapping
from khop.graph.inputs import refuse_unreadable
from khop.graph.store import GraphStore
from khop.sampling.node_set import check_ids
from khop.schema import NodeType, sole_type

ALL_NODES: Literal["all"] = "all"
SeedIds = Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[bool] | Literal["all"]


def seed_ids(graph: GraphStore, given: SeedIds | Mapping[NodeType, SeedIds]) -> dict[NodeType, Tensor]:
    """Return int64 ids by node type, in schema order; ValueError names values that cannot be seeds.

    "all" means every node; passed alone, every node of every type of the graph.
    """
    types = graph.schema.node_types
    by_type = as_mapping(given, lambda ids: _spread(types, ids))
    for node_type in by_type:
        if node_type not in types:
            raise ValueError(f"seeds of {node_type!r}: not a node type; there are {types}")
    return {t: _ids(f"seeds of {t!r}", by_type[t], graph.num_nodes(t)) for t in types if t in by_type}


def _spread(types: Sequence[NodeType], given: object) -> dict[NodeType, Any]:
    """Return seeds by type: of all types for "all", else of the only one."""
    if isinstance(given, str) and given == ALL_NODES:
        return dict.fromkeys(types, ALL_NODES)
    _check_kind("seeds", given)
    return {sole_type(types, "seeds that are not given by node type"): given}


def _check_kind(name: str, given: object) -> None:
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if not (is_list or isinstance(given, Tensor | np.ndarray) or given == ALL_NODES):
        shown = repr(given) if isinstance(given, str | int | float) else f"of type {type(given).__name__}"
        raise ValueError(
            f"{name} {shown}: give node ids or a boolean mask, as a tensor, a NumPy array or a list, "
            'or "all"; of several node types a mapping of them; or khop.Links'
        )


def _ids(name: str, given: SeedIds, count: int) -> Tensor:
    _check_kind(name, given)
    if isinstance(given, str):
        return torch.arange(count)
    values = _tensor(name, given)
    if values.dtype == torch.bool:
        if values.shape != (count,):
            raise ValueError(
                f"{name}: a mask of shape {tuple(values.shape)}, but there are {count:,} nodes; "
                "give one true or false for each, or ids"
            )
        return values.nonzero().view(-1)
    if values.is_floating_point() or values.is_complex() or values.dim() != 1:
        raise ValueError(
            f"{name}: {str(values.dtype).removeprefix('torch.')} of shape {tuple(values.shape)}; "
            "give a vector of whole numbers, ids of nodes, or a boolean mask"
        )
    ids = values.long()
    check_ids(name, ids, count)
    return ids


def _tensor(name: str, given: Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[bool]) -> Tensor:
    if isinstance(given, Tensor | np.ndarray):
        refuse_unreadable(given, name)
    if isinstance(given, Tensor):
        return given.detach().cpu()
    try:
        values = np.asarray(given)
        if values.size == 0 and not isinstance(given, np.ndarray):
            values = values.astype(np.int64)
        if values.dtype == np.uint64:  # torch cannot read it; ids above the largest int64 are no nodes
            values = np.minimum(values, np.uint64(2**63 - 1)).astype(np.int64)
        return torch.from_numpy(np.array(values))  # a copy, because the given array may be read-only
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{name}: not ids of nodes ({error}); give whole numbers or a boolean mask"
        ) from error
