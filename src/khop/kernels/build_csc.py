"""Conversion of an unsorted edge list to CSC by destination."""

from __future__ import annotations

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.checks import INDEX_DTYPES, check_ids, outside_error
from khop.kernels.csc import Csc
from khop.kernels.memory import pooled


def build_csc(
    sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int, *, threads: int = 1
) -> tuple[Csc, Tensor]:
    """Group edges by destination, in input order within a row; return the CSC and each edge's input position.

    The second value is an int64 permutation, CSC position -> input position. `indices` are int32 if
    `num_sources` is at most 2^31. The inputs, int32 or int64, are only read. Besides the result it takes 1
    byte per edge (2 up to a million edges) and, per thread, the memory of the fullest of up to 2048 blocks of
    destinations, without the edges of its largest row if that has most of them.
    """
    _check(sources, destinations, num_sources, num_destinations)
    if sources.device.type != "cpu":
        return build_csc_reference(sources, destinations, num_sources, num_destinations)
    order = pooled((sources.numel(),), torch.int64)
    return _native(sources, destinations, num_sources, num_destinations, order, threads), order


def group_by_destination(
    sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int, *, threads: int = 1
) -> Csc:
    """Group edges by destination as `build_csc` does, without input positions: 8 bytes per edge less."""
    _check(sources, destinations, num_sources, num_destinations)
    if sources.device.type != "cpu":
        return build_csc_reference(sources, destinations, num_sources, num_destinations)[0]
    return _native(sources, destinations, num_sources, num_destinations, None, threads)


def _native(
    sources: Tensor,
    destinations: Tensor,
    num_sources: int,
    num_destinations: int,
    order: Tensor | None,
    threads: int,
) -> Csc:
    dtype = index_dtype(num_sources)
    if sources.dtype == torch.int32 and dtype == torch.int64:
        sources, destinations = sources.long(), destinations.long()
    indptr = pooled((num_destinations + 1,), torch.int64)
    indices = pooled((sources.numel(),), dtype)
    outside = _core.build_csc(
        sources.contiguous(), destinations.contiguous(), num_sources, indptr, indices, order, threads
    )
    for ids, position, limit, what in (
        (sources, outside[0], num_sources, "source"),
        (destinations, outside[1], num_destinations, "destination"),
    ):
        if position >= 0:
            raise outside_error(what, ids, position, limit)
    return Csc(indptr, indices)


def build_csc_reference(
    sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int
) -> tuple[Csc, Tensor]:
    """The same as `build_csc` in plain torch, on any device."""
    check_ids(destinations, num_destinations, "destination")
    check_ids(sources, num_sources, "source")
    order = torch.argsort(destinations, stable=True)
    counts = torch.bincount(destinations, minlength=num_destinations)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Csc(indptr, sources[order].to(index_dtype(num_sources))), order


def index_dtype(count: int) -> torch.dtype:
    """Return int32 if it can hold every id below `count`, else int64."""
    return torch.int32 if count <= 2**31 else torch.int64


def _check(sources: Tensor, destinations: Tensor, num_sources: int, num_destinations: int) -> None:
    for what, count in (("num_sources", num_sources), ("num_destinations", num_destinations)):
        if count < 0:
            raise ValueError(f"{what} {count}: must not be negative")
    for what, ids in (("sources", sources), ("destinations", destinations)):
        if ids.dim() != 1 or ids.dtype not in INDEX_DTYPES:
            raise ValueError(f"{what} are {ids.dtype} {tuple(ids.shape)}: must be int32 or int64 (edges)")
    if sources.numel() != destinations.numel():
        raise ValueError(
            f"{sources.numel()} sources, {destinations.numel()} destinations: one of each an edge"
        )
    if sources.dtype != destinations.dtype or sources.device != destinations.device:
        raise ValueError(
            f"sources are {sources.dtype} on {sources.device}, destinations {destinations.dtype} "
            f"on {destinations.device}: must be alike"
        )
