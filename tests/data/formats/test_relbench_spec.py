"""The spec of a RelBench database."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.formats.layouts import relbench
from khop.data.formats.relbench import RelbenchTable, relbench_spec


def test_keys_times_and_kinds(tmp_path: Path) -> None:
    relbench(tmp_path)
    tables = [RelbenchTable.read(path) for path in sorted(tmp_path.glob("*.parquet"))]
    spec = relbench_spec(tables, date(2005, 1, 1), date(2010, 1, 1))
    results = spec["nodes"]["results"]
    assert (results["id"], results["time"], results["timezone"]) == ("khop_row", "date", "UTC")
    assert results["columns"] == {"points": {"kind": "number"}, "fast": {"kind": "bool"}}
    assert spec["nodes"]["drivers"]["columns"] == {
        "code": {"kind": "category"}, "dob": {"kind": "date", "timezone": "UTC"},
    }  # fmt: skip
    assert list(spec["edges"]) == ["results driverId drivers"]
    pq.write_table(pa.table({"a": [1]}), tmp_path / "plain.parquet")
    with pytest.raises(ValueError, match="plain.parquet: does not record its keys"):
        RelbenchTable.read(tmp_path / "plain.parquet")
