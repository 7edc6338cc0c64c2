from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from khop.importing.csv_file import CsvTable, Dialect

TEXT = 'id,name,price\n007,Ann,1.5\n8,"B, or\nC",\n'


def rows_of(path: Path, columns: list[str], dialect: Dialect = Dialect()) -> list[dict[str, str | None]]:  # noqa: B008
    table = CsvTable.open([(path.name, path)], dialect, "nodes.user.files")
    return [row for piece in table.pieces(columns) for row in piece().batch.to_pylist()]


def written(path: Path, content: bytes) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    elif path.suffix == ".zst":
        path.write_bytes(pa.Codec("zstd").compress(content, asbytes=True))
    else:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst"])
def test_all_fields_are_text_also_in_compressed_files(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, TEXT.encode())
    assert rows_of(path, ["price", "id"]) == [{"price": "1.5", "id": "007"}, {"price": None, "id": "8"}]
    assert rows_of(path, ["name"])[1] == {"name": "B, or\nC"}


def test_a_byte_order_mark_and_crlf_are_no_data(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b"\xef\xbb\xbfid,name\r\n1,x\r\n")
    assert rows_of(path, ["id", "name"]) == [{"id": "1", "name": "x"}]


def test_columns_without_header_have_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", b"1\t2\n3\t4\n")
    assert rows_of(path, ["1", "0"], Dialect(header="no")) == [{"1": "2", "0": "1"}, {"1": "4", "0": "3"}]


def test_rows_keep_their_order_and_places(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b"id\n" + b"".join(b"%d\n" % n for n in range(300_000)))
    table = CsvTable.open([(path.name, path)], Dialect(), "key")
    pieces = [piece() for piece in table.pieces(["id"])]
    assert [int(one) for piece in pieces for one in piece.batch.column(0).to_pylist()] == list(range(300_000))
    assert len(pieces) > 1
    assert pieces[1].row(0) == f"a.csv, row {len(pieces[0]) + 1}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"id,name\n1,a\n2\n3,c\n", "line 3, column 'name': the row has 1 fields, and the first row has 2"),
        (b"id,name\n1,a\n3", "line 3, column 'name': the row has 1 fields"),
        (b"id,name\n1,a,b\n", "line 2, column 'name': the row has 3 fields"),
        (b"id,name\n1,a\n2,\xff\n", "line 3: invalid UTF-8"),
        (b'id,name\n1,"a\n2,b\n', "line 2: a quote is not closed"),
        (b"id,id\n1,2\n", "column 'id' is there twice"),
        (b"", "is empty; its first row must name the columns"),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = written(tmp_path / "a.csv", content)
    with pytest.raises(ValueError, match=reason) as caught:
        rows_of(path, ["id", "name"])
    assert str(caught.value).startswith("nodes.user.files: a.csv")


def test_a_cut_compressed_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(TEXT.encode() * 1000)[:-40])
    with pytest.raises(ValueError, match="a.csv.gz"):
        rows_of(path, ["id"])


def test_the_path_of_a_file_adds_no_values_and_is_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "country=DE"
    folder.mkdir()
    partition = written(folder / "a.csv", b"id,country\n1,FR\n")
    assert rows_of(partition, ["country"]) == [{"country": "FR"}]
    written(tmp_path / "a1.csv", b"id\nother\n")
    for name in ("a[1].csv", "a*.csv", "a?.csv"):
        assert rows_of(written(tmp_path / name, b"id\nown\n"), ["id"]) == [{"id": "own"}]
