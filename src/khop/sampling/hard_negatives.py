"""Hard negatives: for each source, the destinations with the highest scores that are no links."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.arguments import instance_of, whole_number

_SCORES_AT_ONCE = 1 << 22
_LARGEST = 1 << 20  # of a rounded value: products of 4,096 columns are exact in float64


def hard_negatives(
    sources: Tensor,
    destinations: Tensor,
    keep: int,
    *,
    known: Tensor | None = None,
    grid: int = 64,
    original_ids: Tensor | None = None,
) -> Tensor:
    """Return the `keep` destinations with the largest dot products for each source: int64 (sources, keep).

    `sources` and `destinations` are the embeddings of all nodes, (nodes, width) of floats. Values are rounded
    to multiples of 1 / `grid`, so that scores are whole numbers, computed exactly on every machine; of equal
    scores the lowest original id comes first. Pairs in `known`, int64 (2, pairs) of global ids with sources
    first, are left out: give all links, and pairs of a node with itself. A source with fewer other
    destinations gets some of them again, and one without any is an error. `original_ids` are those of the
    destinations, if the graph was renumbered.
    """
    for name, rows in (("sources", sources), ("destinations", destinations)):
        instance_of(name, rows, Tensor, "must be floats (nodes, width)")
        if rows.dim() != 2 or not rows.is_floating_point() or rows.shape[1] > 4096:
            raise ValueError(
                f"{name}: {rows.dtype} of shape {tuple(rows.shape)}; must be floats (nodes, width), at most "
                "4,096 wide"
            )
    whole_number("grid", grid, 1, _LARGEST)
    if whole_number("keep", keep, 1) > len(destinations):
        raise ValueError(f"keep {keep}: there are {len(destinations)} destinations; give at most this number")
    order = None if original_ids is None else original_ids.argsort()
    rows, columns = _rounded("sources", sources, grid), _rounded("destinations", destinations, grid)
    columns = columns if order is None else columns[order]
    pairs = torch.empty(2, 0, dtype=torch.int64) if known is None else known[:, known[0].argsort()]
    places = pairs[1] if order is None else _inverse(order)[pairs[1]]
    at_once = max(1, _SCORES_AT_ONCE // max(len(columns), 1))
    found = [torch.empty(0, keep, dtype=torch.int64)]
    for begin in range(0, len(rows), at_once):
        scores = rows[begin : begin + at_once] @ columns.T
        bounds = torch.searchsorted(pairs[0].contiguous(), torch.tensor([begin, begin + len(scores)]))
        first, last = bounds.tolist()
        scores[pairs[0, first:last] - begin, places[first:last]] = -torch.inf
        found.append(_largest(scores, keep, begin))
    picked = torch.cat(found)
    return picked if order is None else order[picked]


def _rounded(name: str, rows: Tensor, grid: int) -> Tensor:
    values = (rows.detach().cpu().double() * grid).round()
    if values.numel() and not float(values.abs().max()) <= _LARGEST:
        raise ValueError(
            f"{name}: values reach {float(rows.abs().max())}, must be finite and at most {_LARGEST // grid} "
            f"with grid {grid}; normalize them, or give a smaller grid"
        )
    return values


def _largest(scores: Tensor, keep: int, first: int) -> Tensor:
    """Return the columns of the largest scores of each row, the lowest column first if scores are equal."""
    limit = scores.topk(keep, dim=1).values[:, -1:]
    above, equal = scores > limit, scores == limit
    missing = keep - above.sum(1, keepdim=True)
    picked = (above | (equal & (equal.cumsum(1) <= missing))).nonzero()[:, 1].view(len(scores), keep)
    values = scores.gather(1, picked)
    order = values.argsort(dim=1, descending=True, stable=True)
    picked, counts = picked.gather(1, order), (values > -torch.inf).sum(1)
    if len(scores) and int(counts.min()) == 0:
        raise ValueError(
            f"source {first + int(counts.argmin())}: all destinations are known links, none is left as a "
            "negative; leave the source out of the links"
        )
    again = torch.arange(keep) % counts[:, None]
    return picked.gather(1, again)


def _inverse(order: Tensor) -> Tensor:
    return torch.empty_like(order).scatter_(0, order, torch.arange(order.numel()))
