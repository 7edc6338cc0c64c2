"""Batches are what torch_geometric's own loaders give, compared with what those gave and was recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import khop.pyg
from pyg.pyg_cases import CASES, RECORDED, facts

THEIRS = json.loads(RECORDED.read_text())
ONLY_PYG_LIB = ("num_sampled_nodes", "num_sampled_edges")  # torch-sparse, which recorded, does not count


def batches(name: str, **changed: Any) -> list[Any]:
    case = CASES[name]
    return list(getattr(khop.pyg, case.loader)(case.data(), **{**case.arguments, **changed}))


def compared(batch: Any) -> dict[str, Any]:
    return {key: value for key, value in facts(batch).items() if not key.endswith(ONLY_PYG_LIB)}


@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_torch_geometric(name: str, workers: int) -> None:
    """The same attributes in the same order, with the same shapes, dtypes and values."""
    ours = [compared(batch) for batch in batches(name, num_workers=workers)]
    assert ours == THEIRS[name]
    assert [list(batch) for batch in ours] == [list(batch) for batch in THEIRS[name]]


@pytest.mark.parametrize(
    "name", ["two hops", "twice", "no hops", "a hop of none", "typed", "typed, by edge type"]
)
def test_hops_add_up(name: str) -> None:
    """`num_sampled_nodes` and `num_sampled_edges` say hop by hop what there is."""
    for batch in batches(name):
        for storage in batch.stores:
            if "n_id" in storage:
                assert sum(storage.num_sampled_nodes) == storage.n_id.numel()
                assert storage.get("batch_size", storage.num_sampled_nodes[0]) == storage.num_sampled_nodes[0]
            if "edge_index" in storage:
                assert sum(storage.num_sampled_edges) == storage.e_id.numel()
                reached = storage.edge_index[1, : sum(storage.num_sampled_edges[:1])]
                assert torch.equal(reached, reached.sort().values)
