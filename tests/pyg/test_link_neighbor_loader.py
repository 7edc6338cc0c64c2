"""What LinkNeighborLoader promises beside the batches that test_recorded.py compares: negatives above all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from khop.pyg import LinkNeighborLoader, NeighborSampler
from khop.pyg.sampler import Draws
from pyg.pyg_cases import BOUGHT, BUYS, PAIRS, facts, plain, typed

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
    batch = first(data, edge_label_index=torch.zeros(2, 400, dtype=torch.int64), neg_sampling="binary")
    sources, destinations = batch.n_id[batch.edge_label_index[:, 5:]]
    assert sources.tolist() != destinations.tolist()


def test_negatives_belong_to_links() -> None:
    """What a link's negatives are depends on its place in the epoch, and not on the links beside it."""
    sampler = NeighborSampler(plain(), [0], disjoint=True)
    inputs = EdgeSamplerInput(None, PAIRS[0], PAIRS[1])

    def negatives(index: torch.Tensor, position: int) -> torch.Tensor:
        draws = Draws(3, position=position)
        out = sampler.sample_edges(inputs[index], NegativeSampling("triplet", 4), draws)
        return out.node[out.metadata[3]]

    whole = negatives(torch.arange(5), 0)
    assert torch.equal(negatives(torch.arange(2, 5), 2), whole[2:])
    assert not torch.equal(negatives(torch.arange(2, 5), 3), whole[2:])


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
