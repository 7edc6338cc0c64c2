"""Embeddings train as torch's embeddings with sparse gradients do, and keep their state like parameters."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import khop
from khop.models.node_embedding import NodeEmbedding, first_rows, summed
from support.small_rated import ITEM, USER, write_rated

IDS = st.lists(st.integers(0, 5), max_size=12)


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=5))
def test_rows_take_the_course_of_torchs_sparse_embedding(steps: list[tuple[list[int], list[int]]]) -> None:
    """Two lookups per step, with repeats and without any; what is not read stays."""
    rows = NodeEmbedding(6, 3).double()
    embedding = nn.Embedding(6, 3, sparse=True, dtype=torch.float64)
    embedding.load_state_dict(rows.state_dict())
    ours, theirs = khop.RowAdam(rows, lr=0.1), torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
    for first, second in steps:
        for table, optimizer in ((rows, ours), (embedding, theirs)):
            optimizer.zero_grad()
            looked_up = [table(torch.tensor(ids, dtype=torch.int64)) for ids in (first, second)]
            (looked_up[0].tanh().sum() + looked_up[1].square().sum()).backward()
            optimizer.step()
    torch.testing.assert_close(rows.weight.data, embedding.weight.data, rtol=1e-12, atol=1e-14)


def test_gradients_of_two_backward_passes_add_up_and_zero_grad_drops_them() -> None:
    rows = NodeEmbedding(4, 2)
    optimizer = khop.RowAdam(rows)
    rows(torch.tensor([1, 1, 3])).sum().backward()
    rows(torch.tensor([3])).sum().backward()
    optimizer.exchange()
    assert rows.weight.grad.to_dense().tolist() == [[0, 0], [2, 2], [0, 0], [2, 2]]
    rows(torch.tensor([0])).sum().backward()
    optimizer.zero_grad()
    optimizer.exchange()
    assert rows.weight.grad.to_dense().count_nonzero() == 0


def test_a_lookup_without_gradients_leaves_nothing_behind() -> None:
    rows = NodeEmbedding(4, 2)
    with torch.no_grad():
        assert not rows(torch.tensor([1])).requires_grad
    looked_up = rows(torch.tensor([1, 2]))
    looked_up.sum()
    del looked_up
    gc.collect()
    ids, gradients = rows.take_gradients()
    assert (ids.numel(), gradients.shape) == (0, (0, 2))


def test_a_rank_draws_its_rows_as_if_it_drew_all() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        whole = first_rows(40_000, 3, 0, 40_000)
        after = torch.rand(1)
        for first, last in ((0, 10), (16_000, 33_000), (39_999, 40_000), (5, 5)):
            torch.manual_seed(1)
            assert torch.equal(first_rows(40_000, 3, first, last), whole[first:last])
            assert torch.equal(torch.rand(1), after)
        numbers = torch.randperm(40_000)
        torch.manual_seed(1)
        assert torch.equal(first_rows(40_000, 3, 16_000, 33_000, numbers), whole[numbers[16_000:33_000]])


@given(st.lists(st.integers(0, 4), max_size=20))
def test_sums_are_of_each_id_in_order(ids: list[int]) -> None:
    values = torch.arange(len(ids), dtype=torch.float64).unsqueeze(1)
    once, sums = summed(torch.tensor(ids, dtype=torch.int64), values)
    assert once.tolist() == sorted(set(ids))
    expected = [
        sum(float(place) for place, other in enumerate(ids) if other == one) for one in sorted(set(ids))
    ]
    assert sums.flatten().tolist() == expected


def test_the_rest_of_a_model_does_not_see_them() -> None:
    """Adam of all parameters changes no row, and the state dict has them whole."""
    rows = NodeEmbedding(4, 2)
    model = nn.Sequential(rows, nn.Linear(2, 1))
    before = rows.weight.clone()
    adam = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)
    model(torch.tensor([0, 1])).sum().backward()
    adam.step()
    assert torch.equal(rows.weight, before)
    assert model.state_dict()["0.weight"].shape == (4, 2)
    with khop.models.gathered(model):
        assert torch.equal(model.state_dict()["0.weight"], before)
    khop.RowAdam(model, lr=0.1).step()
    assert not torch.equal(rows.weight[:2], before[:2])
    assert torch.equal(rows.weight[2:], before[2:])


@pytest.mark.parametrize(
    ("count", "width", "kind", "sentence"),
    [
        (-1, 2, "sparse", r"embeddings \(-1, 2\): the count must be at least 0, the width at least 1"),
        (3, 0, "sparse", r"embeddings \(3, 0\)"),
        (3, 2, "dense", "embedding update 'dense': must be 'sparse' or 'sharded'"),
    ],
)
def test_a_table_that_cannot_be_is_refused(count: int, width: int, kind: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        NodeEmbedding(count, width, kind)


def test_there_have_to_be_rows_to_train() -> None:
    with pytest.raises(ValueError, match=r"has no khop\.models\.NodeEmbedding: add one"):
        khop.RowAdam(nn.Linear(2, 2))


def test_a_model_of_a_graph_has_them_where_a_type_has_no_columns(tmp_path: Path) -> None:
    graph = khop.open_graph(write_rated(tmp_path / "rated"))
    for kind in ("dense", "sparse", "sharded"):
        model = khop.models.SAGE.for_graph(graph, hidden=4, embedding=3, embedding_update=kind)
        tables = [m for m in model.modules() if isinstance(m, NodeEmbedding)]
        assert len(tables) == (0 if kind == "dense" else 2)
        assert model.state_dict()[f"encoder.tables.node:{USER}.weight"].shape == (300, 3)
    with pytest.raises(ValueError, match="embedding_update 'spares': must be one of dense, sparse, sharded"):
        khop.models.RGCN.for_graph(graph, target=ITEM, embedding=3, embedding_update="spares")
