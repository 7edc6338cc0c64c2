"""Labels of OGB's node sets: classes, or several answers of yes and no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

UNKNOWN_CLASS, UNKNOWN_ANSWER = -1, 255


def ogb_labels(values: npt.NDArray[Any], num_classes: int, path: Path) -> npt.NDArray[Any]:
    """Return classes as int64 (nodes,), -1 for NaN; or with 0 classes answers as uint8, 255 for NaN.

    `values` is (nodes, tasks). ValueError for a value that is neither.
    """
    unknown = np.isnan(values) if np.issubdtype(values.dtype, np.floating) else np.zeros(values.shape, bool)
    whole = np.where(unknown, 0, values).astype(np.int64)
    most = num_classes or 2
    wrong = ~unknown & ((whole != np.where(unknown, 0, values)) | (whole < 0) | (whole >= most))
    if wrong.any():
        row, column = (int(at[0]) for at in np.nonzero(wrong))
        raise ValueError(
            f"{path}, row {row + 1}: the label is {values[row, column]:g}, and there are {most} classes, "
            f"0 to {most - 1}; download the set again"
        )
    if num_classes == 0:
        return np.where(unknown, UNKNOWN_ANSWER, whole).astype(np.uint8)
    if values.shape[1] != 1:
        raise ValueError(f"{path}: has {values.shape[1]} labels per node, and 1 is expected")
    return np.where(unknown, UNKNOWN_CLASS, whole)[:, 0]
