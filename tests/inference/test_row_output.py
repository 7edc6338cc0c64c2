"""Files of rows with ids, for other programs; a file that could not be written is named first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from khop.graph.ids_by_node import IdsHere
from khop.inference.row_output import RowOutput
from khop.kernels.id_table import StringKeys
from khop.runtime.group import ALONE

ROWS = torch.arange(12.0).view(4, 3)


def output(path: Path, nodes: torch.Tensor | None = None, originals: torch.Tensor | None = None) -> RowOutput:
    original_ids = None if originals is None else IdsHere(originals.numpy())
    return RowOutput(path, "item", "embedding", 4, nodes, original_ids)


def written(out: RowOutput) -> None:
    file = out.path.with_name("hidden.npy")
    np.save(file, ROWS.numpy())
    out.check()
    out.write(ROWS, file, ALONE)


def test_npy_has_ids_beside_it(tmp_path: Path) -> None:
    out = output(tmp_path / "rows.npy", torch.tensor([7, 5, 3, 1]))
    written(out)
    assert np.array_equal(np.load(out.path), ROWS)
    assert np.load(out.ids_path).tolist() == [7, 5, 3, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.ids.npy", "rows.npy"]


def test_parquet_has_ids_and_original_ids(tmp_path: Path) -> None:
    out = output(tmp_path / "rows.parquet", torch.tensor([3, 0, 1, 2]), torch.tensor([10, 11, 12, 13]))
    written(out)
    table = pyarrow.parquet.read_table(out.path)
    assert table.column_names == ["node", "original_id", "embedding"]
    assert table["node"].to_pylist() == [3, 0, 1, 2]
    assert table["original_id"].to_pylist() == [13, 10, 11, 12]
    assert table["embedding"].to_pylist() == ROWS.tolist()


def test_a_rank_has_a_file_with_its_rows(tmp_path: Path) -> None:
    every = output(tmp_path / "rows.npy").of_rank(2, 1, 3)
    assert (every.path.name, every.count) == ("rows.rank-2.npy", 3)
    assert every.nodes is not None
    assert every.nodes.tolist() == [1, 2, 3]
    some = output(tmp_path / "rows.npy", torch.tensor([9, 8, 7, 6])).of_rank(0, 2, 1)
    assert some.nodes is not None
    assert some.nodes.tolist() == [7]


def test_files_that_cannot_be_written_are_named_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"give a name that ends in \.npy or \.parquet"):
        output(tmp_path / "rows.csv").check()
    with pytest.raises(ValueError, match="there is no folder"):
        output(tmp_path / "nowhere" / "rows.npy").check()
    (tmp_path / "rows.ids.npy").touch()
    with pytest.raises(ValueError, match=r"rows\.ids\.npy: exists already"):
        output(tmp_path / "rows.npy").check()


@pytest.mark.parametrize("own", [["a", "b", "ü", "d"], [7, 5, 3, 1]], ids=["text", "integers"])
def test_parquet_has_the_users_ids(tmp_path: Path, own: list[str] | list[int]) -> None:
    keys = StringKeys.of([str(one) for one in own]) if isinstance(own[0], str) else np.array(own, np.int64)
    nodes = torch.tensor([3, 0, 1, 2])
    out = RowOutput(tmp_path / "rows.parquet", "item", "embedding", 4, nodes, None, IdsHere(keys))
    written(out)
    table = pyarrow.parquet.read_table(out.path)
    assert table.column_names == ["id", "node", "embedding"]
    assert table["id"].to_pylist() == [own[3], own[0], own[1], own[2]]
