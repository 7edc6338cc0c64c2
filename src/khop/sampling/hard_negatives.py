"""Hard negatives: for each source, the destinations with the highest scores that are no links."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.arguments import check_word, instance_of, whole_number
from khop.draw import CandidateScore

_SCORES_AT_ONCE = 1 << 22
# The largest rounded values: scores of 4,096 columns are then whole numbers below 2^53, exact in float64.
_LARGEST = {"dot": 1 << 20, "l1": 1 << 20, "l2": 1 << 19}


def hard_negatives(
    sources: Tensor,
    destinations: Tensor,
    keep: int,
    *,
    known: Tensor | None = None,
    grid: int = 64,
    original_ids: Tensor | None = None,
    score: CandidateScore = "dot",
) -> Tensor:
    """Return the `keep` destinations with the highest scores for each source: int64 (sources, keep).

    `sources` and `destinations` are the embeddings of all nodes, (nodes, width) of floats. `score` is their
    inner product (dot), or the negative L1 or L2 distance (l1, l2). Values are rounded to
    multiples of 1 / `grid`, so that scores are whole numbers, computed exactly on every machine; of equal
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
    check_word("score", score, CandidateScore)
    largest = _LARGEST[score]
    whole_number("grid", grid, 1, largest)
    if whole_number("keep", keep, 1) > len(destinations):
        raise ValueError(f"keep {keep}: there are {len(destinations)} destinations; give at most this number")
    order = None if original_ids is None else original_ids.argsort()
    rows = _rounded("sources", sources, grid, largest)
    columns = _rounded("destinations", destinations, grid, largest)
    columns = columns if order is None else columns[order]
    pairs = torch.empty(2, 0, dtype=torch.int64) if known is None else known[:, known[0].argsort()]
    places = pairs[1] if order is None else _inverse(order)[pairs[1]]
    at_once = max(1, _SCORES_AT_ONCE // max(len(columns), 1))
    found = [torch.empty(0, keep, dtype=torch.int64)]
    for begin in range(0, len(rows), at_once):
        scores = _scores(rows[begin : begin + at_once], columns, score)
        bounds = torch.searchsorted(pairs[0].contiguous(), torch.tensor([begin, begin + len(scores)]))
        first, last = bounds.tolist()
        scores[pairs[0, first:last] - begin, places[first:last]] = -torch.inf
        found.append(_largest(scores, keep, begin))
    picked = torch.cat(found)
    return picked if order is None else order[picked]


def _scores(rows: Tensor, columns: Tensor, score: CandidateScore) -> Tensor:
    """Return (rows, columns): scores that order the columns of each row as `score` does, exactly."""
    if score == "l1":
        return -torch.cdist(rows, columns, p=1.0)
    products = rows @ columns.T
    # Squared distances, without the square of the row, which is the same for all columns.
    return products if score == "dot" else 2 * products - columns.square().sum(1)


def _rounded(name: str, rows: Tensor, grid: int, largest: int) -> Tensor:
    values = (rows.detach().cpu().double() * grid).round()
    if values.numel() and not float(values.abs().max()) <= largest:
        raise ValueError(
            f"{name}: values reach {float(rows.abs().max())}, must be finite and at most {largest // grid} "
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
