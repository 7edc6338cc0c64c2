"""Ids by node are those of the nodes, in their order, in memory of their own."""

from __future__ import annotations

import numpy as np
import torch

from khop.graph.ids_by_node import IdsHere
from khop.kernels.id_table import StringKeys

NODES = torch.tensor([2, 0, 2])


def test_ids_of_text_come_in_the_order_of_the_nodes() -> None:
    ids = IdsHere(StringKeys.of(["a", "", "ü"]))
    found = ids.at(NODES)
    assert isinstance(found, StringKeys)
    assert (ids.kind, len(ids), found.strings()) == ("string", 3, ["ü", "a", "ü"])
    assert len(ids.at(NODES[:0])) == 0


def test_ids_of_integers_are_copies() -> None:
    stored = np.array([7, -1, 2**62])
    ids = IdsHere(stored)
    found = ids.at(NODES)
    assert isinstance(found, np.ndarray)
    assert (ids.kind, found.tolist()) == ("int64", [2**62, 7, 2**62])
    assert not np.shares_memory(found, stored)
