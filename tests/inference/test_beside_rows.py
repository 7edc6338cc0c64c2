"""Rows of nodes come from one store and columns of edges from another, in one gather."""

from __future__ import annotations

import torch

from khop.features.store import Rows
from khop.features.table import FeatureTable
from khop.inference.beside_rows import BesideRows

EDGE = ("n", "to", "n")


def test_nodes_and_edges_have_a_store_each() -> None:
    rows = FeatureTable({"n": {"values": torch.arange(6.0).view(3, 2)}})
    below = FeatureTable({"n": {"x": torch.zeros(3)}, EDGE: {"r": torch.arange(4)}})
    store = BesideRows(rows, below)
    assert set(store.specs) == {"n", EDGE}
    assert set(store.specs["n"]) == {"values"}
    wanted = {"n": Rows(torch.tensor([2]), ("values",)), EDGE: Rows(torch.tensor([3, 0]), ("r",))}
    for found in (store.gather(wanted), store.with_threads(2).gather(wanted)):
        assert found["n"]["values"].tolist() == [[4, 5]]
        assert found[EDGE]["r"].tolist() == [3, 0]
    assert not store.is_collective
    assert len(store.local_rows(EDGE)) >= 4
