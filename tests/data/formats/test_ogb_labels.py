"""Labels of OGB's sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from khop.data.formats.ogb import ogb_labels

PATH = Path("node-label.csv.gz")


def test_nan_is_unknown() -> None:
    given = np.array([[3], [np.nan], [0]], np.float32)
    found = ogb_labels(given, 4, PATH)
    assert found.tolist() == [3, -1, 0]
    assert found.dtype == np.int64
    assert ogb_labels(np.array([[1, np.nan], [0, 1]]), 0, PATH).tolist() == [[1, 255], [0, 1]]
    assert ogb_labels(np.array([[1], [2]]), 3, PATH).tolist() == [1, 2]


@pytest.mark.parametrize("wrong", [-1.0, 4.0, 0.5])
def test_other_values_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=f"row 2: the label is {wrong:g}, and there are 4 classes, 0 to 3"):
        ogb_labels(np.array([[0.0], [wrong]]), 4, PATH)
    with pytest.raises(ValueError, match="has 2 labels per node"):
        ogb_labels(np.zeros((1, 2)), 4, PATH)
