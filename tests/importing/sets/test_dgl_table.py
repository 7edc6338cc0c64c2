"""Columns of a CSV file of DGL."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from khop.importing.sets.dgl_table import dgl_table


def test_types_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'Unnamed: 0|id|x|flag|list\n0|1|0.5|True|"[1, 2.5]"\n1|2|1.5|False|"3,4"\n'
    )
    found = dgl_table(tmp_path / "a.csv", "|", "graph_id")
    assert list(found) == ["id", "x", "flag", "list"]
    assert [found[name].dtype for name in found] == [np.int64, np.float32, bool, np.float32]
    assert found["list"].tolist() == [[1, 2.5], [3, 4]]
