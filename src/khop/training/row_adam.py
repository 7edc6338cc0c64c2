"""Optimizer of embedding rows: torch's SparseAdam with gradients of the rows that any rank has read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from khop.arguments import instance_of
from khop.models.node_embedding import NodeEmbedding, summed
from khop.models.table_rows import gathered_from_all, sent_to_owners


class RowAdam(torch.optim.SparseAdam):
    """SparseAdam over a model's `khop.models.NodeEmbedding`, used next to another optimizer.

    A row that no rank has read since the last step stays unchanged, and so do its moments. A step first
    exchanges gradients and is therefore collective: every rank must call it, even if its batch has read no
    rows.
    """

    def __init__(self, model: nn.Module, lr: float = 1e-3) -> None:
        instance_of("model", model, nn.Module, "must be a torch.nn.Module")
        self._tables = [module for module in model.modules() if isinstance(module, NodeEmbedding)]
        if not self._tables:
            raise ValueError(
                "the model has no khop.models.NodeEmbedding: add one, or give "
                'a khop model embedding_update="sparse"; or leave RowAdam out'
            )
        self._is_exchanged = False
        super().__init__([table.weight for table in self._tables], lr=lr)

    def exchange(self) -> None:
        """Average the gradients over the ranks: the first half of a step, for separate use. Collective."""
        for table in self._tables:
            table.weight.grad = _averaged(table)
        self._is_exchanged = True

    def gradients(self) -> list[tuple[Tensor, Literal["whole", "sharded"]]]:
        """Return the exchanged gradients: of whole tables, or of the rows that this rank holds."""
        return [
            (table.weight.grad, "sharded" if table.is_sharded else "whole")
            for table in self._tables
            if table.weight.grad is not None
        ]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
        """Exchange gradients, unless that is done, and update the rows that were read."""
        if not self._is_exchanged:
            self.exchange()
        self._is_exchanged = False
        return super().step(closure)  # type: ignore[no-untyped-call]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard gradients that no step has used."""
        for table in self._tables:
            table.take_gradients()
            table.weight.grad = None
        self._is_exchanged = False


def _averaged(table: NodeEmbedding) -> Tensor:
    """Return the gradient of this rank's rows, averaged over the ranks, in the shape of `table.weight`.

    Gradients are added in the order of the ranks, so every rank that holds a row gets the same bits.
    """
    ids, gradients = table.take_gradients()
    group = table.group()
    if group.world_size > 1:
        if table.is_sharded:
            ids, gradients = sent_to_owners(group, table.bounds, ids, gradients)
        else:
            ids, gradients = gathered_from_all(group, ids, gradients)
        ids, gradients = summed(ids, gradients / group.world_size)
    held = (ids - table.first).unsqueeze(0)
    shape = table.weight.shape
    return torch.sparse_coo_tensor(held, gradients, shape, is_coalesced=True, check_invariants=False)
