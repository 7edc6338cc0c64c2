"""Labels may be unknown: NaN in classes and in numbers to predict."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import khop
from khop.graph.verify import verify_folder


def test_unknown_labels_are_kept_saved_and_verified(tmp_path: Path) -> None:
    table = khop.NodeTable(
        columns={"y": np.array([2.0, np.nan, 0.0], np.float32), "price": np.array([1.5, np.nan, 2.0])},
        num_classes={"y": 3},
        unknown=("price",),
    )
    khop.write_graph(tmp_path / "a", {"item": table}, {})
    khop.open_graph(tmp_path / "a").save(tmp_path / "b")
    for name in ("a", "b"):
        columns = khop.open_graph(tmp_path / name).columns["item"]
        assert columns["y"].tolist() == [2, -1, 0]
        assert np.array_equal(columns["price"].numpy(), [1.5, np.nan, 2.0], equal_nan=True)
        assert verify_folder(tmp_path / name) == []
