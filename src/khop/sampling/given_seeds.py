"""Seed nodes as users pass them: ids or a mask (a tensor, an array, a list or a Series), or all nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

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


class SupportsArray(Protocol):
    """A value that NumPy reads, such as a Series or an Index of pandas."""

    def __array__(self) -> npt.NDArray[Any]:
        """Return the values."""
        ...


SeedIds = Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[bool] | SupportsArray | Literal["all"]


def seed_ids(graph: GraphStore, given: SeedIds | Mapping[NodeType, SeedIds]) -> dict[NodeType, Tensor]:
    """Return int64 ids by node type, in schema order; ValueError names values that cannot be seeds.

    "all" means every node; passed alone, every node of every type of the graph.
    """
    types = graph.schema.node_types
    by_type = as_mapping(given, lambda ids: _spread(types, ids))
    for node_type in by_type:
        if node_type not in types:
            raise ValueError(f"seeds of {node_type!r}: not a node type; there are {types}")
    return {t: node_ids(f"seeds of {t!r}", by_type[t], graph.num_nodes(t)) for t in types if t in by_type}


def node_ids(name: str, given: SeedIds, count: int) -> Tensor:
    """Return int64 ids of nodes given by ids, by a mask or by "all"; `count` is the number of nodes."""
    values = seed_values(name, given, count)
    return values.nonzero().view(-1) if values.dtype == torch.bool else values


def seed_values(name: str, given: SeedIds, count: int | None) -> Tensor:
    """Return nodes as a mask, bool (count), or as ids, int64 (n). All entrances for seed nodes use it.

    Args:
        name: Name of the argument, for errors.
        given: Ids or a mask, as a tensor, an array, a list or a tuple, or "all".
        count: Number of nodes of the type; None if it is not known, then the range is not checked.
    Raises:
        ValueError: The values are neither ids of nodes nor a mask.
    """
    _check_kind(name, given)
    if isinstance(given, str):
        return torch.arange(count or 0)
    values = _tensor(name, given)
    if values.dtype == torch.bool:
        if values.dim() != 1 or count not in (None, values.numel()):
            there = "" if count is None else f", but there are {count:,} nodes"
            raise ValueError(
                f"{name}: a mask of shape {tuple(values.shape)}{there}; "
                "give one true or false for each node, or ids"
            )
        return values
    dtype = str(values.dtype).removeprefix("torch.")
    if values.is_floating_point() or values.is_complex() or values.dim() != 1:
        raise ValueError(
            f"{name}: {dtype} of shape {tuple(values.shape)}; "
            "give a vector of whole numbers, ids of nodes, or a boolean mask"
        )
    is_byte = values.dtype in (torch.uint8, torch.int8)
    if is_byte and count and values.numel() == count and bool(((values == 0) | (values == 1)).all()):
        raise ValueError(
            f"{name}: {dtype} of shape {tuple(values.shape)} with only 0 and 1 is neither ids nor a mask; "
            "give a mask by .bool() or .astype(bool), or ids as int64"
        )
    ids = values.long()
    if count is not None:
        check_ids(name, ids, count)
    return ids


def _spread(types: Sequence[NodeType], given: object) -> dict[NodeType, Any]:
    """Return seeds by type: of all types for "all", else of the only one."""
    if isinstance(given, str) and given == ALL_NODES:
        return dict.fromkeys(types, ALL_NODES)
    _check_kind("seeds", given)
    return {sole_type(types, "seeds that are not given by node type"): given}


def _check_kind(name: str, given: object) -> None:
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    is_all = isinstance(given, str) and given == ALL_NODES
    if not (is_list or is_all or isinstance(given, Tensor) or hasattr(given, "__array__")):
        shown = repr(given) if isinstance(given, str | int | float) else f"of type {type(given).__name__}"
        raise ValueError(
            f"{name} {shown}: give node ids or a boolean mask, as a tensor, an array or a list, "
            'or "all"; of several node types a mapping of them; or khop.Links'
        )


def _tensor(name: str, given: Tensor | npt.NDArray[Any] | Sequence[object] | SupportsArray) -> Tensor:
    if isinstance(given, Tensor | np.ndarray):
        refuse_unreadable(given, name)
    if isinstance(given, Tensor):
        return given.detach().cpu()
    try:
        values = np.asarray(given)
        if values.dtype == object:  # nullable columns of pandas
            values = np.asarray(values.tolist())
        if values.size == 0 and not isinstance(given, np.ndarray):
            values = values.astype(np.int64)
        if values.dtype == np.uint64:  # torch cannot read it; ids above the largest int64 are no nodes
            values = np.minimum(values, np.uint64(2**63 - 1)).astype(np.int64)
        found = torch.from_numpy(np.array(values))  # a copy, because the given array may be read-only
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{name}: not ids of nodes ({error}); give whole numbers or a boolean mask"
        ) from error
    is_list = isinstance(given, Sequence) and not isinstance(given, range)
    if is_list and found.dtype != torch.bool and any(isinstance(one, bool | np.bool_) for one in given):
        raise ValueError(f"{name}: truth values and numbers in one list; give ids or a boolean mask")
    return found
