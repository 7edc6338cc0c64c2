"""Full ranking: exact metrics over all candidates of each query, and filtered ranking of triples.

Candidates are scored in chunks: the scores of all pairs are never in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import torch
from torch import Tensor

from khop.arguments import instance_of, list_of, shown, whole_number
from khop.distributed.processes.group import this_group
from khop.graph.inputs import Array, tensor_of
from khop.inference.stages import MemoryStore, Stage
from khop.models.decoders import RelationDecoder
from khop.models.link_predictor import RowsOfType
from khop.training.metrics import Places, check_k, check_scores, discounts

ScoresOf = Callable[[Tensor], Tensor]  # int64 (n) queries -> (n, candidates)


@dataclass(frozen=True)
class FullRanking:
    """Mean metrics over the queries with at least one pair to find, and over the pairs."""

    queries: int
    recall: dict[int, float]  # k -> fraction of a query's held-out candidates among the first k
    ndcg: dict[int, float]  # k -> discounted gain, divided by the gain of the best order
    pairs: int = 0
    mrr: float = 0.0  # of pairs, each ranked without the other known ones
    hits: dict[int, float] = field(default_factory=dict)  # k -> fraction of pairs with a rank of at most k
    map: dict[int, float] = field(default_factory=dict)  # k -> mean average precision of the first k


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
    """Rank all candidates for each query, except those that were seen in training.

    MRR and hits are means over pairs: each pair is ranked separately. Collective: the ranks share the
    queries, and every rank gets the same result, for any number of ranks. All ranks call `scores_of` the
    same number of times, so `scores_of` may be collective.

    Args:
        scores_of: Function from queries, int64 (n), to their scores (n, candidates). It gets as many
            queries at a time as fit in `chunk_bytes`.
        held_out: Pairs to find, int64 (2, pairs): queries, then candidates. Duplicates are counted once.
        seen: Pairs to exclude, int64 (2, pairs), even if they are in `held_out`.
        num_candidates: Number of candidates.
        at: Values of k for Recall@k, NDCG@k, MAP@k and Hits@k, default (10, 20).
        known: Pairs, int64 (2, pairs), that are not candidates when another pair of their query is ranked
            (the filtered setting of knowledge graphs). Default None: all are candidates.
        chunk_bytes: Memory for scores, default 256 MiB.
    Returns:
        Recall, NDCG, MAP, MRR and hits. MAP@k is the mean over queries of the average precision: the sum of
        the precisions at the places of the query's pairs among the first k, divided by k or, if smaller, the
        number of its pairs.
    Raises:
        ValueError: A pair is out of range, nothing is to be found, or a score is NaN.
    Example:
        >>> scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0]])
        >>> held_out, seen = torch.tensor([[0, 1], [1, 2]]), torch.tensor([[0], [0]])
        >>> ranking = khop.full_ranking(lambda queries: scores[queries], held_out, seen, 3, at=[1])
        >>> ranking.recall, ranking.mrr
        ({1: 0.5}, 0.75)
    """
    num_candidates = whole_number("num_candidates", num_candidates, 1)
    chunk_bytes = whole_number("chunk_bytes", chunk_bytes, 1)
    if not callable(scores_of):
        raise ValueError(f"scores_of {shown(scores_of)}: must be a function from queries to their scores")
    if not list_of("at", at, "[10, 20]"):
        raise ValueError("full ranking: at is empty, name the ks of Recall@k and NDCG@k")
    for k in at:
        check_k(k)
    at = [int(k) for k in at]
    seen, held_out = (
        _checked_pairs(pairs, num_candidates, what)
        for what, pairs in (("seen", seen), ("held_out", held_out))
    )
    known = None if known is None else _checked_pairs(known, num_candidates, "known")
    queries = held_out[0].long().unique()
    masked = _keys(seen, queries, num_candidates, "seen")
    keys = _keys(held_out, queries, num_candidates, "held_out")
    keys = keys[~torch.isin(keys, masked)]
    others = None if known is None else _keys(known, queries, num_candidates, "known")
    if keys.numel() == 0:
        raise ValueError("full ranking: all pairs of held_out are in seen, so there is nothing to find")
    numbers, sizes = torch.unique_consecutive(keys // num_candidates, return_counts=True)
    rows = max(1, chunk_bytes // (16 * num_candidates))
    ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])  # where each query's pairs begin
    group, like = this_group(), torch.empty(0, 5, len(at), dtype=torch.float64)
    chunks = Stage(0, "query", -(-numbers.numel() // rows), 1, like)
    with group.exchanging("ranking"), closing(MemoryStore(group).open(chunks)) as place:
        for turn in range(-(-chunks.count // group.world_size)):
            # In the last turn some ranks have no chunk: they rank a chunk that another rank keeps.
            mine = turn * group.world_size + group.rank
            number = mine % chunks.count
            chunk, found = (each[number * rows : (number + 1) * rows] for each in (numbers, sizes))
            pairs = keys[ends[number * rows] : ends[number * rows + chunk.numel()]]
            scores = _masked_scores(scores_of(queries[chunk]), chunk, masked, num_candidates)
            row = torch.repeat_interleave(torch.arange(chunk.numel()), found)
            if mine == number:
                candidate = pairs % num_candidates
                places = _places_in(scores, row, candidate, chunk_bytes)
                alone = (
                    places if others is None else _places_alone(places, scores, chunk, row, candidate, others)
                )
                near = _others_of_query(row, scores[row, candidate])
                sums = torch.cat([_sums(places, row, found, at, near), _pair_sums(alone, at)])
                place.put(number, sums.unsqueeze(0))
        sums = place.finished().sum(0)
    of_queries, (hits, mrr) = (sums[:3] / numbers.numel()).tolist(), (sums[3:] / keys.numel()).tolist()
    recall, ndcg, precision, of_pairs = (dict(zip(at, each, strict=True)) for each in (*of_queries, hits))
    return FullRanking(numbers.numel(), recall, ndcg, keys.numel(), mrr[0], of_pairs, precision)


def _checked_pairs(pairs: Array, num_candidates: int, what: str) -> Tensor:
    """Return pairs as a tensor; ValueError unless they are queries and candidates, int64 or int32 (2, n)."""
    pairs = _as_tensor(f"full ranking: {what}", pairs, "give int64 (2, pairs)")
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
    return pairs


def _as_tensor(name: str, given: Array, remedy: str) -> Tensor:
    """Return an array or a list as a tensor; a tensor stays on its device."""
    found = given if isinstance(given, Tensor) else tensor_of(name, given, remedy)
    return found if found.numel() else found.long()  # an empty list has no dtype


def _keys(pairs: Tensor, queries: Tensor, num_candidates: int, what: str) -> Tensor:
    """Encode each pair as one number: the position of its query among `queries`, and its candidate.

    `queries` are in ascending order. Pairs of other queries are left out. The keys are sorted, without
    duplicates.
    """
    if queries.numel() * num_candidates >= 1 << 63:
        raise ValueError(
            f"full ranking: {queries.numel()} queries with {num_candidates} candidates each, which is 2^63 "
            "pairs or more; rank fewer queries at a time"
        )
    if queries.numel() == 0:
        return queries
    asked = pairs[0].long().contiguous()
    numbers = torch.searchsorted(queries, asked).clamp(max=queries.numel() - 1)
    keys: Tensor = torch.unique((numbers * num_candidates + pairs[1])[queries[numbers] == asked])
    return keys


def _masked_scores(scores: Tensor, queries: Tensor, masked: Tensor, num_candidates: int) -> Tensor:
    """Copy scores to the CPU and set the scores of seen candidates to -inf."""
    instance_of(
        "full ranking: scores", scores, Tensor, "scores_of must return a tensor (queries, candidates)"
    )
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


def _places_in(scores: Tensor, row: Tensor, candidate: Tensor, chunk_bytes: int) -> Places:
    """Places of pairs among all candidates of their rows."""
    above, tied = torch.empty_like(row), torch.empty_like(row)
    for some in torch.arange(row.numel()).split(max(1, chunk_bytes // (16 * scores.shape[1]))):
        own = scores[row[some], candidate[some]].unsqueeze(1)
        of_rows = scores[row[some]]
        above[some], tied[some] = (of_rows > own).sum(1), (of_rows == own).sum(1) - 1
    return Places(above, tied)


def _places_alone(
    places: Places, scores: Tensor, queries: Tensor, row: Tensor, candidate: Tensor, known: Tensor
) -> Places:
    """Places of pairs without the other candidates in `known`."""
    num_candidates = scores.shape[1]
    ends = torch.searchsorted(known, torch.stack([queries, queries + 1]) * num_candidates)
    counts = (ends[1] - ends[0])[row]
    pair = torch.repeat_interleave(torch.arange(row.numel()), counts)
    first = (ends[0][row] - (counts.cumsum(0) - counts))[pair]
    other = known[first + torch.arange(pair.numel())] % num_candidates
    of_other, own = scores[row[pair], other], scores[row, candidate][pair]
    is_other = other != candidate[pair]
    above = places.above - torch.bincount(pair[(of_other > own) & is_other], minlength=row.numel())
    tied = places.tied - torch.bincount(pair[(of_other == own) & is_other], minlength=row.numel())
    return Places(above, tied)


def _pair_sums(places: Places, at: Sequence[int]) -> Tensor:
    """Return hits at each k, and the reciprocal rank repeated for each k, summed over the pairs."""
    count = places.above.numel()
    hits = torch.tensor([places.hits(k) * count for k in at], dtype=torch.float64)
    return torch.stack([hits, torch.full_like(hits, places.mean_reciprocal_rank() * count)])


def _others_of_query(row: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Count the other pairs of each pair's query with a higher and with the same score, int64 (pairs) each.

    `row` has the query of each pair, in ascending order.
    """
    order = scores.argsort(descending=True, stable=True)
    order = order[row[order].argsort(stable=True)]
    _, same, sizes = torch.unique_consecutive(
        torch.stack([row[order].double(), scores[order].double()]), dim=1, return_inverse=True,
        return_counts=True,
    )  # fmt: skip
    above, tied = torch.empty_like(row), torch.empty_like(row)
    above[order] = (sizes.cumsum(0) - sizes)[same] - torch.searchsorted(row, row)
    tied[order] = sizes[same] - 1
    return above, tied


def _sums(
    places: Places, row: Tensor, found: Tensor, at: Sequence[int], others: tuple[Tensor, Tensor]
) -> Tensor:
    """Recall, NDCG and average precision at each k, summed over the queries."""
    sums = []
    for k in at:
        reached = torch.zeros(found.numel(), dtype=torch.float64).index_add_(0, row, places.reached(k))
        gains = torch.zeros(found.numel(), dtype=torch.float64).index_add_(0, row, places.discounted_gains(k))
        best = discounts(min(k, int(found.max()))).cumsum(0)[found.clamp(max=k) - 1]
        precision = torch.zeros_like(reached).index_add_(0, row, places.precisions(k, *others))
        average = precision / found.clamp(max=k)
        sums.append(torch.stack([(reached / found).sum(), (gains / best).sum(), average.sum()]))
    return torch.stack(sums, dim=1)


@dataclass(frozen=True)
class TripleRanking:
    """Ranking of the destinations of triples, of their sources, and the mean over both ends.

    Args:
        destinations: Ranking of the destinations.
        sources: Ranking of the sources.
    Example:
        >>> decoder, rows = khop.models.DistMult(4, relations=2), torch.rand(5, 4)
        >>> ranking = khop.triple_ranking(decoder, rows, rows, torch.tensor([[0], [1], [2]]))
        >>> ranking.mrr == (ranking.destinations.mrr + ranking.sources.mrr) / 2
        True
    """

    destinations: FullRanking
    sources: FullRanking

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank over both ends."""
        return (self.destinations.mrr + self.sources.mrr) / 2

    @property
    def hits(self) -> dict[int, float]:
        """Fraction of ends among the first k, by k."""
        return {k: (hits + self.sources.hits[k]) / 2 for k, hits in self.destinations.hits.items()}


_TRIPLES = "give int64 (3, n): source, relation, destination"


def triple_ranking(
    decoder: object,
    sources: Tensor,
    destinations: Tensor,
    triples: Tensor,
    known: Tensor | None = None,
    at: Sequence[int] = (1, 3, 10),
) -> TripleRanking:
    """Rank both ends of triples among all nodes of their types, with a relational decoder.

    Collective, like `khop.full_ranking`.

    Args:
        decoder: Decoder, such as `khop.models.TransE`.
        sources: Rows of all nodes of the source type (nodes, width).
        destinations: Rows of all nodes of the destination type (nodes, width).
        triples: Triples to rank, int64 (3, n): source, relation, destination.
        known: Triples, int64 (3, m), that are not candidates when a triple with the same relation and other
            end is ranked: give training, validation and test triples for the filtered setting (Bordes et
            al. 2013). Default None: the raw setting.
        at: Values of k for Hits@k, default (1, 3, 10).
    Returns:
        The ranking of both ends.
    Raises:
        ValueError: The triples have another shape or dtype, a relation that the decoder lacks, or a node
            without a row.
    Example:
        >>> decoder, rows = khop.models.TransE(4, relations=2), torch.rand(5, 4)
        >>> triples = torch.tensor([[0, 1], [1, 0], [2, 3]])
        >>> sorted(khop.triple_ranking(decoder, rows, rows, triples, known=triples).hits)
        [1, 3, 10]
    """
    if not isinstance(decoder, RelationDecoder | RowsOfType):
        raise ValueError(
            f"decoder {shown(decoder)}: give a decoder with relations, such as khop.models.TransE"
        )
    triples = _as_tensor("triples", triples, _TRIPLES)
    known = None if known is None else _as_tensor("known", known, _TRIPLES)
    for name, given in (("triples", triples), ("known", known)):
        if given is not None and (given.dim() != 2 or given.shape[0] != 3 or given.dtype != torch.int64):
            raise ValueError(f"{name} {given.dtype} {tuple(given.shape)}: {_TRIPLES}")
    count, move = decoder.relations, sources.device
    every = triples if known is None else torch.cat([triples, known], dim=1)
    if every.numel() and not 0 <= int(every[1].min()) <= int(every[1].max()) < count:
        raise ValueError(
            f"triples: relations from {int(every[1].min())} to {int(every[1].max())}, the decoder has {count}"
        )
    for row, what, rows in ((0, "source", sources), (2, "destination", destinations)):
        wrong = every[row][(every[row] < 0) | (every[row] >= rows.shape[0])]
        if wrong.numel():
            raise ValueError(f"triples: {what} {int(wrong[0])}: the rows have nodes 0 to {rows.shape[0] - 1}")

    def asked(given: Tensor, end: int) -> Tensor:
        """Return queries, a node and a relation as one number, over the candidates: (2, n)."""
        return torch.stack([given[end] * count + given[1], given[2 - end]])

    def of_destinations(queries: Tensor) -> Tensor:
        nodes, relations = (queries // count).to(move), (queries % count).to(move)
        return decoder.grid(sources[nodes], destinations, relations)

    def of_sources(queries: Tensor) -> Tensor:
        nodes, relations = (queries // count).to(move), (queries % count).to(move)
        return decoder.source_grid(sources, destinations[nodes], relations)

    nothing = torch.empty(2, 0, dtype=torch.int64)
    rankings = [
        full_ranking(
            scores_of,
            asked(triples, end),
            nothing,
            candidates.shape[0],
            at,
            known=None if known is None else asked(known, end),
        )
        for scores_of, end, candidates in ((of_destinations, 0, destinations), (of_sources, 2, sources))
    ]
    return TripleRanking(*rankings)


BlockScores = Callable[[slice], Tensor]  # candidates -> (queries, candidates in the slice)


@dataclass(frozen=True, eq=False)
class Best:
    """The best candidates of queries, best first; equal scores by ascending candidate."""

    candidates: Tensor  # int64 (queries, k); -1 where there are fewer than k
    scores: Tensor  # (queries, k); -inf there

    @classmethod
    def of(
        cls,
        scores_of: BlockScores,
        num_candidates: int,
        k: int,
        left_out: tuple[Tensor, Tensor],
        allowed: Tensor | None = None,
        block_size: int = 1 << 16,
    ) -> Best:
        """Rank all candidates for some queries, `block_size` candidates at a time.

        `left_out` are pairs that must not appear, int64 (n): positions of queries, and candidates. `allowed`
        marks the candidates to rank, bool (candidates); None: all. ValueError for scores that are not finite.
        """
        best: Best | None = None
        for span in _spans(num_candidates, block_size):
            scores = scores_of(span).detach().cpu()
            check_scores(scores, "recommend")
            scores = scores.clone()
            if allowed is not None:
                scores[:, ~allowed[span]] = -torch.inf
            query, candidate = left_out
            here = (candidate >= span.start) & (candidate < span.stop)
            scores[query[here], candidate[here] - span.start] = -torch.inf
            found = cls(*_top(scores, k, span.start))
            best = found if best is None else best._with(found, k)
        assert best is not None, "at least one candidate"
        return best._filled(k)

    def _with(self, later: Best, k: int) -> Best:
        """Return the best of both; `later` has higher candidates, so that ties keep their order."""
        scores = torch.cat([self.scores, later.scores], dim=1)
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
        both = torch.cat([self.candidates, later.candidates], dim=1)
        return Best(both.gather(1, order), scores.gather(1, order))

    def _filled(self, k: int) -> Best:
        """Return k columns, with -1 for candidates that may not appear."""
        candidates = self.candidates.masked_fill(self.scores == -torch.inf, -1)
        lacking = (0, k - candidates.shape[1])
        return Best(
            torch.nn.functional.pad(candidates, lacking, value=-1),
            torch.nn.functional.pad(self.scores, lacking, value=-torch.inf),
        )


def _spans(count: int, size: int) -> Iterator[slice]:
    for first in range(0, count, size):
        yield slice(first, min(count, first + size))


def _top(scores: Tensor, k: int, first: int) -> tuple[Tensor, Tensor]:
    """Return the best candidates of a block and their scores, (queries, at most k) each."""
    k = min(k, scores.shape[1])
    values, at = scores.topk(k, dim=1)
    # topk takes any of the candidates that tie for the last place; the first ones are wanted.
    last = values[:, -1:]
    is_cut = (scores == last).sum(1) > (values == last).sum(1)
    if is_cut.any():
        at[is_cut] = scores[is_cut].sort(dim=1, descending=True, stable=True).indices[:, :k]
    at = at.sort(dim=1).values
    order = scores.gather(1, at).sort(dim=1, descending=True, stable=True).indices
    at = at.gather(1, order)
    return at + first, scores.gather(1, at)
