"""Parquet files appear when they are complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from khop.graph.ids_by_node import IdsHere
from khop.inference.parquet_file import check_parquet, id_columns, write_parquet
from khop.kernels.id_table import StringKeys


def test_pieces_become_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    assert write_parquet(path, iter([{"a": pa.array([1, 2])}, {"a": pa.array([3])}])) == 3
    assert pyarrow.parquet.read_table(path)["a"].to_pylist() == [1, 2, 3]
    assert pyarrow.parquet.read_metadata(path).num_row_groups == 2
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_stays_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"a": pa.array([1])}
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        write_parquet(tmp_path / "rows.parquet", broken())
    assert list(tmp_path.iterdir()) == []


def test_ids_are_text_or_integers_or_nodes_alone() -> None:
    nodes = torch.tensor([1, 0])
    assert id_columns(IdsHere(StringKeys.of(["a", "b"])), nodes, "id", "node")["id"].to_pylist() == ["b", "a"]
    assert id_columns(IdsHere(np.array([7, 8])), nodes, "id", "node")["id"].to_pylist() == [8, 7]
    assert list(id_columns(None, nodes, "id", "node")) == ["node"]


def test_a_name_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--out .*rows.csv: give a name that ends in \.parquet"):
        check_parquet(tmp_path / "rows.csv", "--out")
    with pytest.raises(ValueError, match="there is no folder"):
        check_parquet(tmp_path / "none" / "rows.parquet", "--out")
    (tmp_path / "rows.parquet").touch()
    with pytest.raises(ValueError, match="exists already; remove it or choose another name"):
        check_parquet(tmp_path / "rows.parquet", "--out")
