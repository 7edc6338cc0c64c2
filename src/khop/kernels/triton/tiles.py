"""Tiles of rows and columns, one per program."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from khop.kernels.memory import LOAD_BYTES

THREADS = 128  # per program: four warps
MOST_COLUMNS = 256


@dataclass(frozen=True)
class Tiles:
    """A split of (rows, width) numbers into tiles of (rows, columns), powers of 2."""

    width: int
    rows: int
    columns: int

    @classmethod
    def of(cls, width: int, item_bytes: int, loads: int = 1) -> Tiles:
        """Return tiles for rows of `width` numbers of `item_bytes`, with `loads` widest loads per thread."""
        columns = min(MOST_COLUMNS, triton.next_power_of_2(width))
        numbers = THREADS * LOAD_BYTES * loads // item_bytes
        return cls(width, max(1, numbers // columns), columns)

    def programs(self, rows: int) -> int:
        """Return the number of programs for a number of rows; tiles of the same rows are neighbors."""
        return -(-rows // self.rows) * -(-self.width // self.columns)

    @property
    def constants(self) -> dict[str, int]:
        """Constants of a kernel that calls `tile`."""
        return {"WIDTH": self.width, "ROWS": self.rows, "COLUMNS": self.columns}


@triton.jit
def tile_of(number: tl.tensor, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Return rows, int64 (ROWS), and columns, int32 (COLUMNS), of a tile."""
    across: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    row = (tl.zeros([ROWS], tl.int64) + number // across) * ROWS + tl.arange(0, ROWS)
    return row, number % across * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def tile(WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Return rows, int64 (ROWS), and columns, int32 (COLUMNS), of this program's tile."""
    return tile_of(tl.program_id(0), WIDTH, ROWS, COLUMNS)


@triton.jit
def row_span(indptr: tl.tensor, row: tl.tensor, is_row: tl.tensor) -> tl.tensor:
    """Return begin and number of the edges of each row, int64; 0 outside."""
    begin = tl.load(indptr + row, mask=is_row, other=0)
    return begin, tl.load(indptr + row + 1, mask=is_row, other=0) - begin
