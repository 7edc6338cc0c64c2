"""The best candidates of each query by their scores, without the scores of all pairs in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.training.ranking import check_scores

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
