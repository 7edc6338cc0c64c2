"""Official splits of OGB's node sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.sets.csv_numbers import csv_numbers
from khop.importing.sets.tensor_file import tensor_file

_NAMES = {"train": "train", "val": "valid", "test": "test"}
_DICT = "split_dict.pt"

Splits = dict[str, npt.NDArray[np.int64]]


def ogb_splits(folder: Path) -> Splits:
    """Return the nodes of train, val and test from a folder with three CSV files, or with split_dict.pt."""
    if (folder / _DICT).is_file():
        given = tensor_file(folder / _DICT)
        return {name: ids_of(given, published, folder / _DICT) for name, published in _NAMES.items()}
    found: Splits = {}
    for name, published in _NAMES.items():
        path = first_file(folder, f"{published}.csv.gz", f"{published}.csv")
        found[name] = csv_numbers(path)[:, 0].astype(np.int64)
    return found


def ids_of(given: Any, name: str, path: Path) -> npt.NDArray[np.int64]:
    """Return the whole numbers under a name of a dict of tensors or arrays."""
    if not isinstance(given, dict) or name not in given:
        raise ValueError(f"{path}: has no {name!r}; download the set again")
    return np.asarray(given[name]).astype(np.int64)


def first_file(folder: Path, *names: str) -> Path:
    """Return the first of the files that exists; ValueError if none does."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"{folder / names[0]}: no such file; give the folder as it was published")
