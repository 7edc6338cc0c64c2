from __future__ import annotations

import pyarrow as pa
import pytest

from khop.importing.ordered_rows import batches_as_pieces, check_order, check_table, first_line


def test_rows_of_batches_keep_their_numbers() -> None:
    batches = [pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": [3]})]
    pieces = [piece() for piece in batches_as_pieces(batches, "bank, table tx")]
    assert [rows.row(0) for rows in pieces] == ["bank, table tx, row 1", "bank, table tx, row 3"]


def test_an_order_is_a_column_with_other_values_in_all_rows() -> None:
    asked: list[str] = []

    def counts(column: str) -> tuple[int, int]:
        asked.append(column)
        return 5, 5

    assert check_order('a "b"', ['a "b"'], counts, "tx", "key") == 5
    assert asked == ['"a ""b"""']
    with pytest.raises(ValueError, match="key: order_by: no column 'c' in tx; there are a"):
        check_order("c", ["a"], counts, "tx", "key")
    with pytest.raises(ValueError, match="has 4 values in 5 rows, so rows have no fixed order"):
        check_order("a", ["a"], lambda _: (5, 4), "tx", "key")


def test_missing_tables_and_empty_messages() -> None:
    check_table("tx", ["tx"], "bank", "key")
    with pytest.raises(ValueError, match="key: bank: no table 'tz'; there are tx"):
        check_table("tz", ["tx"], "bank", "key")
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
