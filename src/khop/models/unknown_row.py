"""The row `unknown`: an embedding of nodes that have none, trained in place of other nodes' embeddings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from khop.batch import Batch
from khop.draw import DrawKey, Purpose
from khop.kernels.dropout import current_dropout_key
from khop.kernels.philox import mix64_reference, signed

_STEPS = 1 << 31  # rates are rounded to this number of steps


class UnknownRow(nn.Module):
    """A row for nodes without an embedding. Training reads it in place of some nodes' embeddings.

    A step drops a node with probability `rate`, by its id, the step, the epoch and `key`, which torch's
    generator draws here. All ranks drop the same nodes, and a resumed run those that it would have dropped.
    Evaluation drops none. `numbers`, int64 (nodes), take the place of ids that were renumbered.
    """

    key: Tensor

    def __init__(self, width: int, rate: float, numbers: Tensor | None = None) -> None:
        super().__init__()
        if not 0 < rate < 1:
            raise ValueError(f"unknown {rate}: must be a probability above 0 and below 1")
        self.rate = rate
        self.numbers = numbers  # no buffer: checkpoints and DistributedDataParallel leave it out
        self.weight = nn.Parameter(torch.zeros(width))
        self.register_buffer("key", torch.empty((), dtype=torch.int64).random_())

    def forward(self, rows: Tensor, ids: Tensor, batch: Batch) -> Tensor:
        """Return (nodes, width): the embeddings `rows` of the nodes `ids`, or the row of dropped nodes."""
        if not self.training:
            return rows
        return torch.where(self.dropped(ids, batch).unsqueeze(1), self.weight.to(rows.dtype), rows)

    def dropped(self, ids: Tensor, batch: Batch) -> Tensor:
        """Return bool (nodes): the nodes that this step drops."""
        of_step = (
            current_dropout_key()
        )  # of a recorded step, for which the numbers of its batch stay the same
        if of_step is None:
            # `full`, not `tensor`: its value needs no copy, for which the host would wait.
            value = signed(DrawKey.of(0, Purpose.DROPOUT, batch.epoch, batch.step).value)
            of_step = torch.full((), value, dtype=torch.int64, device=self.key.device)
        if self.numbers is not None:
            ids = self.numbers[ids]
        words = mix64_reference(ids ^ mix64_reference(self.key ^ of_step.to(self.key.device)))
        return words >> 33 & (_STEPS - 1) < round(self.rate * _STEPS)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> UnknownRow:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.numbers is not None:
            self.numbers = fn(self.numbers)
        return self
