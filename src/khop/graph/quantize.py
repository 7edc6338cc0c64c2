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
    for NaN or infinity. Needs additional memory: a quarter of the column as float32.
    """
    given = Given.of(column, "the column to quantize")
    if "float" not in given.dtype:
        raise ValueError(f"{given.name} is {given.dtype}: integers are stored as they are")
    given.check_finite()
    largest = np.zeros(given.values.shape[1:], np.float32)
    for _, rows in row_chunks(given.values):
        np.maximum(largest, np.abs(_float32(rows, given.dtype)).max(axis=0), out=largest)
    scales = np.where(largest > 0, largest / LARGEST, 1).astype(np.float32)
    values = np.empty(given.values.shape, np.int8)
    for start, rows in row_chunks(given.values):
        nearest = np.rint(_float32(rows, given.dtype) / scales)
        values[start : start + len(rows)] = np.clip(nearest, -LARGEST, LARGEST)
    return Quantized(torch.from_numpy(values), torch.from_numpy(scales))


def _float32(rows: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Return a chunk as float32. bfloat16 comes as uint16 bits, the upper half of a float32."""
    if dtype == "bfloat16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32)
