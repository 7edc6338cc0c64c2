""""""

from __future__ import annotations

import codecs
import gzip
import json
import math
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from khop.data.tables.files import ArrowTable, CsvTable, Dialect, MemoryTable, find_files, open_files
from khop.data.tables.rows import Piece

KEY = "nodes.user.files"


def test_files_are_sorted_by_the_bytes_of_their_names(tmp_path: Path) -> None:
    for name in ("b.csv", "a10.csv", "a9.csv", "é.csv", "Z.csv"):
        (tmp_path / name).write_text("id\n")
    names = [file.name for file in find_files(["*.csv"], tmp_path, KEY)]
    assert names == ["Z.csv", "a10.csv", "a9.csv", "b.csv", "é.csv"]


def test_a_missing_file_is_named_with_near_names(tmp_path: Path) -> None:
    (tmp_path / "users.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"nodes.user.files: user.parquet: no such file in .*users.parquet"):
        find_files(["user.parquet"], tmp_path, KEY)
    with pytest.raises(ValueError, match="no file matches"):
        find_files(["events/*.parquet"], tmp_path, KEY)


def test_a_folder_is_the_files_in_it_if_they_have_one_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder with no file of a known format; name its files"):
        find_files(["."], tmp_path, KEY)
    for name in ("t/year=1/b.parquet", "t/year=2/a.parquet", "t/_SUCCESS"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    names = [file.name for file in find_files(["t"], tmp_path, KEY)]
    assert names == ["t/year=1/b.parquet", "t/year=2/a.parquet"]
    (tmp_path / "t" / "c.csv").write_bytes(b"")
    with pytest.raises(ValueError, match="is a folder with files of csv, parquet; name its files"):
        find_files(["t"], tmp_path, KEY)


def test_what_is_no_table_does_not_count_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("t/a.csv", "t/notes", "t/.hidden.csv", "t/.tmp/b.csv", "elsewhere/c.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"id\n")
    (tmp_path / "t" / "latest").symlink_to("gone")
    (tmp_path / "t" / ".broken.csv").symlink_to("gone.csv")
    (tmp_path / "t" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "t" / "b.parquet").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("t/server")
        assert [file.name for file in find_files(["t"], tmp_path, KEY)] == ["t/a.csv", "t/linked/c.csv"]
    (tmp_path / "t" / "z.csv").symlink_to("gone.csv")
    with pytest.raises(ValueError, match=r"t/z.csv is a link to gone.csv, which does not exist; fetch that"):
        find_files(["t"], tmp_path, KEY)


def test_links_to_folders_above_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "t" / "sub").mkdir(parents=True)
    (tmp_path / "t" / "a.csv").write_text("id\n")
    for name, to in {"up": "..", "top": str(tmp_path), "self": ".", "sub": "../sub"}.items():
        (tmp_path / "t" / "sub" / name).symlink_to(to)
    assert [file.name for file in find_files(["t"], tmp_path, KEY)] == ["t/a.csv"]


def test_a_file_with_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "2025.csv").write_text("id\n")
    (tmp_path / "t" / "latest.csv").symlink_to("2025.csv")
    for patterns in (["t"], ["t/*.csv"], ["t/2025.csv", "t/latest.csv"], ["t/2025.csv", "./t/2025.csv"]):
        with pytest.raises(ValueError, match=r"t/2025.csv and .*\.csv are the same file, so its rows would"):
            find_files(patterns, tmp_path, KEY)


def test_a_file_of_two_patterns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n")
    with pytest.raises(ValueError, match="a.csv is named twice"):
        find_files(["a.csv", "*.csv"], tmp_path, KEY)


def test_formats_follow_the_names(tmp_path: Path) -> None:
    table = pa.table({"id": ["u1", "u2"]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "c.csv").write_text("id\nu1\nu2\n")
    for name in ("a.parquet", "b.arrow", "c.csv"):
        opened = open_files(find_files([name], tmp_path, KEY), Dialect(), KEY)
        rows = [row["id"] for piece in opened.pieces(["id"]) for row in piece().batch.to_pylist()]
        assert rows == ["u1", "u2"]
        assert opened.name == name
    with pytest.raises(ValueError, match="several formats, csv, parquet"):
        open_files(find_files(["a.parquet", "c.csv"], tmp_path, KEY), Dialect(), KEY)
    (tmp_path / "d.xlsx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"d.xlsx: unknown format; give files that end in .parquet"):
        open_files(find_files(["d.xlsx"], tmp_path, KEY), Dialect(), KEY)


def test_pieces_are_record_batches_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"id": [str(n) for n in range(10)], "b": range(10)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=6)
    pieces = [piece() for piece in ArrowTable.open([("a.arrow", path)], "key").pieces(["b"])]
    assert [piece.batch.column(0).to_pylist() for piece in pieces] == [list(range(6)), list(range(6, 10))]
    assert pieces[1].row(0) == "a.arrow, row 7"


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


@pytest.mark.core(1)
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


LONG = b"id,name\n" + b"".join(b"%d,name of %d\n" % (n, n) for n in range(200_000))


def test_a_reader_may_stop_before_the_end_of_a_compressed_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv.zst", LONG * 40)
    pieces = CsvTable.open([(path.name, path)], Dialect(), "key").pieces(["id"])
    assert len(next(pieces)()) > 0
    before = threading.active_count()
    pieces.close()
    assert threading.active_count() < before


def test_columns_may_have_no_name_or_differ_only_by_case(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b",id,ID,\n0,a,b,\n1,c,d,x\n")
    assert rows_of(path, ["ID", "0", "id", "3"]) == [
        {"ID": "b", "0": "0", "id": "a", "3": None},
        {"ID": "d", "0": "1", "id": "c", "3": "x"},
    ]


@pytest.mark.core(1)
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("lines", [1, 300_000])
def test_line_ends_may_differ(tmp_path: Path, name: str, lines: int) -> None:
    """Rows before the first other line end are not read twice."""
    text = b"id,name\r\n" + b"1,a\r\n" * lines + b'2,"b\nc"\n3,d\r4,e\r\n'
    rows = rows_of(written(tmp_path / name, text), ["id", "name"])
    assert [row["id"] for row in rows] == ["1"] * lines + ["2", "3", "4"]
    assert rows[-3]["name"] == "b\nc"


@pytest.mark.core(2)
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-8-sig"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst"])
def test_a_file_may_have_another_encoding(tmp_path: Path, name: str, encoding: str) -> None:
    path = written(tmp_path / name, 'id,straße\n1,"Köln, oder\nBonn"\n'.encode(encoding))
    assert rows_of(path, ["straße"], Dialect(encoding=encoding)) == [{"straße": "Köln, oder\nBonn"}]


def test_the_path_of_a_file_adds_no_values_and_is_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "country=DE"
    folder.mkdir()
    partition = written(folder / "a.csv", b"id,country\n1,FR\n")
    assert rows_of(partition, ["country"]) == [{"country": "FR"}]
    written(tmp_path / "a1.csv", b"id\nother\n")
    for name in ("a[1].csv", "a*.csv", "a?.csv"):
        assert rows_of(written(tmp_path / name, b"id\nown\n"), ["id"]) == [{"id": "own"}]


@pytest.mark.parametrize("form", ["lines", "array"])
@pytest.mark.parametrize("start", [b"", codecs.BOM_UTF8])
def test_objects_of_json_are_rows(form: str, start: bytes, tmp_path: Path) -> None:
    objects = [{"id": "007", "n": 1}, {"id": "8", "n": None}]
    text = json.dumps(objects, indent=1) if form == "array" else "\n".join(map(json.dumps, objects))
    (tmp_path / "a.json").write_bytes(start + text.encode())
    table = open_files(find_files(["a.json"], tmp_path, "k"), Dialect(), "k")
    assert [row for piece in table.pieces(["id", "n"]) for row in piece().batch.to_pylist()] == objects


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ("9007199254740993 9007199254740992 1.5", ["9007199254740993", "9007199254740992", "1.5"]),
        ("18446744073709551617 18446744073709551616", ["18446744073709551617", "18446744073709551616"]),
        ("-9223372036854775809 null 1", ["-9223372036854775809", None, "1"]),
        (
            "9007199254740992 -9007199254740994 100000000000000000000 1.5 -0",
            [2.0**53, -(2.0**53) - 2, 1e20, 1.5, 0],
        ),
        ("12345678901234567.25 1e400", [12345678901234567.25, math.inf]),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz"])
def test_integers_of_json_are_exact(
    name: str, values: str, wanted: Sequence[str | float | None], tmp_path: Path
) -> None:
    """Also if other values of the column have fractions: ids would change."""
    content = "".join(f'{{"a\'b": {value}, "c": 1}}\n' for value in values.split()).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    table = open_files(find_files([name], tmp_path, "k"), Dialect(), "k")
    assert [row["a'b"] for piece in table.pieces(["c", "a'b"]) for row in piece().batch.to_pylist()] == wanted


def test_a_json_column_is_text_in_all_files_if_it_is_in_one(tmp_path: Path) -> None:
    (tmp_path / "n0.jsonl").write_text('{"v": 9007199254740993}\n{"v": 1.5}\n')
    (tmp_path / "n1.jsonl").write_text('{"v": 2.5}\n')
    table = open_files(find_files(["n*.jsonl"], tmp_path, "k"), Dialect(), "k")
    found = [row["v"] for piece in table.pieces(["v"]) for row in piece().batch.to_pylist()]
    assert found == ["9007199254740993", "1.5", "2.5"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"a": "\xe9"}\n', "line 1: invalid UTF-8; save the file as UTF-8"),
        (
            b'{"a": 1}\n\n{"a": 2,\n',
            "line 3: is not one JSON object; correct the line, or give one object per",
        ),
        (b'{\n "a": 1\n}\n', "line 1: is not one JSON object; .*give one object per line"),
        (b'{"a": 1}\n{"a": 1, "a": 2}\n', "line 2: the key 'a' occurs twice; rename one"),
        (b'{"a": 1}\n{"a": "\\ud83d"}\n', r"line 2: \\ud83d is one half of a character; correct the line"),
        (b"", "has no JSON object; give one per line"),
        (b"[1, 2]\n", "has no JSON object; give one per line"),
        (b'[{"a": 1},\n', "is cut off: its array is not closed; write it again"),
        (b'[{"a": 1}, {"a"]', "is not JSON lines; give one object per line"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_that_cannot_be_read_is_named_by_its_line(
    name: str, content: bytes, problem: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)

    def rows() -> list[Piece]:
        return list(open_files(find_files([name], tmp_path, "k"), Dialect(), "k").pieces(["a"]))

    with pytest.raises(ValueError, match=rf"^k: {name}(, |: ){problem}"):
        rows()


VALUES = {"id": ["u1", "u2"], "age": [3, 4]}


@pytest.mark.parametrize(
    "rows", [pd.DataFrame(VALUES), pl.DataFrame(VALUES), pa.table(VALUES)], ids=lambda t: type(t).__module__
)
def test_tables_of_all_libraries_give_the_same_rows(rows: object) -> None:
    table = MemoryTable.of(rows, "nodes.user")
    assert [row for piece in table.pieces(["age", "id"]) for row in piece().batch.to_pylist()] == [
        {"age": 3, "id": "u1"},
        {"age": 4, "id": "u2"},
    ]


def test_other_objects_and_mixed_types_are_refused() -> None:
    with pytest.raises(
        ValueError, match="nodes.user: rows is of type dict: give a pandas, polars or Arrow table"
    ):
        MemoryTable.of({}, "nodes.user")
    with pytest.raises(ValueError, match="nodes.user: the column 'id' has values of several types"):
        MemoryTable.of(pd.DataFrame({"id": ["a", 1]}, dtype=object), "nodes.user")
