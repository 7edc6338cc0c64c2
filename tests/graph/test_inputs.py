"""Arrays of users: every dtype keeps its bits, and a faulty value is named with its position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import khop
from khop.api.graph_from import MemoryEdges, memory_graph
from khop.graph.inputs import Given
from khop.graph.npy import STORED
from khop.graph.store import csc_graph_from_edges

BAD = {
    "float32": torch.tensor([[1.0, 2.0], [3.0, float("nan")]]),
    "float16": torch.tensor([[1.0, 2.0], [3.0, float("inf")]], dtype=torch.float16),
    "bfloat16": torch.tensor([[1.0, 2.0], [3.0, float("-inf")]], dtype=torch.bfloat16),
}


@pytest.mark.parametrize("dtype", STORED)
def test_a_tensor_comes_back_with_its_bits(dtype: str) -> None:
    tensor = torch.arange(6).view(3, 2).to(getattr(torch, dtype))
    given = Given.of(tensor, "x")
    back = given.tensor()
    assert (given.dtype, len(given)) == (dtype, 3)
    bits = tensor.view(torch.uint8) if dtype != "bool" else tensor
    assert np.array_equal(back.contiguous().view(bits.dtype).numpy(), bits.numpy())


def test_byte_order_and_gaps_of_numpy_arrays_do_not_matter() -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    assert Given.of(array, "x").tensor().tolist() == array.tolist()


@pytest.mark.parametrize("dtype", BAD)
def test_a_number_that_is_not_finite_is_named(dtype: str) -> None:
    with pytest.raises(ValueError, match=r"x\[1, 1\] is (nan|-?inf): not a finite number"):
        Given.of(BAD[dtype], "x").check_finite()
    Given.of(BAD[dtype][:1], "x").check_finite()


def test_ids_labels_and_original_ids_are_checked_against_their_counts() -> None:
    given = Given.of(torch.tensor([0, 4, -1]), "y")
    with pytest.raises(ValueError, match=r"y\[1\] is 4: there are 4 classes"):
        given.check_labels(4)
    given.check_labels(5)
    with pytest.raises(ValueError, match=r"y\[2\] is -1: there are 9 nodes"):
        given.check_ids(9, "nodes", "drop it")
    with pytest.raises(ValueError, match=r"y\[2\] is 7, and so is \[0\]"):
        Given.of(torch.tensor([7, 1, 7]), "y").check_original_ids()
    with pytest.raises(ValueError, match="y has 3 rows, but there are 2 nodes"):
        given.check_rows(2, "there are 2 nodes")


def test_objects_without_readable_values_are_refused() -> None:
    masked = np.ma.MaskedArray([1, 2], [True, False])
    for array, problem in (
        ([1, 2], "is a list"),
        (torch.tensor(1), "single number"),
        (torch.eye(2).to_sparse(), "layout sparse_coo"),
        (torch.empty(2, device="meta"), "meta device"),
        (masked, "masked array"),
        (np.array(["a"]), "convert it to one of"),
    ):
        with pytest.raises(ValueError, match=problem):
            Given.of(array, "x")  # type: ignore[arg-type]


WIDTH_0 = r"column '(x|w)'( of .*)? has (width 0|rows of shape \(2, 0\)), so it has no entries: leave"


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_a_column_of_width_0_is_refused_at_once(shape: tuple[int, ...], tmp_path: Path) -> None:
    ends = torch.tensor([0, 1]), torch.tensor([1, 2])
    nodes, edges = torch.zeros(3, *shape), torch.zeros(2, *shape)
    edge_type = ("a", "to", "a")
    attempts: list[Callable[[], object]] = [
        lambda: khop.write_graph(
            tmp_path / "g", {"a": khop.NodeTable(columns={"x": nodes})}, {edge_type: khop.EdgeTable(*ends)}
        ),
        lambda: khop.write_graph(
            tmp_path / "g", {"a": khop.NodeTable(3)}, {edge_type: khop.EdgeTable(*ends, {"w": edges})}
        ),
        lambda: khop.graph_from_pyg(Data(x=nodes, edge_index=torch.stack(ends))),
        lambda: csc_graph_from_edges({"a": 3}, {edge_type: ends}, columns={"a": {"x": nodes}}),
        lambda: memory_graph({"a": 3}, {edge_type: MemoryEdges(*ends)}, {"a": {"x": nodes}}),
        lambda: khop.Schema(("a",), (edge_type,), columns={"a": {"x": khop.ColumnSpec("float32", shape)}}),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=WIDTH_0):
            attempt()
    assert list(tmp_path.iterdir()) == []
