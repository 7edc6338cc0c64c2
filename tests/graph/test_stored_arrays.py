"""Arrays on a device are those of the host, copied on first use and once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from khop.graph.csc_graph import csc_graph_from_edges
from khop.graph.stored_arrays import StoredArrays, stored_csc
from khop.kernels.csc import Csc
from khop.rules.rule import Need, NeedKind

TO = ("node", "to", "node")
COLUMNS = {TO: {"time": torch.tensor([1, 5, 2, 9]), "weight": torch.tensor([1.0, 3.0, 1.0, 1.0])}}
ENDS = (torch.tensor([0, 1, 2, 0]), torch.tensor([1, 1, 2, 2]))
GRAPH = csc_graph_from_edges({"node": 3}, {TO: ENDS}, columns=COLUMNS, sort_by="time")


class Copies:
    """A memory of its own: it clones each tensor, and counts."""

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        self.made.append(tensor.clone())
        return self.made[-1]


def test_each_array_is_copied_once_also_by_threads() -> None:
    copies, made = Copies(), GRAPH.draws.arrays
    stored = StoredArrays(made, {TO: stored_csc(GRAPH.csc(TO), copies)}, {}, copies)
    assert len(copies.made) == 2
    stored.prepare(Need(NeedKind.WEIGHT_SUMS, TO, "weight"))
    assert len(copies.made) == 2  # prepared on the host
    with ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(lambda _: stored.weight_sums(TO, "weight"), range(8)))
    assert len(copies.made) == 4
    own = made.weight_sums(TO, "weight")
    assert own is not None
    for each in sums:
        assert each is sums[0]
        assert each is not None
        assert torch.equal(each.values, own.values)
        assert torch.equal(each.outline, own.outline)
        assert each.values.data_ptr() != own.values.data_ptr()


def test_every_kind_of_array_is_that_of_the_host() -> None:
    stored = StoredArrays(GRAPH.draws.arrays, {TO: GRAPH.csc(TO)}, {}, Copies())
    times, own = stored.times(TO, "time"), stored.own_times(TO, "time")
    assert times is not None
    assert times.values.tolist() == [1, 5, 2, 9]
    assert own is not None
    assert own.edges is not None
    assert own.edges.tolist() == [1, 5, 2, 9]
    assert stored.source_ids(TO).tolist() == [0, 1, 2, 0]
    column = stored.column(TO, "weight")
    assert column is not None
    assert torch.equal(column, COLUMNS[TO]["weight"])
    assert stored.column(TO, "price") is stored.weight_sums(TO, "price") is None


def test_damaged_edges_are_not_copied() -> None:
    damaged = Csc(torch.tensor([0, 3, 2]), torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match="indptr"):
        stored_csc(damaged, Copies())
