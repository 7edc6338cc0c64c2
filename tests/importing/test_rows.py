from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from khop.importing.memory_table import MemoryTable
from khop.importing.rows import Place, Rows, check_columns


def test_kept_rows_keep_their_places() -> None:
    rows = Rows(pa.record_batch({"a": [10, 11, 12, 13]}), Place("a.csv", None, 100))
    kept = rows.keep(np.array([False, True, True, True])).keep(np.array([False, False, True]))
    assert kept.column("a").to_pylist() == [13]
    assert kept.row(0) == "a.csv, row 104"
    assert rows.keep(np.ones(4, bool)) is rows


def test_a_missing_column_is_named_with_the_nearest() -> None:
    table = MemoryTable.of(pa.table({"user_id": [1], "Age": [2]}), "nodes.user")
    check_columns(table, {"user_id": "nodes.user.id"})
    with pytest.raises(ValueError, match=r"nodes.user.id: no column 'userid' in .*; did you mean user_id\?"):
        check_columns(table, {"userid": "nodes.user.id"})
    with pytest.raises(ValueError, match=r"did you mean Age\?"):
        check_columns(table, {"age": "nodes.user.columns.age"})
