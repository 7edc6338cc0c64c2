"""Split ids by owner, and restore the original order in the answers of the owners."""

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
    """Rows grouped by owner. Rows of one owner keep their order."""

    counts: tuple[int, ...]  # rows of each owner
    order: Tensor | None  # int64 (rows): row positions owner by owner; None: rows are already in this order

    @classmethod
    def of(cls, ids: Tensor, bounds: Sequence[int]) -> ByOwner:
        """Group ids by owner. `bounds` ascend: the first id of each owner, then the end of the last range."""
        return cls((ids.numel(),), None) if len(bounds) == 2 else cls(*owner_order(ids, bounds))

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """Split rows of shape (rows, ...) into the rows of each owner."""
        return (rows if self.order is None else rows[self.order]).split_with_sizes(self.counts)

    def frontiers(self, frontier: Frontier) -> list[Frontier]:
        """Split a frontier into the frontier of each owner."""
        fields = {name: self.split(values) for name, values in frontier.fields.items()}
        return [
            Frontier(nodes, **{name: of_owners[owner] for name, of_owners in fields.items()})
            for owner, nodes in enumerate(self.split(frontier.nodes))
        ]

    def positives(self, positives: Positives) -> list[Positives]:
        """Split links into the links of each owner; the rows are the sources."""
        nothing = [None] * len(self.counts)
        until = nothing if positives.until is None else self.split(positives.until)
        rows = zip(self.split(positives.sources), self.split(positives.positions), until, strict=True)
        return [Positives(*of_owner, positives.time_column) for of_owner in rows]

    def joined(self, answers: Sequence[Tensor]) -> Tensor:
        """Join the answers of all owners, one row per row asked: shape (rows, ...), in the original order."""
        if len(answers) == 1:
            return answers[0]
        # Write to pooled memory, straight to the final place: fresh pages cost more than the gather itself.
        out = pooled((sum(self.counts), *answers[0].shape[1:]), answers[0].dtype)
        if self.order is None:
            return torch.cat(list(answers), out=out)
        for places, rows in zip(self.order.split_with_sizes(self.counts), answers, strict=True):
            out.index_copy_(0, places, rows)
        return out

    def neighbors(self, answers: Sequence[Neighbors]) -> Neighbors:
        """Join the neighbors drawn by each owner, as if a single owner had drawn all of them."""
        if len(answers) == 1:
            return answers[0]
        pieces = [(drawn.offsets, drawn.nodes, drawn.edges) for drawn in answers]
        weights = [drawn.weights.view(torch.int32) for drawn in answers if drawn.weights is not None]
        if not weights:
            return Neighbors(*join_drawn(pieces, self.order))
        words = [(offsets, of_owner, None) for (offsets, _, _), of_owner in zip(pieces, weights, strict=True)]
        return Neighbors(
            *join_drawn(pieces, self.order), join_drawn(words, self.order)[1].view(torch.float32)
        )


def first_outside(ids: Tensor, bounds: Sequence[int]) -> int:
    """Return the position of the first id outside `bounds`, which no owner has, or -1."""
    if not ids.numel():
        return -1
    low, high = (int(end) for end in ids.aminmax())
    if bounds[0] <= low and high < bounds[-1]:
        return -1
    return int(((ids < bounds[0]) | (ids >= bounds[-1])).int().argmax())
