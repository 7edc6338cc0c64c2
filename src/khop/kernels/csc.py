"""A graph's edges of one type as two arrays: the operand of the sampling kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import khop._core as _core


@dataclass(frozen=True)
class Csc:
    """Edges grouped by destination: row r is `indices[indptr[r]:indptr[r + 1]]`, in the graph's own order.

    The arrays are borrowed, never copied; a mapped file stays a mapped file.
    """

    indptr: Tensor  # int64 (rows + 1)
    indices: Tensor  # int32 or int64 (edges), ids of source nodes

    def __post_init__(self) -> None:
        if self.indptr.dtype != torch.int64 or self.indptr.dim() != 1 or self.indptr.numel() == 0:
            raise ValueError(f"indptr is {_described(self.indptr)}: must be int64 (rows + 1)")
        if self.indices.dtype not in (torch.int32, torch.int64) or self.indices.dim() != 1:
            raise ValueError(f"indices is {_described(self.indices)}: must be int32 or int64 (edges)")
        if self.indptr.device != self.indices.device:
            places = f"indptr is on {self.indptr.device}, indices on {self.indices.device}"
            raise ValueError(f"{places}: move one of them")
        if not (self.indptr.is_contiguous() and self.indices.is_contiguous()):
            raise ValueError("indptr or indices is strided: make it contiguous")

    @property
    def num_rows(self) -> int:
        """Destination nodes, with and without edges."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Edges of all rows."""
        return self.indices.numel()

    def keeping(self, positions: Tensor) -> Csc:
        """Those edges alone that stand at int64 positions, which ascend; rows keep their order."""
        return Csc(torch.searchsorted(positions, self.indptr), self.indices[positions])

    @cached_property
    def core(self) -> _core.Edges:
        """The arrays as the core takes them, handed over once: they are asked about at every hop."""
        return _core.Edges(self.indptr, self.indices)

    def __reduce__(self) -> tuple[Callable[..., Csc], tuple[Tensor, Tensor]]:
        return Csc, (self.indptr, self.indices)


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
