from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.importing.shop import events, spec

from khop import import_tables
from khop.importing.file_names import check_file_names
from khop.importing.read_spec import checked_spec

EDGES = "edges.user buys item"
RAW = {"kind": "raw", "column": "price"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({f"{EDGES}.reverse": "../../../outside"}, "becomes a file name"),
        ({"nodes.item.columns": {"../../../outside": RAW}}, "becomes a file name"),
        ({f"{EDGES}.columns": {"../outside": RAW}}, "becomes a file name"),
        ({"nodes.item.columns": {"x": RAW, "price": "number"}}, "columns.x: the features are stored by this"),
        (
            {"nodes.item.label": "category", "nodes.item.columns": {"label": RAW}},
            "label: the labels are stored",
        ),
        ({f"{EDGES}.columns": {"time": RAW}}, "columns.time: the times are stored by this name"),
        (
            {f"{EDGES}.columns": {"split": RAW}, f"{EDGES}.split": {"ratio": [0.8, 0.1, 0.1]}},
            "split: the splits are stored",
        ),
    ],
)
def test_names_stay_within_the_folder_and_replace_no_array(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    before = sorted(tmp_path.parent.iterdir())
    rows = {f"{EDGES}.rows": events().append_column("price", [[1.0] * len(events())])}
    with pytest.raises(ValueError, match=reason):
        import_tables(spec(**rows, **changes), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert sorted(tmp_path.parent.iterdir()) == before


def test_names_that_meet_no_array_are_free() -> None:
    names = {"x": "raw", "time": "raw", "label": "raw"}
    check_file_names(
        checked_spec({"nodes": {"item": {"files": ["i.csv"], "id": "i", "columns": names}}}, "spec")
    )
    spaced = {"Unit Price": "number"}  # joined to the features, no file
    check_file_names(
        checked_spec({"nodes": {"item": {"files": ["i.csv"], "id": "i", "columns": spaced}}}, "spec")
    )
