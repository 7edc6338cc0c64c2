"""Ids shared out to their owners, and answers put back into the order of the questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import Frontier, Neighbors, Positives
from khop.kernels.memory import pooled
from khop.kernels.owners import join_drawn, owner_order


@dataclass(frozen=True, eq=False)
class ByOwner:
    """Where each of some rows goes. Rows of one owner keep their order."""

    counts: tuple[int, ...]  # of each owner
    order: Tensor | None  # int64 (rows): the rows owner by owner; None: they stand so already

    @classmethod
    def of(cls, ids: Tensor, bounds: Sequence[int]) -> ByOwner:
        """By ids of which `bounds`, ascending, say where each owner's begin and the last one's end."""
        return cls((ids.numel(),), None) if len(bounds) == 2 else cls(*owner_order(ids, bounds))

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
        pieces = [(drawn.offsets, drawn.nodes, drawn.edges) for drawn in answers]
        return Neighbors(*join_drawn(pieces, self.order))


def first_outside(ids: Tensor, bounds: Sequence[int]) -> int:
    """The position of the first id that no owner has, or -1."""
    if not ids.numel():
        return -1
    low, high = (int(end) for end in ids.aminmax())
    if bounds[0] <= low and high < bounds[-1]:
        return -1
    return int(((ids < bounds[0]) | (ids >= bounds[-1])).int().argmax())
