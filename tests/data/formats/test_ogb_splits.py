"""Official splits, as three CSV files or as one dict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from data.formats.layouts import gz_split
from khop.data.formats.ogb import ogb_splits


def test_both_forms_give_the_same(tmp_path: Path) -> None:
    gz_split(tmp_path / "csv", [3, 1], [0], [2])
    (tmp_path / "pt").mkdir()
    torch.save(
        {"train": torch.tensor([3, 1]), "valid": np.array([0]), "test": np.array([2])},
        tmp_path / "pt/split_dict.pt",
    )
    for folder in ("csv", "pt"):
        found = {name: ids.tolist() for name, ids in ogb_splits(tmp_path / folder).items()}
        assert found == {"train": [3, 1], "val": [0], "test": [2]}
    (tmp_path / "csv" / "test.csv.gz").unlink()
    with pytest.raises(ValueError, match=r"test.csv.gz: no such file"):
        ogb_splits(tmp_path / "csv")
    torch.save({"train": torch.tensor([3, 1])}, tmp_path / "pt/split_dict.pt")
    with pytest.raises(ValueError, match="has no 'valid'"):
        ogb_splits(tmp_path / "pt")
