"""User arrays, torch or NumPy, as NumPy arrays; their checks name the faulty value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.graph.npy import STORED, row_chunks
from khop.schema import check_width

Array = Tensor | npt.NDArray[Any]
_BFLOAT16_EXPONENT = 0x7F80


@dataclass(frozen=True, eq=False)
class Given:
    """One user array with its name for errors. It is never copied from host memory."""

    values: npt.NDArray[Any]  # bfloat16 as its uint16 bits
    dtype: str  # logical, a key of STORED
    name: str

    @classmethod
    def of(cls, array: Array, name: str) -> Given:
        """Wrap an array.

        ValueError for an object that is no tensor or array, for a scalar, for rows of width 0, and for a
        dtype that cannot be stored.
        """
        if not isinstance(array, Tensor | np.ndarray):
            raise ValueError(f"{name} is a {type(array).__name__}: give a torch tensor or a NumPy array")
        refuse_unreadable(array, name)
        dtype = str(array.dtype).removeprefix("torch.") if isinstance(array, Tensor) else array.dtype.name
        if dtype not in STORED:
            raise ValueError(f"{name} is {dtype}: convert it to one of {', '.join(STORED)}")
        if array.ndim == 0:
            raise ValueError(f"{name} is a single number: give one row per node or edge")
        check_width(name, tuple(array.shape[1:]))
        return cls(_as_numpy(array) if isinstance(array, Tensor) else array, dtype, name)

    def __len__(self) -> int:
        return len(self.values)

    def refuse(self, bad: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]], reason: str) -> None:
        """Raise ValueError with position and value of the first entry that is `bad`, followed by `reason`."""
        for start, chunk in row_chunks(self.values):
            mask = bad(chunk)
            if mask.any():
                at = np.unravel_index(int(np.argmax(mask)), mask.shape)
                position = ", ".join(map(str, (start + int(at[0]), *map(int, at[1:]))))
                raise ValueError(f"{self.name}[{position}] is {_shown(chunk[at], self.dtype)}: {reason}")

    def check_rows(self, count: int, owner: str) -> None:
        """Raise ValueError unless there are `count` rows; `owner` describes the expected number."""
        if len(self) != count:
            raise ValueError(f"{self.name} has {len(self):,} rows, but {owner}; give one row for each")

    def check_ids(self, count: int, what: str, way_out: str) -> None:
        """Raise ValueError unless the array is a vector of ids in [0, count); `what` names the ids."""
        if self.values.ndim != 1 or not np.issubdtype(self.values.dtype, np.integer):
            raise ValueError(
                f"{self.name} is {self.dtype} of shape {self.values.shape}: ids are a vector of integers"
            )
        there_are = f"there are {count:,} {what}, ids 0 to {count - 1}" if count else f"there are no {what}"
        self.refuse(lambda ids: (ids < 0) | (ids >= count), f"{there_are}; {way_out}")

    def check_finite(self, allowed: Literal["finite", "NaN"] = "finite") -> None:
        """Raise ValueError for infinity, and for NaN unless it is allowed."""
        reason = "not a finite number; replace it, for example by torch.nan_to_num"
        if allowed == "NaN":
            if "float" in self.dtype and self.dtype != "bfloat16":
                self.refuse(lambda numbers: np.asarray(np.isinf(numbers)), reason)
        elif self.dtype == "bfloat16":
            self.refuse(lambda bits: np.asarray((bits & _BFLOAT16_EXPONENT) == _BFLOAT16_EXPONENT), reason)
        elif "float" in self.dtype:
            self.refuse(lambda numbers: np.asarray(~np.isfinite(numbers)), reason)

    def as_classes(self) -> Given:
        """Return floating whole numbers as int64, with NaN as -1, and other columns as they are.

        ValueError for a number that is not whole.
        """
        if self.dtype not in ("float16", "float32", "float64"):
            return self
        self.refuse(
            lambda labels: np.asarray(~np.isnan(labels) & (labels != np.floor(labels)) | np.isinf(labels)),
            "no class; labels are whole numbers, or NaN for unknown",
        )
        return Given(np.where(np.isnan(self.values), -1, self.values).astype(np.int64), "int64", self.name)

    def check_labels(self, num_classes: int) -> None:
        """Raise ValueError unless it is a vector of classes in [0, num_classes), with -1 for unknown."""
        if self.values.ndim != 1 or not np.issubdtype(self.values.dtype, np.integer) or num_classes < 1:
            raise ValueError(
                f"{self.name} is {self.dtype} of shape {self.values.shape} with num_classes={num_classes}: "
                f"labels are a vector of integers, of at least one class"
            )
        self.refuse(
            lambda labels: (labels < -1) | (labels >= num_classes),
            f"there are {num_classes} classes, labels 0 to {num_classes - 1}, and -1 for unknown; "
            f"raise num_classes or correct the label",
        )

    def check_original_ids(self) -> None:
        """Raise ValueError unless the array is a vector of distinct, non-negative int64 ids."""
        if self.values.ndim != 1 or self.dtype != "int64":
            raise ValueError(
                f"{self.name} is {self.dtype} of shape {self.values.shape}: ids are an int64 vector"
            )
        self.refuse(lambda ids: ids < 0, "an id is 0 or more; rename the column if it holds anything else")
        ids = np.sort(self.values)
        twice = ids[1:][ids[1:] == ids[:-1]]
        if len(twice):
            first, second = np.flatnonzero(self.values == twice[0])[:2]
            raise ValueError(
                f"{self.name}[{second}] is {twice[0]}, and so is [{first}]: original ids must be "
                "unique, because draws are keyed by them; correct it, or rename the column"
            )

    def tensor(self) -> Tensor:
        """Return the same memory as a read-only tensor, contiguous and in native byte order.

        Only read from it. An array with gaps or in another byte order is copied.
        """
        return torch.from_numpy(np.asarray(_Writable(np.ascontiguousarray(self.values, STORED[self.dtype]))))


def refuse_unreadable(array: Array, name: str) -> None:
    """Raise ValueError for sparse, meta and masked arrays: they would be read only in part or not at all."""
    if isinstance(array, np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a masked array, whose mask would be ignored: give array.compressed(), or "
            "array.filled(value)"
        )
    if isinstance(array, Tensor) and array.layout != torch.strided:
        layout = str(array.layout).removeprefix("torch.")
        raise ValueError(f"{name} is a tensor of layout {layout}: give a dense one, as by tensor.to_dense()")
    if isinstance(array, Tensor) and array.is_meta:
        raise ValueError(
            f"{name} is a tensor on the meta device, which holds no values: give one with values"
        )


class _Writable:
    """An array's memory without its read-only flag: torch warns about the flag even if nothing writes."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _as_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def _shown(value: np.generic, dtype: str) -> str:
    if dtype == "bfloat16":
        return str(torch.tensor(int(value), dtype=torch.uint16).view(torch.bfloat16).item())
    return str(value.item())
