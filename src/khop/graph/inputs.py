"""Conversion of user input to tensors: arrays, lists, Series, sparse matrices and splits.

An error names the invalid value.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import checked_field, instance_of, shown, whole_number
from khop.graph.npy import STORED, row_chunks
from khop.kernels.lazy_rows import packed
from khop.schema import EdgeType, NodeType, check_width

Array = Tensor | npt.NDArray[Any]
_BFLOAT16_EXPONENT = 0x7F80
_SURELY_MASK = 16  # from this many nodes on, one 0 or 1 per node is a mask


@dataclass(frozen=True, eq=False)
class Given:
    """A user array with its name for errors. Arrays in host memory are not copied."""

    values: npt.NDArray[Any]  # bfloat16 as its uint16 bits
    dtype: str  # logical, a key of STORED
    name: str

    @classmethod
    def of(cls, array: Array, name: str) -> Given:
        """Wrap an array.

        ValueError for an object that is not a tensor or array, a scalar, rows of width 0, or a dtype that
        cannot be stored.
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
        """Return a floating-point column as int64, with NaN as -1, and other columns unchanged.

        ValueError for a number that is not an integer.
        """
        if self.dtype not in ("float16", "float32", "float64"):
            return self
        self.refuse(
            lambda labels: np.asarray(~np.isnan(labels) & (labels != np.floor(labels)) | np.isinf(labels)),
            "no class; labels are whole numbers, or NaN for unknown",
        )
        return Given(np.where(np.isnan(self.values), -1, self.values).astype(np.int64), "int64", self.name)

    def as_float16(self) -> Given:
        """Return floating-point numbers that are converted when written; ValueError outside the range."""
        if self.dtype not in ("float16", "float32", "float64"):
            raise ValueError(f"{self.name} is {self.dtype}: only floating numbers are stored as float16")
        largest = float(np.finfo(np.float16).max)
        self.refuse(
            lambda numbers: np.asarray(np.abs(numbers) > largest),
            f"float16 has numbers up to {largest:g}; keep float32",
        )
        return replace(self, dtype="float16")

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

        Callers must not write to it. A non-contiguous array, or one in another byte order, is copied.
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
        raise ValueError(f"{name} is a tensor on the meta device, which has no values: give one with values")


def tensor_of(
    name: str, given: object, remedy: str = "give numbers, as a tensor, an array or a list"
) -> Tensor:
    """Return numbers or truth values as a dense tensor on the CPU.

    Writable arrays and CPU tensors are not copied. Floating-point numbers in lists become torch's default
    dtype, as in `torch.tensor`. `given` is a tensor, an array, a Series or an Index of pandas, or a list or
    tuple, also of tensors. ValueError, which ends with `remedy`, for other values, also if they are sparse,
    masked or mixed.
    """
    if isinstance(given, Tensor | np.ndarray):
        refuse_unreadable(given, name)
    if isinstance(given, Tensor):
        return given.detach().cpu() if given.requires_grad or given.device.type != "cpu" else given
    if not is_array_like(given):
        raise ValueError(f"{name} {shown(given)}: {remedy}")
    listed = given if isinstance(given, Sequence) else ()
    try:
        if listed and all(isinstance(part, Tensor) for part in listed):
            return torch.stack([*listed]).detach().cpu()
        found = _readable(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = getattr(given, "dtype", None)
        of_kind = "" if kind is None else f": they are {kind}"
        raise ValueError(f"{name} cannot be read as numbers of one shape{of_kind}; {remedy}") from error
    if found.dtype != torch.bool and any(map(_is_truth, listed)):
        raise ValueError(f"{name}: truth values and numbers in one list; give one kind")
    return found


def refuse_numeric_mask(name: str, values: Array, count: int | None = None) -> None:
    """Raise ValueError for zeros and ones that look like a mask: bytes, or one integer per node.

    `count` is the number of nodes, None if it is not known. Below 16 nodes, integers are ids.
    """
    dtype = str(values.dtype).removeprefix("torch.")
    length = values.shape[0] if values.ndim else 0
    is_like_mask = dtype in ("uint8", "int8") or (length == count and length >= _SURELY_MASK)
    if is_like_mask and length and bool(((values == 0) | (values == 1)).all()):
        raise ValueError(
            f"{name}: {dtype} of shape {tuple(values.shape)} with only 0 and 1 is neither ids nor a mask; "
            "give a mask by .bool() or .astype(bool), or ids as int64"
        )


def whole_ids(name: str, values: Tensor, wanted: str) -> Tensor:
    """Return ids as int64; ValueError, with `wanted`, for other numbers, and for masks of bytes."""
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{name}: {described(values)}; {wanted}")
    refuse_numeric_mask(name, values)
    if values.dtype == torch.uint64:  # ids above the largest int64 are not nodes
        signed = values.view(torch.int64)
        return signed.where(signed >= 0, torch.iinfo(torch.int64).max)
    return values.long()


def described(tensor: Tensor) -> str:
    """Return dtype and shape, for errors."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def is_array_like(given: object) -> bool:
    """Return True for values that `tensor_of` reads: tensors, arrays, Series, lists and tuples."""
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    return is_list or hasattr(given, "__array__")


def _is_truth(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _readable(given: object) -> Tensor:
    """Return NumPy's view of a value as a tensor: in native byte order, writable, contiguous."""
    values, is_list = np.asarray(given), isinstance(given, Sequence)
    if values.dtype == object:  # nullable columns of pandas
        values = np.asarray(values.tolist())
    if values.size == 0 and is_list:
        values = values.astype(np.int64)
    if not (values.flags.c_contiguous and values.flags.writeable and values.dtype.isnative):
        values = np.array(values, values.dtype.newbyteorder("="), order="C")
    found = torch.from_numpy(values)
    return found.to(torch.get_default_dtype()) if is_list and found.is_floating_point() else found


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


_PAIRS_AT_ONCE = 1 << 20


def split_group(name: str) -> str:
    """Return the part of a split's name after the first dot.

    "train.3" and "val.3" belong to one group, and so do "train" and "val".
    """
    return name.partition(".")[2]


def splits_of_masks(
    masks: Mapping[str, Tensor], node_type: NodeType, splits: dict[str, dict[NodeType, Tensor]]
) -> None:
    """Add the marked nodes of masks to `splits`. An empty split is omitted, with a warning."""
    for name, mask in masks.items():
        if bool(mask.any()):
            splits.setdefault(name, {})[node_type] = mask.nonzero().view(-1)
        else:
            said = f"the mask of {name!r} does not mark any {node_type!r} node: the split is omitted"
            warnings.warn(said, stacklevel=4)


def check_splits(splits: Mapping[str, Given], count: int, nodes: str) -> None:
    """Raise ValueError unless each split has distinct ids of `nodes` and splits of one group are disjoint."""
    names = list(splits)
    taken: dict[str, npt.NDArray[np.int16]] = {}  # group -> the number of each node's split, or 0
    for number, (name, ids) in enumerate(splits.items(), start=1):
        if len(ids) == 0:
            raise ValueError(f"{ids.name} is empty; leave the split out or give it nodes")
        ids.check_ids(count, nodes, "drop the id or raise the count")
        split_of = taken.setdefault(split_group(name), np.zeros(count, np.int16))
        before = split_of[ids.values]
        if before.any():
            at = int(np.argmax(before != 0))
            other = names[before[at] - 1]
            raise ValueError(
                f"{ids.name}[{at}] is {ids.values[at]}: the node is in split {other!r} too; drop it in one, "
                f"or put the split in another group by its name, such as '{name}.b'"
            )
        split_of[ids.values] = number
        if np.count_nonzero(split_of == number) != len(ids):
            at = _first_repeated(ids.values)
            raise ValueError(
                f"{ids.name}[{at}] is {ids.values[at]}: that node is already in the split; drop one"
            )


def checked_reverses(
    claimed: Mapping[EdgeType, EdgeType], edges: Mapping[EdgeType, tuple[Given, Given]]
) -> dict[EdgeType, EdgeType]:
    """Return `claimed` with both directions.

    ValueError unless the edges of each type are the edges of its reverse in the opposite direction.
    """
    reverses = dict(claimed)
    for edge_type, reverse in claimed.items():
        if reverse not in edges:
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}: no such edge type; there are {list(edges)}"
            )
        if (edge_type[0], edge_type[2]) != (reverse[2], reverse[0]):
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}: it must lead from destination to source"
            )
        if reverses.setdefault(reverse, edge_type) != edge_type:
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}, whose reverse is {reverses[reverse]}; name one"
            )
        if not are_reverses(edges[edge_type], edges[reverse]):
            counts = [len(edges[one][0]) for one in (edge_type, reverse)]
            raise ValueError(
                f"edge type {edge_type}: reverse_of {reverse}: some edges have no reverse in it "
                f"({counts[0]:,} and {counts[1]:,} edges); add them, or omit reverse_of"
            )
    return reverses


def are_reverses(edges: tuple[Given, Given], others: tuple[Given, Given]) -> bool:
    """Return True if `others` are the same edges in the opposite direction, in any order."""
    (sources, destinations), (others_sources, others_destinations) = edges, others
    return len(sources) == len(others_sources) and _digest(sources, destinations) == _digest(
        others_destinations, others_sources
    )


def _first_repeated(ids: npt.NDArray[np.integer]) -> int:
    first = np.zeros(len(ids), bool)
    first[np.unique(ids, return_index=True)[1]] = True
    return int(np.argmin(first))


def _digest(first: Given, second: Given) -> int:
    """Return a digest of the pairs that does not depend on their order.

    Different pairs collide with probability 2^-64. Sorting the pairs instead would need more memory.
    """
    total = 0
    for start in range(0, len(first), _PAIRS_AT_ONCE):
        pairs = slice(start, start + _PAIRS_AT_ONCE)
        mixed = first.values[pairs].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed += second.values[pairs].astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        total += int(mixed.sum())
    return total % (1 << 64)


_ENTRY_BYTES, _NUMBER_BYTES = 8, 4  # an index and a value; a float32
_MOST_WIDTH = (1 << 31) - 1  # indices are int32


class CsrMatrix(Protocol):
    """A sparse matrix of SciPy."""

    def tocsr(self) -> Any:  # noqa: ANN401
        """Return the matrix with rows of (index, value)."""
        ...


SparseMatrix = Tensor | CsrMatrix  # torch.sparse_csr, or a sparse matrix of SciPy


@dataclass(frozen=True, eq=False)
class SparseColumn:
    """A sparse column, which `write_graph` accepts as a node column, as it does the matrix itself.

    Rows are padded to the longest row. Entries are in ascending order of the index, without zeros.

    Args:
        values: Indices and float32 values as bits, int32 (rows, 2, longest); padding is 0.
        width: Numbers per row.
    Raises:
        ValueError: The values have another dtype or shape.
    Example:
        >>> import scipy.sparse
        >>> column = khop.SparseColumn.of(scipy.sparse.eye_array(4, format="csr"))
        >>> column.values.shape, column.width
        (torch.Size([4, 2, 1]), 4)
    """

    values: Tensor
    width: int

    def __post_init__(self) -> None:
        instance_of("values", self.values, Tensor, "must be a tensor of int32, as SparseColumn.of gives it")
        checked_field(self, "width", whole_number, 1, _MOST_WIDTH)
        if self.values.dtype != torch.int32 or self.values.dim() != 3 or self.values.shape[1] != 2:
            raise ValueError(
                f"values are {self.values.dtype} {tuple(self.values.shape)}: must be int32 (rows, 2, entries)"
                ", as SparseColumn.of gives them"
            )

    @classmethod
    def of(cls, matrix: SparseMatrix, most: int | None = None) -> SparseColumn:
        """Make a column from a sparse matrix.

        Values are stored as float32; duplicate entries are summed.

        Args:
            matrix: Matrix (rows, width) of SciPy or of layout `torch.sparse_csr`.
            most: Maximum entries per row: those of the largest magnitude, the first among equal ones; default
                all.
        Raises:
            ValueError: A row has so many entries that a dense column would be smaller.
        """
        return _column(matrix, "the sparse column", most)


def sparse_column(matrix: SparseMatrix, name: str) -> SparseColumn:
    """Make a column from a sparse matrix with its name for errors."""
    return _column(matrix, name, None)


def is_sparse(column: object) -> TypeGuard[SparseMatrix]:
    """Return True for a sparse matrix of SciPy or torch."""
    if isinstance(column, Tensor):
        return column.layout == torch.sparse_csr
    return hasattr(column, "tocsr") and len(getattr(column, "shape", ())) == 2


def check_sparse(given: Given, width: int) -> None:
    """Raise ValueError unless each entry of a stored column has an index below `width` and a finite value."""
    if given.dtype != "int32" or given.values.ndim != 3 or given.values.shape[1] != 2:
        raise ValueError(f"{given.name} is {given.dtype} of shape {given.values.shape}: not a sparse column")
    reason = f"no index of a row of {width:,} numbers, or no finite value"
    given.refuse(lambda rows: _faults(rows, width), reason)


def _faults(rows: npt.NDArray[np.int32], width: int) -> npt.NDArray[np.bool_]:
    values = np.ascontiguousarray(rows[:, 1]).view(np.float32)
    return np.stack([(rows[:, 0] < 0) | (rows[:, 0] >= width), ~np.isfinite(values)], axis=1)


def _column(matrix: SparseMatrix, name: str, most: int | None) -> SparseColumn:
    if not is_sparse(matrix):
        raise ValueError(
            f"{name} is a {type(matrix).__name__}: give a torch.sparse_csr tensor or a sparse matrix of SciPy"
            ", of two dimensions"
        )
    (count, width), indptr, indices, values = _arrays(matrix)
    if not 1 <= width <= _MOST_WIDTH:
        raise ValueError(f"{name} has rows of {width:,} numbers: must be 1 to {_MOST_WIDTH:,}")
    _check(name, width, indices, values)
    rows = np.repeat(np.arange(count), np.diff(indptr))
    rows, indices, values = _summed(rows, indices, values.astype(np.float64))
    if most is not None:
        kept = _largest(rows, indices, values, whole_number("most", most, 1))
        rows, indices, values = rows[kept], indices[kept], values[kept]
    counts = np.bincount(rows, minlength=count)
    longest = max(1, int(counts.max(initial=0)))
    if longest > 1 and longest * _ENTRY_BYTES > width * _NUMBER_BYTES:
        raise ValueError(
            f"{name}: row {int(counts.argmax())} has {longest:,} entries of {width:,}, and rows are padded "
            "to the longest row: give a dense array, or the largest entries of each row, "
            "khop.SparseColumn.of(matrix, most=...)"
        )
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    return SparseColumn(packed(offsets, torch.from_numpy(indices), torch.from_numpy(values), longest), width)


def _arrays(
    matrix: SparseMatrix,
) -> tuple[tuple[int, int], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return shape, indptr, indices and values."""
    if isinstance(matrix, Tensor):
        given = matrix.detach().cpu()
        values = given.values()
        wide = values.to(torch.float64) if values.dtype == torch.bfloat16 else values
        arrays = (given.crow_indices(), given.col_indices(), wide)
        indptr, indices, numbers = (array.numpy() for array in arrays)
        return (int(given.shape[0]), int(given.shape[1])), indptr, indices, numbers
    csr = matrix.tocsr()
    return (int(csr.shape[0]), int(csr.shape[1])), csr.indptr, csr.indices, csr.data


def _check(name: str, width: int, indices: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    if values.ndim != 1 or values.dtype.kind not in "iufb":
        raise ValueError(f"{name} has values of {values.dtype} {values.shape}: must be one number per entry")
    bad = np.flatnonzero((indices < 0) | (indices >= width))
    if len(bad):
        raise ValueError(f"{name}: entry {bad[0]} has index {indices[bad[0]]}: must be 0 to {width - 1}")
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(values.astype(np.float32)))
    if len(bad):
        raise ValueError(
            f"{name}: entry {bad[0]} is {values[bad[0]]}: not a finite number; replace it, for example by 0"
        )


def _summed(
    rows: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the entries in order of row and index, duplicates summed, without zeros."""
    order = np.lexsort((indices, rows))
    rows, indices, values = rows[order], indices[order], values[order]
    starts = np.flatnonzero(np.diff(rows, prepend=-1) | np.diff(indices, prepend=-1))
    if len(starts) < len(rows):
        rows, indices, values = rows[starts], indices[starts], np.add.reduceat(values, starts)
    kept = values.astype(np.float32) != 0
    return rows[kept], indices[kept], values[kept].astype(np.float32)


def _largest(
    rows: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any], most: int
) -> npt.NDArray[Any]:
    """Return the positions of each row's `most` largest entries, ascending."""
    order = np.lexsort((indices, -np.abs(values), rows))
    counts = np.bincount(rows)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[place < most])


LARGEST = 127  # of int8, on both sides of 0


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized column, which represents `values * scales` and which `write_graph` accepts as a column.

    Args:
        values: Rounded numbers, int8 (rows, ...).
        scales: Scale of each element of a row, float32, with the shape of a row.
    Raises:
        ValueError: The dtypes or shapes do not fit.
    Example:
        >>> column = khop.quantize(torch.tensor([[127.0, -254.0], [64.0, 2.0]]))
        >>> column.values, column.scales
        (tensor([[ 127, -127],
                [  64,    1]], dtype=torch.int8), tensor([1., 2.]))
    """

    values: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        instance_of("values", self.values, Tensor, "must be a tensor of int8, as khop.quantize gives it")
        instance_of("scales", self.scales, Tensor, "must be a tensor of float32, as khop.quantize gives it")
        given = (self.values.dtype, self.scales.dtype, tuple(self.scales.shape))
        wanted = (torch.int8, torch.float32, tuple(self.values.shape[1:]))
        if given != wanted:
            raise ValueError(f"(values, scales, shape of scales) are {given}: must be {wanted}")


def quantize(column: Array) -> Quantized:
    """Round each number to int8, with one scale per column.

    The error is at most 1/254 of the column's largest number. Needs additional memory: a quarter of the
    column as float32.

    Args:
        column: Floating-point numbers (rows, ...).
    Returns:
        The rounded column, for `khop.NodeTable` and `khop.EdgeTable`.
    Raises:
        ValueError: A number is NaN, infinite or outside of float32's range, or the column is not
            floating-point.
    Example:
        >>> khop.quantize(torch.tensor([[1.0], [-127.0]])).values
        tensor([[   1],
                [-127]], dtype=torch.int8)
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
    """Return positive scales for which dequantized numbers stay within float32's range."""
    scales = np.asarray(largest / np.float32(LARGEST))
    with np.errstate(over="ignore"):
        is_above = ~np.isfinite(scales * np.float32(LARGEST))
    lower = np.where(is_above, np.nextafter(scales, np.float32(0)), scales)
    return np.where(scales > 0, lower, np.float32(1))


def _check_range(name: str, start: int, rows: npt.NDArray[Any]) -> None:
    """Raise ValueError that names the first float64 number outside of float32's range."""
    wrong = np.argwhere(np.abs(rows) > np.finfo(np.float32).max)
    if len(wrong):
        first = tuple(wrong[0].tolist())
        raise ValueError(
            f"{name}: {rows[first]} in row {start + first[0]} is outside of float32's range, up to 3.4e38, "
            "in which quantized columns are read; scale the column, or write it as float64"
        )


def _float32(rows: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Return a chunk as float32. bfloat16 is given as uint16 bits, the upper half of a float32."""
    if dtype == "bfloat16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32)
