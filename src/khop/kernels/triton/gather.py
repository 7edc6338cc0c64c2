"""Gather of rows by id from device memory or pinned host memory, with some rows cached on the device.

One kernel reads both cached and other rows, without a list of misses. Pinned columns of placed graphs are
CUDA tensors over host memory, so callers pass `is_pinned` for them. CPU tensors pinned by torch are passed
unchanged: Triton gets the device address from the driver.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from khop.kernels.memory import accessible_width, flat_rows, padded_pitch
from khop.kernels.triton.launch import Variant, launch
from khop.kernels.triton.rows import piece_of
from khop.kernels.triton.tiles import Tiles, tile_of

LOADS = 4  # widest loads per thread, all in flight at once
# Enough to saturate the link to the host. More would block multiprocessors while they wait.
PINNED_PROGRAMS = 64
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # rows are copied as one of these


@triton.jit(do_not_specialize=["num_rows", "capacity", "num_tiles"])
def copy_rows(
    table: tl.tensor,
    layout: tl.tensor,
    ids: tl.tensor,
    count: tl.tensor,
    slots: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    capacity: tl.tensor,
    num_tiles: tl.tensor,
    PITCH: tl.constexpr,
    CACHE_PITCH: tl.constexpr,
    OUT_PITCH: tl.constexpr,
    READABLE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Write row ids[i] of the table into row i of out, in the type of out; zeros after the count.

    With a layout, the table is divided: see `piece_of`. A row with a slot is read from the cache. With
    scales, each number is multiplied by its column's. Programs share the tiles if there are more tiles than
    programs.
    """
    for number in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        row, column = tile_of(number, WIDTH, ROWS, COLUMNS)
        is_live = row < (capacity if count is None else tl.load(count))
        id = tl.load(ids + row, mask=is_live, other=-1).to(tl.int64)
        is_live = is_live & (id >= 0) & (id < num_rows)
        at = table + id[:, None] * PITCH + column[None, :]
        if layout is not None:
            units, place = piece_of(layout, id, is_live)
            begin = units * (128 // table.dtype.element_ty.primitive_bitwidth)
            at = table + (begin + place * PITCH)[:, None] + column[None, :]
        if slots is not None:
            slot = tl.load(slots + id, mask=is_live, other=-1).to(tl.int64)[:, None]
            # One load from the chosen address: two loads would read both.
            at = tl.where(slot >= 0, cache + slot * CACHE_PITCH + column[None, :], at)
        is_read = is_live[:, None] & (column < READABLE)[None, :]
        value = tl.load(at, mask=is_read, other=0).to(out.dtype.element_ty)
        if scales is not None:
            value *= tl.load(scales + column, mask=column < WIDTH, other=0)[None, :]
        is_inside = (row < capacity)[:, None] & (column < WIDTH)[None, :]
        tl.store(out + row[:, None] * OUT_PITCH + column[None, :], value, mask=is_inside)


def gather(
    table: Tensor,
    ids: Tensor,
    out: Tensor,
    *,
    scales: Tensor | None = None,
    count: Tensor | None = None,
    slots: Tensor | None = None,
    cache: Tensor | None = None,
    is_pinned: bool = False,
    layout: Tensor | None = None,
    num_rows: int | None = None,
) -> None:
    """Write the rows of a table (N, ...) of any dtype into `out` (ids, ...), bit by bit or as float32.

    They become float32 if the table is float16, bfloat16, int8 or uint8 and `out` is float32; `scales` are
    float32 with the shape of a row. `ids` are int32 or int64; only the first `count` (an int on the device)
    are used, and later rows and rows of ids outside the table are 0. `slots`, int32 (N), have the row of
    `cache` with a row's copy, or -1. Rows of table, cache and out may have any pitch. With `is_pinned`, the
    table is in host memory, and at most PINNED_PROGRAMS programs read it. Of a divided table, `table` is the
    first piece, and `layout` and `num_rows` are those of `Shards`.
    """
    if not out.numel():
        return
    rows, into, copies = flat_rows(table), flat_rows(out), flat_rows(table if cache is None else cache)
    if out.dtype == table.dtype:
        word = _WORDS.get(table.element_size(), torch.int64)
        rows, into, copies = rows.view(word), into.view(word), copies.view(word)
    tiles = Tiles.of(accessible_width(into), into.element_size(), LOADS)
    num_tiles = tiles.programs(ids.numel())
    num_rows = rows.shape[0] if num_rows is None else num_rows
    operands = (
        *(rows, layout, ids, count, slots, None if cache is None else copies),
        *(None if scales is None else scales.flatten(), into, num_rows, ids.numel(), num_tiles),
    )
    readable = min(accessible_width(rows), accessible_width(copies))
    constants = _constants(tiles, rows.stride(0), copies.stride(0), into.stride(0), readable)
    over_link = is_pinned or (layout is None and table.device != out.device)
    programs = min(num_tiles, PINNED_PROGRAMS) if over_link else num_tiles
    launch(copy_rows, programs, into, *operands, **constants)


def _constants(tiles: Tiles, pitch: int, cache_pitch: int, out_pitch: int, readable: int) -> dict[str, int]:
    pitches = {"PITCH": pitch, "CACHE_PITCH": cache_pitch, "OUT_PITCH": out_pitch}
    return {**pitches, "READABLE": readable, **tiles.constants}


def _variant(stored: str, made: str, width: int, without: tuple[str, ...]) -> Variant:
    """Return a variant for rows of `width` numbers; operands named in `without` are None."""
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8}
    dtypes |= {"i16": torch.int16, "i32": torch.int32, "i64": torch.int64}
    pitch, out_pitch = padded_pitch(width, dtypes[stored]), padded_pitch(width, dtypes[made])
    options = [name for name in ("slots", "scales", "count", "layout") if name not in without]
    return Variant(
        f"gather {stored} to {made} {width}" + "".join(f", {name}" for name in options),
        copy_rows,
        {
            **dict.fromkeys(("table", "cache"), f"*{stored}"),
            **{"out": f"*{made}", "ids": "*i64", "count": "*i32", "slots": "*i32", "scales": "*fp32"},
            **{"layout": "*i64", **dict.fromkeys(("num_rows", "capacity", "num_tiles"), "i32")},
        },
        {
            **dict.fromkeys(without),
            **_constants(Tiles.of(out_pitch, dtypes[made].itemsize, LOADS), pitch, pitch, out_pitch, pitch),
        },
        vector_bits=128 if pitch * dtypes[stored].itemsize >= 16 else 0,
    )


_CACHED, _WHOLE = ("scales", "layout"), ("slots", "cache", "scales", "count", "layout")
_COUNTED = ("slots", "cache", "scales", "layout")  # of recorded batches
_SHARDED = ("slots", "cache", "scales")
VARIANTS = (
    *(_variant("i32", "i32", width, without) for width in (100, 256) for without in (_CACHED, _WHOLE)),
    *(_variant("i32", "i32", 100, without) for without in (_COUNTED, _SHARDED)),
    *(_variant("i16", "i16", width, _CACHED) for width in (100, 128)),
    *(_variant(stored, "fp32", 100, _CACHED) for stored in ("fp16", "bf16")),
    *(_variant(stored, "fp32", 100, ("slots", "cache")) for stored in ("bf16", "i8")),
    _variant("i8", "fp32", 100, ("layout",)),
    _variant("i64", "i64", 1, _WHOLE),
)
