"""Full ranking: all candidates of each query are scored, and ranked by exact metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import torch
from torch import Tensor

from khop.arguments import instance_of, list_of, shown, whole_number
from khop.inference.layer_stores import Memory
from khop.inference.stages import Stage
from khop.runtime.group import this_group
from khop.training.ranking import Places, check_k, check_scores, discounts

ScoresOf = Callable[[Tensor], Tensor]  # int64 (n) queries -> (n, candidates)


@dataclass(frozen=True)
class FullRanking:
    """Mean metrics over the queries with at least one pair to find, and over the pairs."""

    queries: int
    recall: dict[int, float]  # k -> fraction of a query's held-out candidates among the first k
    ndcg: dict[int, float]  # k -> discounted gain, divided by the gain of the best order
    pairs: int = 0
    mrr: float = 0.0  # of pairs, each ranked without the other known ones
    hits: dict[int, float] = field(default_factory=dict)  # k -> fraction of pairs among the first k


def full_ranking(
    scores_of: ScoresOf,
    held_out: Tensor,
    seen: Tensor,
    num_candidates: int,
    at: Sequence[int] = (10, 20),
    *,
    known: Tensor | None = None,
    chunk_bytes: int = 1 << 28,
) -> FullRanking:
    """Rank all candidates for each query of `held_out`, except the candidates of the query in `seen`.

    `held_out` and `seen` are int64 (2, pairs): queries, then candidates. A repeated pair counts once; a pair
    that is also in `seen` does not count. MRR and hits are means over pairs: each pair is ranked alone, and
    the candidates of its query in `known`, int64 (2, pairs), do not count against it (the filtered setting of
    knowledge graphs; None: all count). `scores_of` receives as many queries at a time as fit into
    `chunk_bytes`.

    Collective: the ranks share the queries, and every rank gets the result, which does not depend on their
    number. All ranks call `scores_of` equally often, so `scores_of` may exchange rows.
    """
    whole_number("num_candidates", num_candidates, 1)
    whole_number("chunk_bytes", chunk_bytes, 1)
    if not callable(scores_of):
        raise ValueError(f"scores_of {shown(scores_of)}: must be a function from queries to their scores")
    if not list_of("at", at, "[10, 20]"):
        raise ValueError("full ranking: at is empty, name the ks of Recall@k and NDCG@k")
    for k in at:
        check_k(k)
    masked = _keys(seen, num_candidates, "seen")
    keys = _keys(held_out, num_candidates, "held_out")
    keys = keys[~torch.isin(keys, masked)]
    others = None if known is None else _keys(known, num_candidates, "known")
    if keys.numel() == 0:
        raise ValueError("full ranking: held_out has no pair that is not in seen; there is nothing to find")
    queries, sizes = torch.unique_consecutive(keys // num_candidates, return_counts=True)
    rows = max(1, chunk_bytes // (16 * num_candidates))
    ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])  # where each query's pairs begin
    group, like = this_group(), torch.empty(0, 4, len(at), dtype=torch.float64)
    chunks = Stage(0, "query", -(-queries.numel() // rows), 1, like)
    with group.exchanging("ranking"), closing(Memory(group).open(chunks)) as place:
        for turn in range(-(-chunks.count // group.world_size)):
            # In the last turn some ranks have no chunk: they rank a chunk that another rank keeps.
            mine = turn * group.world_size + group.rank
            number = mine % chunks.count
            chunk, found = (each[number * rows : (number + 1) * rows] for each in (queries, sizes))
            pairs = keys[ends[number * rows] : ends[number * rows + chunk.numel()]]
            scores = _masked_scores(scores_of(chunk), chunk, masked, num_candidates)
            row = torch.repeat_interleave(torch.arange(chunk.numel()), found)
            places = _places_in(scores, row, pairs % num_candidates, max(at))
            if mine == number:
                alone = _places_alone(scores, chunk, row, pairs % num_candidates, others, chunk_bytes)
                sums = torch.cat([_sums(places, row, found, at), _pair_sums(alone, at)])
                place.put(number, sums.unsqueeze(0))
        sums = place.finished().sum(0)
    (recall, ndcg), (hits, mrr) = (sums[:2] / queries.numel()).tolist(), (sums[2:] / keys.numel()).tolist()
    by_k = [dict(zip(at, each, strict=True)) for each in (recall, ndcg, hits)]
    return FullRanking(queries.numel(), by_k[0], by_k[1], keys.numel(), mrr[0], by_k[2])


def _keys(pairs: Tensor, num_candidates: int, what: str) -> Tensor:
    """Encode each pair as one number; return them sorted, without duplicates."""
    instance_of(f"full ranking: {what}", pairs, Tensor, "must be an int64 tensor (2, pairs)")
    if pairs.dim() != 2 or pairs.shape[0] != 2:
        raise ValueError(f"full ranking: {what} is {tuple(pairs.shape)}, must be (2, pairs)")
    if pairs.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"full ranking: {what} is {pairs.dtype}: give ids, int64")
    outside = (pairs[1] < 0) | (pairs[1] >= num_candidates) | (pairs[0] < 0)
    if outside.any():
        query, candidate = pairs[:, outside][:, 0].tolist()
        raise ValueError(
            f"full ranking: {what} has query {query} with candidate {candidate}; "
            f"candidates are 0 to {num_candidates - 1}"
        )
    keys: Tensor = torch.unique(pairs[0].long() * num_candidates + pairs[1])
    return keys


def _masked_scores(scores: Tensor, queries: Tensor, masked: Tensor, num_candidates: int) -> Tensor:
    """Copy scores to the CPU and set the scores of seen candidates to -inf."""
    instance_of("full ranking: scores", scores, Tensor, "scores_of must give a tensor (queries, candidates)")
    expected = (queries.numel(), num_candidates)
    if scores.shape != expected:
        raise ValueError(
            f"full ranking: scores are {tuple(scores.shape)}, must be (queries, candidates): {expected}"
        )
    check_scores(scores, "full ranking")
    scores = scores.detach().cpu().clone()
    first, last = torch.searchsorted(
        masked, queries[[0, -1]] * num_candidates + torch.tensor([0, num_candidates])
    )
    near = masked[int(first) : int(last)]
    row = torch.searchsorted(queries, near // num_candidates)
    here = queries[row] == near // num_candidates
    scores[row[here], near[here] % num_candidates] = -torch.inf
    return scores


def _places_in(scores: Tensor, row: Tensor, candidate: Tensor, depth: int) -> Places:
    """Places of candidates in their rows, from the first `depth` scores; `above` stops at `depth`."""
    own = scores[row, candidate].unsqueeze(1)
    top = scores.topk(min(depth, scores.shape[1]), dim=1).values
    above, equal = (top[row] > own).sum(1), (top[row] == own).sum(1)
    # Some candidates with the score of the last of the first may have been cut off.
    boundary = top[:, -1:]
    at_boundary = (scores == boundary).sum(1)
    tied = torch.where((own == boundary[row]).squeeze(1), at_boundary[row], equal)
    return Places(above, (tied - 1).clamp(min=0))


def _places_alone(
    scores: Tensor, queries: Tensor, row: Tensor, candidate: Tensor, known: Tensor | None, chunk_bytes: int
) -> Places:
    """Places of pairs among all candidates of their rows, without the other candidates in `known`."""
    above, tied = torch.empty_like(row), torch.empty_like(row)
    num_candidates = scores.shape[1]
    for some in torch.arange(row.numel()).split(max(1, chunk_bytes // (16 * num_candidates))):
        own = scores[row[some], candidate[some]].unsqueeze(1)
        of_rows = scores[row[some]]
        above[some], tied[some] = (of_rows > own).sum(1), (of_rows == own).sum(1) - 1
    if known is None:
        return Places(above, tied)
    ends = torch.searchsorted(known, torch.stack([queries, queries + 1]) * num_candidates)
    counts = (ends[1] - ends[0])[row]
    pair = torch.repeat_interleave(torch.arange(row.numel()), counts)
    first = (ends[0][row] - (counts.cumsum(0) - counts))[pair]
    other = known[first + torch.arange(pair.numel())] % num_candidates
    of_other, own = scores[row[pair], other], scores[row, candidate][pair]
    is_other = other != candidate[pair]
    above -= torch.bincount(pair[(of_other > own) & is_other], minlength=row.numel())
    tied -= torch.bincount(pair[(of_other == own) & is_other], minlength=row.numel())
    return Places(above, tied)


def _pair_sums(places: Places, at: Sequence[int]) -> Tensor:
    """Hits at each k, and the reciprocal rank beside each k, summed over the pairs."""
    count = places.above.numel()
    hits = torch.tensor([places.hits(k) * count for k in at], dtype=torch.float64)
    return torch.stack([hits, torch.full_like(hits, places.mean_reciprocal_rank() * count)])


def _sums(places: Places, row: Tensor, found: Tensor, at: Sequence[int]) -> Tensor:
    """Recall and NDCG at each k, summed over the queries."""
    sums = []
    for k in at:
        reached = torch.zeros(found.numel(), dtype=torch.float64).index_add_(0, row, places.reached(k))
        gains = torch.zeros(found.numel(), dtype=torch.float64).index_add_(0, row, places.discounted_gains(k))
        best = discounts(k).cumsum(0)[found.clamp(max=k) - 1]
        sums.append(torch.stack([(reached / found).sum(), (gains / best).sum()]))
    return torch.stack(sums, dim=1)
