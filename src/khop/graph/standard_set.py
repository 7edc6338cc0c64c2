"""The record of a standard set in a graph folder: its name, tasks and published result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from khop.graph.documents import read_document
from khop.graph.folder import Folder, refuse_replaced

DOCUMENT = "set.json"


def standard_set(folder: Folder) -> Mapping[str, Any]:
    """Return the record of a graph folder, or {} if it is no standard set. ValueError if it is damaged."""
    if DOCUMENT not in folder.documents:
        return {}
    refuse_replaced(folder)
    found: Mapping[str, Any] = read_document(folder.path, DOCUMENT, folder.documents[DOCUMENT])
    return found
