"""The sampler of khop's loaders: a pure function of inputs and draws, for the settings at hand.

Links and negatives of a batch lie as torch_geometric lays them.

Negatives of links: uniform, by weight, and drawn apart for both ends.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput

from khop.pyg import LinkNeighborLoader
from khop.pyg.keyed import Draws
from khop.pyg.sampler import NeighborSampler
from pyg.pyg_cases import BOUGHT, BUYS, PAIRS, plain, typed


def ring(nodes: int = 12) -> Data:
    ids = torch.arange(nodes)
    ends = [torch.stack([(ids + step) % nodes, ids]) for step in (1, 2, 3)]
    return Data(edge_index=torch.cat(ends, dim=1), num_nodes=nodes)


def test_equal_draws_give_equal_samples_and_other_steps_others() -> None:
    keyed = NeighborSampler(ring(), [2, 2]).keyed()
    inputs = NodeSamplerInput(torch.arange(3), torch.tensor([4, 0, 7]))
    first, again = (keyed.sample_nodes(inputs, Draws(5, step=1)) for _ in range(2))
    assert torch.equal(first.edge, again.edge)
    assert first.node[:3].tolist() == [4, 0, 7]
    others = [keyed.sample_nodes(inputs, Draws(5, step=step)) for step in range(2, 6)]
    assert any(not torch.equal(first.edge, other.edge) for other in others)


def test_a_setting_that_is_assigned_later_is_followed() -> None:
    sampler = NeighborSampler(ring(), [2])
    before = sampler.keyed()
    assert sampler.keyed() is before
    sampler.num_neighbors = [3]
    assert sampler.keyed() is not before
    inputs = NodeSamplerInput(torch.arange(1), torch.tensor([4]))
    assert sampler.keyed().sample_nodes(inputs, Draws(5)).row.numel() == 3


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


def negatives_first(data: Data | HeteroData, **settings: Any) -> Any:
    torch.manual_seed(0)
    return next(iter(LinkNeighborLoader(data, [2], **{"batch_size": 5, **settings})))


def test_negatives_are_drawn_alike_and_by_weight() -> None:
    data = Data(num_nodes=8, edge_index=torch.empty(2, 0, dtype=torch.int64))
    pairs = torch.zeros(2, 4000, dtype=torch.int64)
    weights = torch.tensor([0, 1, 2, 0, 4, 1, 0, 0]).float()
    sampling = NegativeSampling("binary", 1, dst_weight=weights)
    batch = negatives_first(data, edge_label_index=pairs, neg_sampling=sampling, batch_size=4000)
    sources, destinations = batch.n_id[batch.edge_label_index[:, 4000:]]
    alike = torch.bincount(sources, minlength=8) / 4000
    torch.testing.assert_close(alike, torch.full((8,), 1 / 8), atol=0.025, rtol=0)
    by_weight = torch.bincount(destinations, minlength=8) / 4000
    torch.testing.assert_close(by_weight, weights / 8, atol=0.03, rtol=0)
    assert by_weight[weights == 0].sum() == 0


def test_weights_that_change_between_batches_count() -> None:
    """Also in place: torch_geometric reads them at every draw."""
    data = Data(num_nodes=8, edge_index=torch.empty(2, 0, dtype=torch.int64))
    sampling = NegativeSampling("triplet", 3, dst_weight=torch.eye(8)[2])
    loader = LinkNeighborLoader(data, [0], torch.zeros(2, 5, dtype=torch.int64), neg_sampling=sampling)
    batch = loader(torch.arange(5))
    assert batch.n_id[batch.dst_neg_index].unique().tolist() == [2]
    assert sampling.dst_weight is not None
    sampling.dst_weight.copy_(torch.eye(8)[6])
    batch = loader(torch.arange(5))
    assert batch.n_id[batch.dst_neg_index].unique().tolist() == [6]
    sampling.dst_weight = None
    batch = loader(torch.arange(5))
    assert batch.n_id[batch.dst_neg_index].unique().numel() > 1


def test_the_ends_of_a_negative_are_drawn_apart() -> None:
    """Of one node type, by the same weights."""
    data = Data(num_nodes=50, edge_index=torch.empty(2, 0, dtype=torch.int64))
    batch = negatives_first(
        data, edge_label_index=torch.zeros(2, 400, dtype=torch.int64), neg_sampling="binary"
    )
    sources, destinations = batch.n_id[batch.edge_label_index[:, 5:]]
    assert sources.tolist() != destinations.tolist()


@pytest.mark.parametrize("name", ["src_weight", "dst_weight"])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3), r"needs to match the number of nodes 25 \(got 3\)"),
        (1.0 - torch.eye(25)[4] * 3, "is -2.0 for node 4: weights are finite numbers, 0 or more"),
        (torch.ones(25) / torch.eye(25)[4], "is inf for node 0"),
        (torch.ones(25) * float("nan"), "is nan for node 0"),
        (torch.zeros(25), "is 0 for all 25 nodes"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_named(name: str, weights: torch.Tensor, message: str) -> None:
    sampling = NegativeSampling("binary", **{name: weights})
    with pytest.raises(ValueError, match=message):
        LinkNeighborLoader(plain(), [2], PAIRS, neg_sampling=sampling)
