"""The record that `khop import` writes into a graph folder: encoders, classes, unit of times and cut-offs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from khop.graph.documents import read_document
from khop.graph.folder import Folder, refuse_replaced

DOCUMENT = "import.json"
LATER = "later"  # key of the record of later data: the encoders and the rows of its tables


@dataclass(frozen=True)
class TimeCutOffs:
    """The first times of validation and of test, in the unit of the graph."""

    val: int
    test: int


def import_record(folder: Folder) -> Mapping[str, Any]:
    """Return the record of a graph folder, whole or partitioned, or {} if it has none.

    ValueError if it is damaged.
    """
    if DOCUMENT not in folder.documents:
        return {}
    refuse_replaced(folder)
    found: Mapping[str, Any] = read_document(folder.path, DOCUMENT, folder.documents[DOCUMENT])
    return found


def recorded_cut_offs(folder: Folder) -> TimeCutOffs | None:
    """Return the cut-offs that a graph folder, whole or partitioned, records; None if it records none."""
    found = import_record(folder).get("time_split")
    return None if found is None else TimeCutOffs(int(found["val"]), int(found["test"]))
