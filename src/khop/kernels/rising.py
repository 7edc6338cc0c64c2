"""Values that never fall within a row, with an outline for fast search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import khop._core as _core
from khop.kernels.checks import check_int64
from khop.kernels.csc import Csc, naming_damage
from khop.kernels.memory import pooled

HEAD = 8  # codes that store the first and the last value of a row
WINDOW = 32  # codes that are compared together
_CODE_BITS = 16


@dataclass(frozen=True, eq=False)
class Rising:
    """Values to search for the first one above a bound, mostly in the outline: a quarter of the size."""

    values: Tensor  # int64 (edges)
    outline: Tensor  # int16 (outline_size)

    def check(self, name: str, csc: Csc) -> None:
        """Raise ValueError unless shapes, dtypes and devices fit the graph."""
        check_int64(name, self.values, csc.num_edges, csc.indptr.device)
        size = outline_size(csc)
        if self.outline.dtype != torch.int16 or self.outline.shape != (size,):
            given = f"outline of {name} is {self.outline.dtype} {tuple(self.outline.shape)}"
            raise ValueError(f"{given}: must be int16 ({size}); make it by khop.kernels.rising.outline")


def outline_size(csc: Csc) -> int:
    """Number of codes in an outline: one per edge, the heads of the rows, padded to whole windows."""
    return _core.outline_size(csc.num_edges, csc.num_rows)


def outline(csc: Csc, values: Tensor, *, threads: int = 1) -> Tensor:
    """Make the outline: for each row its first and last value, in 8 entries, then a code per value, int16.

    A code is the difference between a value and the row's first value. It is the upper 16 of the bits that
    the row's last difference needs, minus 2^15. Unequal codes have the order of their values.
    """
    check_int64("values", values, csc.num_edges, csc.indptr.device)
    if csc.indptr.device.type != "cpu":
        return outline_reference(csc, values)
    made = pooled((outline_size(csc),), torch.int16)
    with naming_damage(csc.home):
        _core.make_outline(csc.indptr, values.contiguous(), made, threads)
    return made


def outline_reference(csc: Csc, values: Tensor) -> Tensor:
    """The same as `outline` in plain torch, on any device."""
    degrees = csc.indptr.diff()
    number = torch.arange(csc.num_rows, device=values.device)
    row = torch.repeat_interleave(number, degrees)
    filled = degrees > 0
    ends = torch.zeros(csc.num_rows, 2, dtype=torch.int64, device=values.device)
    ends[filled, 0] = values[csc.indptr[:-1][filled]]
    ends[filled, 1] = values[csc.indptr[1:][filled] - 1]
    above = values - ends[row, 0]  # modulo 2^64
    codes = (above >> _shifts(ends[:, 1] - ends[:, 0])[row]) & (2**_CODE_BITS - 1)
    made = torch.zeros(outline_size(csc), dtype=torch.int16, device=values.device)
    made[torch.arange(row.numel(), device=values.device) + HEAD * (row + 1)] = (codes - 2**15).to(torch.int16)
    heads = csc.indptr[:-1] + HEAD * number
    made[heads[:, None] + torch.arange(HEAD, device=values.device)] = ends.view(torch.int16)
    return made


def _shifts(spans: Tensor) -> Tensor:
    """Return the number of bits that codes drop, for unsigned 64-bit spans."""
    shifts = torch.where(spans < 0, 64 - _CODE_BITS, 0)
    for bit in range(_CODE_BITS, 63):
        shifts += (spans >> bit) > 0
    return shifts
