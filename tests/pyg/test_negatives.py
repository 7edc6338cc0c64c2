"""Negatives of links: uniform, by weight, and drawn apart for both ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from khop.pyg import LinkNeighborLoader
from pyg.pyg_cases import PAIRS, plain


def first(data: Data | HeteroData, **settings: Any) -> Any:
    torch.manual_seed(0)
    return next(iter(LinkNeighborLoader(data, [2], **{"batch_size": 5, **settings})))


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
