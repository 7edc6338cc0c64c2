"""Float columns as int8 with scales: a gather reads a quarter of the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import instance_of
from khop.graph.inputs import Array, Given
from khop.graph.npy import row_chunks

LARGEST = 127  # of int8, on both sides of 0


@dataclass(frozen=True, eq=False)
class Quantized:
    """A column that represents `values * scales`. `write_graph` takes it in place of an array."""

    values: Tensor  # int8 (rows, ...)
    scales: Tensor  # float32, of a row's shape

    def __post_init__(self) -> None:
        instance_of("values", self.values, Tensor, "must be a tensor of int8, as khop.quantize gives it")
        instance_of("scales", self.scales, Tensor, "must be a tensor of float32, as khop.quantize gives it")
        given = (self.values.dtype, self.scales.dtype, tuple(self.scales.shape))
        wanted = (torch.int8, torch.float32, tuple(self.values.shape[1:]))
        if given != wanted:
            raise ValueError(f"(values, scales, shape of scales) are {given}: must be {wanted}")


def quantize(column: Array) -> Quantized:
    """Round each number to int8, with one scale per column.

    The error is at most 1/254 of the column's largest number. The column is float, (rows, ...). ValueError
    for NaN, infinity, and numbers outside of float32's range. Needs additional memory: a quarter of the
    column as float32.
    """
    given = Given.of(column, "the column to quantize")
    if "float" not in given.dtype:
        raise ValueError(f"{given.name} is {given.dtype}: integers are stored as they are")
    given.check_finite()
    largest = np.zeros(given.values.shape[1:], np.float32)
    for start, rows in row_chunks(given.values):
        if given.dtype == "float64":
            _check_range(given.name, start, rows)
        np.maximum(largest, np.abs(_float32(rows, given.dtype)).max(axis=0), out=largest)
    scales = _scales(largest)
    values = np.empty(given.values.shape, np.int8)
    for start, rows in row_chunks(given.values):
        nearest = np.rint(_float32(rows, given.dtype) / scales)
        values[start : start + len(rows)] = np.clip(nearest, -LARGEST, LARGEST)
    return Quantized(torch.from_numpy(values), torch.from_numpy(scales))


def _scales(largest: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return scales above 0 by which no number that is read exceeds float32."""
    scales = np.asarray(largest / np.float32(LARGEST))
    with np.errstate(over="ignore"):
        is_above = ~np.isfinite(scales * np.float32(LARGEST))
    lower = np.where(is_above, np.nextafter(scales, np.float32(0)), scales)
    return np.where(scales > 0, lower, np.float32(1))


def _check_range(name: str, start: int, rows: npt.NDArray[Any]) -> None:
    """Raise ValueError, naming the first one, if a number of float64 is too large for float32."""
    wrong = np.argwhere(np.abs(rows) > np.finfo(np.float32).max)
    if len(wrong):
        first = tuple(wrong[0].tolist())
        raise ValueError(
            f"{name}: {rows[first]} in row {start + first[0]} is outside of float32's range, up to 3.4e38, "
            "in which quantized columns are read; scale the column, or write it as float64"
        )


def _float32(rows: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Return a chunk as float32. bfloat16 comes as uint16 bits, the upper half of a float32."""
    if dtype == "bfloat16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32)
