"""Sums over the edges of rows with many edges, by many programs, in the order of the CPU core.

Each RUN edges of a row are added in order, then each RUN of these sums, and so on: see RunSums in
csrc/segment_rows.h. A kernel that sums edges is launched for runs of edges, then for rows.

Level 1 has the sums of runs of edges, level 2 the sums of runs of level 1, and so on. If a row has more than
RUN items of a level, beginning with item b, its places in the next level begin with ceil(b / HALF). Places of
two rows differ, and a used place p is of the row that has item p HALF. So no list of runs is needed, whose
length the host would have to read.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.csc import Csc
from khop.kernels.triton.launch import TritonKernel, Variant, launch
from khop.kernels.triton.tiles import Tiles, row_span, tile
from khop.kernels.triton.words import first_above

RUN = tl.constexpr(512)  # kRun of csrc/segment_rows.h
HALF = tl.constexpr(256)
MOST_LEVELS = tl.constexpr(3)  # a row has at most RUN^4 edges
_AHEAD = tl.constexpr(4)  # sums that are loaded before the first of them is added


@triton.jit
def run_span(
    indptr: tl.tensor, num_rows: tl.tensor, place: tl.tensor, LEVEL: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the row at each place of a level, and begin and number of the items of its run, int64.

    The number is 0 if the place is not used.
    """
    edge = place
    for _ in tl.static_range(LEVEL):
        edge = edge * HALF
    is_edge = edge < tl.load(indptr + num_rows)
    first = place * 0 + 1
    row = first_above(indptr, None, first, first + num_rows, edge, is_edge) - 1
    begin, count = row_span(indptr, row, is_edge)
    for _ in tl.static_range(LEVEL - 1):
        begin, count = tl.cdiv(begin, HALF), tl.where(count > RUN, tl.cdiv(count, RUN), 0)
    before = (place - tl.cdiv(begin, HALF)) * RUN
    rest = tl.where(count > RUN, count - before, 0)
    return row, begin + before, tl.minimum(tl.maximum(rest, 0), RUN)


@triton.jit
def add_items(
    total: tl.tensor,
    sums: tl.tensor,
    begin: tl.tensor,
    count: tl.tensor,
    column: tl.tensor,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Add `count` of the sums from place `begin` on to the total of each row, in order."""
    for item in range(0, tl.max(count, 0), _AHEAD):
        values = ()
        for step in tl.static_range(_AHEAD):
            is_read = (item + step < count)[:, None] & (column < WIDTH)[None, :]
            at = (begin + item + step)[:, None] * WIDTH + column[None, :]
            values += (tl.load(sums + at, mask=is_read, other=0),)  # type: ignore[assignment]
        for step in tl.static_range(_AHEAD):
            total += values[step]
    return total


@triton.jit
def add_runs(
    total: tl.tensor,
    sums: tl.tensor,
    room: tl.tensor,
    begin: tl.tensor,
    degree: tl.tensor,
    column: tl.tensor,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Add the sums of the runs of each row with more than RUN edges to its total, which is 0.

    `sums` has all levels one after the other, for `room` edges.
    """
    count = tl.where(degree > RUN, degree, 0)
    size, first = room.to(tl.int64), begin * 0
    place = size * 0
    for _ in tl.static_range(MOST_LEVELS):
        is_more = count > RUN
        first = tl.where(is_more, place, first)
        begin = tl.where(is_more, tl.cdiv(begin, HALF), begin)
        count = tl.where(is_more, tl.cdiv(count, RUN), count)
        size = tl.cdiv(size, HALF) + 1
        place += size
    return add_items(total, sums, first + begin, count, column, WIDTH)


@triton.jit(do_not_specialize=["num_rows"])
def sum_runs(
    items: tl.tensor,
    indptr: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    LEVEL: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sum the runs of a level; `out` is the next one, number LEVEL."""
    place, column = tile(WIDTH, ROWS, COLUMNS)
    _, begin, count = run_span(indptr, num_rows, place, LEVEL)
    total = tl.zeros([ROWS, COLUMNS], out.dtype.element_ty)
    total = add_items(total, items, begin, count, column, WIDTH)
    is_inside = (count > 0)[:, None] & (column < WIDTH)[None, :]
    tl.store(out + place[:, None] * WIDTH + column[None, :], total, mask=is_inside)


def launch_sums(
    kernel: TritonKernel,
    x: Tensor,
    operands: tuple[Tensor | None, ...],
    edges: Csc,
    tiles: Tiles,
    out: Tensor,
    constants: Mapping[str, object],
    **of_rows: object,
) -> None:
    """Launch a kernel that sums rows of x over each row's edges into `out`.

    If there are more than RUN edges, it first sums runs (OF_RUNS, with `run_span` of level 1), `sum_runs` the
    levels above, and `sums` are those of rows with more than RUN edges; else None. Only the last launch has
    the constants `of_rows`.
    """
    size = (edges.num_rows, edges.num_edges)
    most, sizes = edges.num_edges, [edges.num_edges]
    while most > RUN.value:
        most, sizes = triton.cdiv(most, RUN.value), [*sizes, triton.cdiv(sizes[-1], HALF.value) + 1]
    sums = None
    if len(sizes) > 1:
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        sums = torch.empty(sum(sizes[1:]), tiles.width, dtype=dtype, device=x.device)
        levels = sums.split(sizes[1:])
        of_runs = {**constants, "OF_RUNS": True, "OUT_PITCH": tiles.width}
        launch(kernel, tiles.programs(sizes[1]), x, *operands, None, levels[0], *size, **of_runs)
        for number in range(1, len(levels)):
            level = (levels[number - 1], edges.indptr, levels[number], edges.num_rows)
            of_level = {"LEVEL": number + 1, **tiles.constants}
            launch(sum_runs, tiles.programs(sizes[number + 1]), sums, *level, **of_level)
    last = {**constants, "OF_RUNS": False, "OUT_PITCH": out.stride(0), **of_rows}
    launch(kernel, tiles.programs(edges.num_rows), x, *operands, sums, out, *size, **last)


VARIANTS = tuple(
    Variant(
        f"runs of level {level}, {dtype}",
        sum_runs,
        {**dict.fromkeys(("items", "out"), f"*{dtype}"), "indptr": "*i64", "num_rows": "i32"},
        {"LEVEL": level, **Tiles.of(100, 4).constants},
        vector_bits=128,
    )
    for level, dtype in ((2, "fp32"), (3, "fp64"))
)
