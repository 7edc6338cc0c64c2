"""What LinkNeighborLoader promises beside the batches that test_recorded.py compares: negatives above all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pyg_cases import BOUGHT, BUYS, PAIRS, facts, plain, typed
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from khop.pyg import LinkNeighborLoader, NeighborSampler

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


def test_negatives_are_drawn_alike_and_by_weight() -> None:
    data = Data(num_nodes=8, edge_index=torch.empty(2, 0, dtype=torch.int64))
    pairs = torch.zeros(2, 4000, dtype=torch.int64)
    weights = torch.tensor([0, 1, 2, 0, 4, 1, 0, 0]).float()
    sampling = NegativeSampling("binary", 1, dst_weight=weights)
    batch = first(data, edge_label_index=pairs, neg_sampling=sampling, batch_size=4000)
    sources, destinations = batch.n_id[batch.edge_label_index[:, 4000:]]
    alike = torch.bincount(sources, minlength=8) / 4000
    torch.testing.assert_close(alike, torch.full((8,), 1 / 8), atol=0.025, rtol=0)
    by_weight = torch.bincount(destinations, minlength=8) / 4000
    torch.testing.assert_close(by_weight, weights / 8, atol=0.03, rtol=0)
    assert by_weight[weights == 0].sum() == 0


def test_negatives_belong_to_links_and_not_to_batches() -> None:
    """Link for link they are the same in batches of another size, but for the key of the step."""
    sampler = NeighborSampler(plain(), [0], disjoint=True)
    loader = LinkNeighborLoader(
        plain(), [0], PAIRS, neg_sampling="binary", neighbor_sampler=sampler, batch_size=5
    )
    torch.manual_seed(0)
    once = facts(next(iter(loader)))
    torch.manual_seed(0)
    assert facts(next(iter(loader))) == once
    torch.manual_seed(1)
    assert facts(next(iter(loader))) != once


def test_workers_change_nothing() -> None:
    def epoch(workers: int) -> list[dict[str, Any]]:
        torch.manual_seed(3)
        settings = {"neg_sampling": "binary", "batch_size": 7, "shuffle": True, "num_workers": workers}
        return [facts(batch) for batch in LinkNeighborLoader(plain(), [2, 2], **settings)]

    assert epoch(2) == epoch(0)


def test_one_batch_can_be_asked_for() -> None:
    loader = LinkNeighborLoader(plain(), [-1], PAIRS, batch_size=2)
    batch = loader(torch.tensor([0, 3]))
    assert torch.equal(batch.n_id[batch.edge_label_index], PAIRS[:, [0, 3]])
    loader.filter_per_worker = False
    assert torch.equal(loader([0, 3]).n_id, batch.n_id)


def test_a_transform_sees_the_batch() -> None:
    settings = {"transform": lambda batch: batch.num_nodes, "transform_sampler_output": lambda output: output}
    assert first(plain(), edge_label_index=PAIRS, **settings) > 0


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="'edge_label' needs to be undefined for 'triplet'"):
        LinkNeighborLoader(plain(), [2], PAIRS, torch.ones(5), neg_sampling="triplet")
    with pytest.raises(ValueError, match="conflicting 'edge_label_time' and 'time_attr'"):
        LinkNeighborLoader(plain(), [2], PAIRS, edge_label_time=torch.arange(5))
    sampling = NegativeSampling("binary", dst_weight=torch.ones(3))
    with pytest.raises(ValueError, match=r"needs to match the number of nodes 25 \(got 3\)"):
        first(plain(), edge_label_index=PAIRS, neg_sampling=sampling)
