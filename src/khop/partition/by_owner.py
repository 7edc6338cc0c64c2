"""Ids shared out to their owners, and answers put back into the order of the questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from khop.draw import Frontier, Neighbors, Positives
from khop.kernels.gather import gather
from khop.kernels.memory import pooled


@dataclass(frozen=True, eq=False)
class ByOwner:
    """Where each of some rows goes. Rows of one owner keep their order."""

    counts: tuple[int, ...]  # of each owner
    order: Tensor | None  # int64 (rows): the rows owner by owner; None: they stand so already

    @classmethod
    def of(cls, ids: Tensor, bounds: Sequence[int]) -> ByOwner:
        """By ids of which `bounds`, ascending, say where each owner's begin and the last one's end."""
        if len(bounds) == 2:
            return cls((ids.numel(),), None)
        owners = torch.searchsorted(torch.tensor(bounds[1:-1]), ids.long(), right=True)
        counts = tuple(torch.bincount(owners, minlength=len(bounds) - 1).tolist())
        if bool((owners[1:] >= owners[:-1]).all()):
            return cls(counts, None)
        # NumPy sorts numbers of 16 bits by counting them, which torch does not.
        order = np.argsort(owners.to(torch.int16).numpy(), kind="stable")
        return cls(counts, torch.from_numpy(order))

    def first(self, count: int) -> ByOwner:
        """Of the first `count` rows alone."""
        order = torch.arange(sum(self.counts)) if self.order is None else self.order
        pieces = [
            rows[: int(torch.searchsorted(rows, count))] for rows in order.split_with_sizes(self.counts)
        ]
        return ByOwner(tuple(map(len, pieces)), None if self.order is None else torch.cat(pieces))

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """(rows, ...), the rows of each owner."""
        return (rows if self.order is None else rows[self.order]).split_with_sizes(self.counts)

    def frontiers(self, frontier: Frontier) -> list[Frontier]:
        """The frontier of each owner."""
        nothing = [None] * len(self.counts)
        until = nothing if frontier.until is None else self.split(frontier.until)
        tree = nothing if frontier.tree is None else self.split(frontier.tree)
        return [Frontier(*rows) for rows in zip(self.split(frontier.nodes), until, tree, strict=True)]

    def positives(self, positives: Positives) -> list[Positives]:
        """The links of each owner, of which the rows are the sources."""
        nothing = [None] * len(self.counts)
        until = nothing if positives.until is None else self.split(positives.until)
        rows = zip(self.split(positives.sources), self.split(positives.positions), until, strict=True)
        return [Positives(*of_owner, positives.time_column) for of_owner in rows]

    def joined(self, answers: Sequence[Tensor]) -> Tensor:
        """(rows, ...): the answers of all owners, each with a row per question, in the order of all."""
        if len(answers) == 1:
            return answers[0]
        # Into pooled memory, and in place at once: fresh pages for rows cost more than gathering them does.
        out = pooled((sum(self.counts), *answers[0].shape[1:]), answers[0].dtype)
        if self.order is None:
            return torch.cat(list(answers), out=out)
        for places, rows in zip(self.order.split_with_sizes(self.counts), answers, strict=True):
            out.index_copy_(0, places, rows)
        return out

    def neighbors(self, answers: Sequence[Neighbors]) -> Neighbors:
        """What every owner drew for its rows, as if one had drawn all."""
        if len(answers) == 1:
            return answers[0]
        degrees = torch.cat([drawn.offsets.diff() for drawn in answers])
        nodes = torch.cat([drawn.nodes for drawn in answers])
        of_owners = [drawn.edges for drawn in answers if drawn.edges is not None]
        edges = torch.cat(of_owners) if of_owners else None
        if self.order is None:
            return Neighbors(_offsets(degrees), nodes, edges)
        places = self._places()
        starts = (degrees.cumsum(0) - degrees)[places]
        degrees = degrees[places]
        offsets = _offsets(degrees)
        shifts = torch.repeat_interleave(starts - offsets[:-1], degrees, output_size=nodes.numel())
        wanted = torch.arange(nodes.numel()).add_(shifts)
        return Neighbors(offsets, gather(nodes, wanted), None if edges is None else gather(edges, wanted))

    def _places(self) -> Tensor:
        """int64 (rows): where each row stands owner by owner."""
        assert self.order is not None
        places = torch.empty_like(self.order)
        places[self.order] = torch.arange(self.order.numel())
        return places


def first_outside(ids: Tensor, bounds: Sequence[int]) -> int:
    """The position of the first id that no owner has, or -1."""
    if not ids.numel():
        return -1
    low, high = (int(end) for end in ids.aminmax())
    if bounds[0] <= low and high < bounds[-1]:
        return -1
    return int(((ids < bounds[0]) | (ids >= bounds[-1])).int().argmax())


def _offsets(degrees: Tensor) -> Tensor:
    return torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
