"""Links of a batch among its messages are counted once, or left out."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from khop.pyg import LinkNeighborLoader, NeighborSampler
from pyg.pyg_cases import BUYS, typed


def ring() -> Data:
    """Ten nodes in a ring, linked in one direction."""
    nodes = torch.arange(10)
    return Data(x=nodes.float()[:, None], edge_index=torch.stack([nodes, (nodes + 1) % 10]))


def pairs(ends: Tensor) -> set[tuple[int, int]]:
    return set(zip(*ends.tolist(), strict=True))


def loader_of(data: Any, **settings: Any) -> LinkNeighborLoader:
    return LinkNeighborLoader(data, num_neighbors=[-1, -1], batch_size=4, **settings)


def test_one_warning_counts_the_links_among_the_messages() -> None:
    loader = loader_of(ring())
    with pytest.warns(
        UserWarning, match=r"^4 of the 4 links of the first batch are also message edges"
    ) as told:
        for _ in (*loader, *loader):
            pass
    assert len(told) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reverse_among_the_messages_counts_and_other_links_do_not(workers: int) -> None:
    data = ring()
    turned = data.edge_index.flip(0)[:, :4].clone()
    turned[:, 3] = torch.tensor([0, 5])  # no edge either way
    with pytest.warns(UserWarning, match="^3 of the 4 links"):
        list(loader_of(data, edge_label_index=turned, num_workers=workers))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader_of(data, edge_label_index=torch.tensor([[0], [5]])))


@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
def test_excluded_links_carry_no_message(negatives: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loader_of(ring(), exclude="edge", neg_sampling=negatives):
            messages = pairs(batch.n_id[batch.edge_index])
            links = {(i, (i + 1) % 10) for i in batch.input_id.tolist()}
            assert not messages & links
            assert messages <= pairs(ring().edge_index)


def test_reverses_are_left_out_too() -> None:
    data = typed()
    bought = data[BUYS].edge_index[:, :4]
    kept = dict.fromkeys(["edge", "edge+reverse"], False)
    for exclude in kept:
        (batch,) = loader_of(data, edge_label_index=(BUYS, bought), exclude=exclude)
        back = batch["item", "rev_buys", "user"].edge_index
        carried = torch.stack([batch["user"].n_id[back[1]], batch["item"].n_id[back[0]]])
        kept[exclude] = bool(pairs(carried) & pairs(bought))
        forward = batch[BUYS].edge_index
        sent = torch.stack([batch["user"].n_id[forward[0]], batch["item"].n_id[forward[1]]])
        assert not pairs(sent) & pairs(bought)
    assert kept == {"edge": True, "edge+reverse": False}


def test_what_cannot_be_excluded_is_named() -> None:
    with pytest.raises(ValueError, match="exclude 'edges': must be 'edge', "):
        loader_of(ring(), exclude="edges")
    with pytest.raises(ValueError, match=r'no edge type has the name of the reverse of .*"rev_on"'):
        loader_of(typed(), edge_label_index=("tag", "on", "item"), exclude="edge+reverse")
    sampler = NeighborSampler(ring(), [2])
    with pytest.raises(ValueError, match=r"exclude 'edge'.*set them on the neighbor_sampler"):
        loader_of(ring(), neighbor_sampler=sampler, exclude="edge")
