"""Rows that batches read take the steps of torch's SparseAdam; other rows stay as they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from khop.models.node_embedding import NodeEmbedding
from khop.training.optimizer_settings import RowAdam

BATCHES = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4)


@settings(max_examples=20)
@given(batches=BATCHES)
def test_rows_take_the_steps_of_sparse_adam(batches: list[list[int]]) -> None:
    table = NodeEmbedding(10, 3, "sparse")
    plain = torch.nn.Embedding(10, 3, sparse=True)
    plain.load_state_dict({"weight": table.weight.detach().clone()})
    own, other = RowAdam(table, lr=0.1), torch.optim.SparseAdam(plain.parameters(), lr=0.1)
    scale = torch.arange(1.0, 4.0)
    for ids in batches:
        rows = torch.tensor(ids, dtype=torch.int64)
        for module, optimizer in ((table, own), (plain, other)):
            optimizer.zero_grad()
            (module(rows) ** 2 * scale).sum().backward()
            optimizer.step()
    torch.testing.assert_close(table.weight, plain.weight)


def test_discarded_gradients_change_nothing() -> None:
    table = NodeEmbedding(4, 2, "sparse")
    before, optimizer = table.weight.detach().clone(), RowAdam(table)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(table.weight, before)


def test_a_model_without_such_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no khop\.models\.NodeEmbedding"):
        RowAdam(torch.nn.Linear(2, 2))
