from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from khop.importing.arrow_file import ArrowTable


def test_pieces_are_record_batches_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"id": [str(n) for n in range(10)], "b": range(10)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=6)
    pieces = [piece() for piece in ArrowTable.open([("a.arrow", path)], "key").pieces(["b"])]
    assert [piece.batch.column(0).to_pylist() for piece in pieces] == [list(range(6)), list(range(6, 10))]
    assert pieces[1].row(0) == "a.arrow, row 7"


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="key: a.arrow: is not an Arrow file, or is damaged; write"):
        ArrowTable.open([("a.arrow", path)], "key")
