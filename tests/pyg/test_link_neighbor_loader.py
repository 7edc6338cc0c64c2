"""Promises of LinkNeighborLoader beside the batches that test_recorded.py compares."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from khop.pyg import LinkNeighborLoader, NeighborSampler
from khop.pyg.keyed import Draws
from pyg.pyg_cases import PAIRS, facts, plain


def first(data: Data | HeteroData, **settings: Any) -> Any:
    torch.manual_seed(0)
    return next(iter(LinkNeighborLoader(data, [2], **{"batch_size": 5, **settings})))


def test_negatives_belong_to_links() -> None:
    """What a link's negatives are depends on its place in the epoch, and not on the links beside it."""
    sampler = NeighborSampler(plain(), [0], disjoint=True)
    inputs = EdgeSamplerInput(None, PAIRS[0], PAIRS[1])

    def negatives(index: torch.Tensor, position: int) -> torch.Tensor:
        draws = Draws(3, position=position)
        out = sampler.keyed().sample_edges(inputs[index], NegativeSampling("triplet", 4), draws)
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
