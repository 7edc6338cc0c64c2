"""Links and negatives of a batch lie as torch_geometric lays them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from khop.pyg import LinkNeighborLoader
from pyg.pyg_cases import BOUGHT, BUYS, PAIRS, plain, typed

KNOWS = ("user", "knows", "user")


def first(data: Data | HeteroData, **settings: Any) -> Any:
    torch.manual_seed(0)
    return next(iter(LinkNeighborLoader(data, [2], **{"batch_size": 5, **settings})))


@pytest.mark.parametrize(("amount", "count"), [(1, 5), (0.5, 3), (1.5, 8), (3, 15)])
@pytest.mark.parametrize("disjoint", [False, True])
def test_binary_negatives_stand_behind_the_links(amount: float, count: int, disjoint: bool) -> None:
    batch = first(
        plain(), edge_label_index=PAIRS, neg_sampling=NegativeSampling("binary", amount), disjoint=disjoint
    )
    assert batch.edge_label_index.shape == (2, 5 + count)
    assert batch.edge_label.dtype == torch.float32
    assert batch.edge_label.tolist() == [1.0] * 5 + [0.0] * count
    assert torch.equal(batch.n_id[batch.edge_label_index[:, :5]], PAIRS)
    if disjoint:
        trees = batch.batch[batch.edge_label_index]
        assert torch.equal(trees[0], trees[1])
        assert trees[0].tolist() == [number % 5 for number in range(5 + count)]


def test_the_ratio_is_a_short_way_to_say_binary() -> None:
    batch = first(plain(), edge_label_index=PAIRS, neg_sampling_ratio=2.0)
    assert batch.edge_label.tolist() == [1.0] * 5 + [0.0] * 10
    assert "edge_label" not in first(plain(), edge_label_index=PAIRS, neg_sampling_ratio=0.0)


def test_labels_of_classes_make_room_for_negatives() -> None:
    batch = first(plain(), edge_label_index=PAIRS, edge_label=torch.arange(5), neg_sampling="binary")
    assert batch.edge_label.tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]
    assert batch.edge_label.dtype == torch.int64


@pytest.mark.parametrize("amount", [1, 3])
@pytest.mark.parametrize("disjoint", [False, True])
def test_triplets_name_their_ends(amount: int, disjoint: bool) -> None:
    batch = first(
        plain(), edge_label_index=PAIRS, neg_sampling={"mode": "triplet", "amount": amount}, disjoint=disjoint
    )
    assert batch.n_id[batch.src_index].tolist() == PAIRS[0].tolist()
    assert batch.n_id[batch.dst_pos_index].tolist() == PAIRS[1].tolist()
    assert batch.dst_neg_index.shape == ((5,) if amount == 1 else (5, amount))
    assert "edge_label_index" not in batch
    if disjoint:
        of_links = batch.batch[batch.dst_neg_index].view(5, amount)
        assert of_links.tolist() == [[link] * amount for link in range(5)]


@pytest.mark.parametrize(("edge_type", "pairs"), [(BUYS, BOUGHT), (KNOWS, torch.tensor([[3, 0], [1, 8]]))])
@pytest.mark.parametrize("disjoint", [False, True])
def test_typed_triplets_lie_with_their_types(edge_type: Any, pairs: torch.Tensor, disjoint: bool) -> None:
    triplets = NegativeSampling("triplet", 2)
    batch = first(typed(), edge_label_index=(edge_type, pairs), neg_sampling=triplets, disjoint=disjoint)
    source, destination = batch[edge_type[0]], batch[edge_type[2]]
    assert source.n_id[source.src_index].tolist() == pairs[0].tolist()
    assert destination.n_id[destination.dst_pos_index].tolist() == pairs[1].tolist()
    assert destination.dst_neg_index.shape == (pairs.shape[1], 2)


def test_typed_binary_negatives_are_of_their_types() -> None:
    batch = first(typed(), edge_label_index=(BUYS, BOUGHT), neg_sampling="binary", batch_size=4)
    pairs = batch[BUYS].edge_label_index
    assert pairs.shape == (2, 8)
    assert batch["user"].n_id[pairs[0]].max() < 9
    assert torch.equal(batch["item"].n_id[pairs[1, :4]], BOUGHT[1])
