from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from khop.data.tables.files import ParquetTable, one_batch


def test_pieces_are_row_groups_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(10), "other": ["x"] * 10}), path, row_group_size=4)
    table = ParquetTable.open([("a.parquet", path)], "key")
    pieces = [piece() for piece in table.pieces(["id"])]
    assert [len(piece) for piece in pieces] == [4, 4, 2]
    assert [n for piece in pieces for n in piece.batch.column(0).to_pylist()] == list(range(10))
    assert pieces[1].row(2) == "a.parquet, row group 1, row 3"


def test_a_batch_joins_chunks() -> None:
    table = pa.table({"a": pa.chunked_array([[1, 2], [3]])})
    assert one_batch(table).column(0).to_pylist() == [1, 2, 3]
    assert one_batch(table.slice(0, 0)).num_rows == 0


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for first in (0, 10):
        fresh = tmp_path / "fresh.parquet"
        pq.write_table(pa.table({"id": [first, first + 1]}), fresh)
        fresh.replace(path)
        (piece,) = ParquetTable.open([("a.parquet", path)], "key").pieces(["id"])
        assert piece().batch.column(0).to_pylist() == [first, first + 1]
