"""What goes into a folder comes out of it, and what must not go in is refused by name."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.build import EdgeTable, NodeTable, write_graph
from khop.graph.folder import open_folder
from khop.graph.npy import STORED, torch_dtype
from khop.kernels.csc import Csc

LINK = ("user", "buys", "item")
Pairs = list[tuple[int, int]]


def edge_table(pairs: Pairs, dtype: type[np.integer] = np.int64, **columns: np.ndarray) -> EdgeTable:
    array = np.array(pairs, dtype).reshape(-1, 2)
    return EdgeTable(array[:, 0], array[:, 1], columns)


def write_pairs(path: Path, users: int, items: int, pairs: Pairs, **columns: np.ndarray) -> Path:
    nodes = {"user": NodeTable(users), "item": NodeTable(items)}
    return write_graph(path, nodes, {LINK: edge_table(pairs, **columns)})


def rows(csc: Csc) -> list[list[int]]:
    return [csc.indices[start:end].tolist() for start, end in pairwise(csc.indptr.tolist())]


@st.composite
def bipartite(draw: st.DrawFn) -> tuple[int, int, Pairs]:
    users, items = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    pairs = st.tuples(st.integers(0, users - 1), st.integers(0, items - 1))
    return users, items, draw(st.lists(pairs, max_size=30))


@given(graph=bipartite())
def test_a_row_holds_the_sources_of_its_destination_in_input_order(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[int, int, Pairs]
) -> None:
    users, items, pairs = graph
    weight = np.arange(len(pairs), dtype=np.float32) * 0.5
    folder = open_folder(
        write_pairs(tmp_path_factory.mktemp("graph") / "g", users, items, pairs, weight=weight)
    )

    by_item = [[place for place, (_, item) in enumerate(pairs) if item == row] for row in range(items)]
    order = [place for row in by_item for place in row]
    assert rows(folder.csc(LINK)) == [[pairs[place][0] for place in row] for row in by_item]
    assert folder.columns()[LINK]["weight"].tolist() == [weight[place] for place in order]
    edge_id = folder.edge_id(LINK)
    assert (list(range(len(pairs))) if edge_id is None else edge_id.tolist()) == order


def test_every_dtype_comes_back_as_it_was(tmp_path: Path) -> None:
    columns = {dtype: torch.tensor([[0, 1], [1, 0], [1, 1]]).to(torch_dtype(dtype)) for dtype in STORED}
    folder = open_folder(write_graph(tmp_path / "g", {"item": NodeTable(columns=columns)}, {}))
    for dtype, column in columns.items():
        read = folder.columns()["item"][dtype]
        assert read.dtype == column.dtype
        assert torch.equal(read, column)
        assert folder.schema.columns["item"][dtype].dtype == dtype
        assert folder.schema.columns["item"][dtype].shape == (2,)


def test_indices_are_as_narrow_as_the_source_ids_allow(tmp_path: Path) -> None:
    for users, dtype in ((1 << 31, torch.int32), ((1 << 31) + 1, torch.int64)):
        folder = open_folder(write_pairs(tmp_path / str(users), users, 3, [(users - 1, 2), (0, 1)]))
        assert folder.csc(LINK).indices.dtype == dtype
        assert rows(folder.csc(LINK)) == [[], [0], [users - 1]]
