"""Sparse columns: the numbers of a matrix, stored, checked, copied and taken back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import khop
from khop.graph.features.store import Rows
from khop.graph.inputs import Given, check_sparse
from khop.graph.verify import verify_folder
from khop.kernels.lazy_rows import SparseRows

WIDTH = 40
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")


def words(rows: int = 6, seed: int = 0) -> sparse.csr_array:
    """Make a matrix of few words, one row of it empty."""
    generator = np.random.default_rng(seed)
    dense = generator.normal(size=(rows, WIDTH)) * (generator.random((rows, WIDTH)) < 0.1)
    dense[0] = 0
    return sparse.csr_array(dense)


def write(path: Path, matrix: object) -> Path:
    """Write a ring of items with the matrix as column x."""
    ids = torch.arange(6)
    edges = {("item", "next", "item"): khop.EdgeTable(ids, (ids + 1) % 6)}
    return khop.write_graph(path, {"item": khop.NodeTable(6, {"x": matrix, "y": ids % 2})}, edges)


def rows_of(graph: khop.Graph, ids: torch.Tensor) -> torch.Tensor:
    """Gather rows of x as dense rows."""
    found = graph.features.gather({"item": Rows(ids, ("x",))})["item"]["x"]
    return SparseRows.of(found, graph.schema.column("item", "x").width).dense()


@given(rows=st.integers(1, 12), entries=st.integers(0, 30), seed=st.integers(0, 99))
def test_a_column_has_the_numbers_of_its_matrix(rows: int, entries: int, seed: int) -> None:
    generator = np.random.default_rng(seed)  # unordered, with repeated places and zeros
    where = generator.integers(0, rows, entries), generator.integers(0, WIDTH, entries)
    values = generator.integers(-2, 3, entries).astype(np.float32)
    if entries and np.bincount(where[0]).max() > WIDTH // 2:
        return
    matrix = sparse.coo_array((values, where), (rows, WIDTH))
    column = khop.SparseColumn.of(matrix)
    expected = torch.from_numpy(matrix.toarray())
    assert torch.equal(SparseRows.of(column.values, column.width).dense(), expected)
    stored = column.values[:, 1] != 0
    assert int(stored.sum()) == int((expected != 0).sum()), "zeros are not stored"
    assert column.values.shape[2] == max(1, int((expected != 0).sum(1).max()))
    of_torch = khop.SparseColumn.of(expected.to_sparse_csr())
    assert torch.equal(of_torch.values, column.values)


def test_a_folder_has_the_column_with_its_width_and_checks_it(tmp_path: Path) -> None:
    matrix = words()
    graph = khop.open_graph(write(tmp_path / "g", matrix))
    spec = graph.schema.column("item", "x")
    assert (spec.width, spec.sparse_width, spec.dtype, spec.shape[0]) == (WIDTH, WIDTH, "int32", 2)
    ids = torch.tensor([5, 0, 5, 2])
    assert torch.equal(rows_of(graph, ids), torch.from_numpy(matrix.toarray()).float()[ids])
    manifest = json.loads((tmp_path / "g/graph.json").read_text())
    assert manifest["version"] == 3
    assert manifest["nodes"][0]["sparse"] == {"x": WIDTH}
    assert verify_folder(tmp_path / "g") == []
    assert f"x sparse float32[{WIDTH}]" in repr(graph)


def test_torch_and_scipy_give_the_same_folder(tmp_path: Path) -> None:
    matrix = words()
    write(tmp_path / "scipy", matrix)
    write(tmp_path / "torch", torch.from_numpy(matrix.toarray()).float().to_sparse_csr())
    texts = [(tmp_path / name / "graph.json").read_bytes() for name in ("scipy", "torch")]
    assert texts[0] == texts[1]


def test_a_saved_graph_keeps_the_column(tmp_path: Path) -> None:
    khop.open_graph(write(tmp_path / "g", words())).save(tmp_path / "again")
    texts = [(tmp_path / name / "graph.json").read_bytes() for name in ("g", "again")]
    assert texts[0] == texts[1]


def test_partitions_gather_the_same_rows(tmp_path: Path) -> None:
    matrix = words()
    khop.partition_graph(write(tmp_path / "g", matrix), tmp_path / "parts", parts=2, method="random")
    graph = khop.open_graph(tmp_path / "parts")
    ids = graph.topology.original_ids("item")
    assert ids is not None
    assert torch.equal(rows_of(graph, torch.arange(6)), torch.from_numpy(matrix.toarray()).float()[ids])


def test_the_largest_entries_of_a_long_row_are_kept() -> None:
    dense = np.zeros((2, 10), np.float32)
    dense[0, :7] = [1, -5, 2, 5, -2, 0.5, 3]
    dense[1, 9] = 1
    column = khop.SparseColumn.of(sparse.csr_array(dense), most=3)
    expected = np.zeros((2, 10), np.float32)
    expected[0, [1, 3, 6]] = [-5, 5, 3]
    expected[1, 9] = 1
    assert torch.equal(SparseRows.of(column.values, 10).dense(), torch.from_numpy(expected))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.eye(6), "is a ndarray: give a torch.sparse_csr tensor or a sparse matrix of SciPy"),
        (sparse.csr_array(np.ones((6, 4))), "row 0 has 4 entries of 4.*most="),
        (sparse.csr_array(np.diag([1, np.nan, 1, 1, 1, 1])), "entry 1 is nan: not a finite number"),
        (sparse.csr_array(np.diag([1e60] * 6)), "entry 0 is 1e\\+60: not a finite number"),
        (sparse.csr_array(np.eye(6) * 1j), "values of complex128"),
        (sparse.csr_array((6, 0)), "rows of 0 numbers"),
    ],
)
def test_a_matrix_that_cannot_be_stored_is_named(matrix: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        khop.SparseColumn.of(matrix)


def test_errors_name_the_column(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"node type 'item': column 'x' has 5 rows, but .* has 6 nodes"):
        write(tmp_path / "g", words(5))
    with pytest.raises(ValueError, match="node type 'item': column 'x': row 0 has 9 entries of 9"):
        write(tmp_path / "g", sparse.csr_array(np.ones((6, 9))))
    edges = {("item", "next", "item"): khop.EdgeTable(torch.arange(6), torch.arange(6), {"w": words()})}
    with pytest.raises(ValueError, match="column 'w' is sparse: columns of nodes may be"):
        khop.write_graph(tmp_path / "g", {"item": khop.NodeTable(6)}, edges)


def test_damaged_entries_are_found() -> None:
    values = khop.SparseColumn.of(words()).values
    check_sparse(Given.of(values, "x"), WIDTH)
    with pytest.raises(ValueError, match="no index of a row of 3 numbers"):
        check_sparse(Given.of(values, "x"), 3)
    values[2, 1, 0] = torch.tensor(float("nan")).view(torch.int32)
    with pytest.raises(ValueError, match=r"x\[2, 1, 0\].*no finite value"):
        check_sparse(Given.of(values, "x"), WIDTH)
