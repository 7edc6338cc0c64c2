"""Products of rows with the matrices of their groups, in one batched product."""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 16  # rows of one group that are multiplied together; groups are padded to whole tiles


def grouped_linear(x: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """Return (rows, out): row i of x times `weights[groups[i]]`.

    x is (rows, in), weights are (groups, out, in), groups int64 (rows). Rows are sorted by group, in tiles of
    one group each, so that one batched product computes all groups, however many there are.
    """
    count = weights.shape[0]
    ordered, order = groups.sort(stable=True)
    sizes = torch.bincount(groups, minlength=count)
    tiles = (sizes + (TILE - 1)) // TILE
    first_row, first_tile = sizes.cumsum(0) - sizes, tiles.cumsum(0) - tiles
    positions = torch.arange(x.shape[0], device=x.device)
    place = torch.empty_like(groups)
    place[order] = first_tile[ordered] * TILE + positions - first_row[ordered]
    of_tile = torch.repeat_interleave(torch.arange(count, device=x.device), tiles)
    padded = x.new_zeros(of_tile.numel() * TILE, x.shape[1]).index_copy(0, place, x)
    # index_select: its backward adds in a fixed order.
    matrices = weights.index_select(0, of_tile).transpose(1, 2)
    products = torch.bmm(padded.view(-1, TILE, x.shape[1]), matrices)
    return products.flatten(0, 1).index_select(0, place)


def grouped_linear_reference(x: Tensor, weights: Tensor, groups: Tensor) -> Tensor:
    """The same as `grouped_linear`, row by row."""
    return torch.einsum("ni,noi->no", x, weights[groups])
