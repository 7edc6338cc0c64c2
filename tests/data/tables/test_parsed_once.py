from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from khop import import_tables
from khop.data.tables import import_state as parsed_once
from khop.data.tables.files import CsvTable, Dialect
from khop.data.tables.import_state import ImportState, KeptTable, opened, read_again
from khop.data.tables.read_spec import checked_spec
from khop.data.tables.rows import Table
from khop.data.tables.source import SourceFolder

ROWS = 1_000


def csv_of(path: Path, first: int = 0, names: Sequence[str] = ("u", "i", "price", "kind")) -> Path:
    values = {
        "u": [f"user-{(first + row) * 7 % 90}" for row in range(ROWS)],
        "i": [f"item-{(first + row) ** 2 % 40}" for row in range(ROWS)],
        "price": [None if row % 17 == 0 else f"{row % 13}.5" for row in range(ROWS)],
        "kind": [("buy", "view")[row % 3 % 2] for row in range(ROWS)],
    }
    with pa.CompressedOutputStream(str(path), "gzip") as out:
        pyarrow.csv.write_csv(pa.table({name: values[name] for name in names}), out)
    return path


def two_files(folder: Path) -> CsvTable:
    """The second file has its columns in another order."""
    files = [csv_of(folder / "a.csv.gz"), csv_of(folder / "b.csv.gz", ROWS, ("kind", "price", "i", "u"))]
    return CsvTable.open([(path.name, path) for path in files], Dialect(), "edges.files")


def rows_of(table: Table, columns: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    pieces = [piece() for piece in table.pieces(columns)]
    return [(rows.place.row(at), one) for rows in pieces for at, one in enumerate(rows.batch.to_pylist())]


def kept(table: Table, folder: Path) -> KeptTable:
    return KeptTable(table, ("u", "i", "price"), folder / "rows.arrow")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each file whose text is read."""
    found, batches = [], CsvTable._batches

    def counted(table: CsvTable, name: str, *others: Any) -> Iterator[Any]:  # noqa: ANN401
        found.append(Path(name).name)
        return batches(table, name, *others)

    monkeypatch.setattr(CsvTable, "_batches", counted)
    return found


def test_every_pass_has_the_rows_and_places_of_the_table(tmp_path: Path, reads: list[str]) -> None:
    table = two_files(tmp_path)
    passes = [["price"], ["i", "u"], ["u", "price", "i"]]
    expected = [rows_of(table, columns) for columns in passes]
    reads.clear()
    again = kept(table, tmp_path)
    assert [rows_of(again, columns) for columns in passes] == expected
    assert reads == ["a.csv.gz", "b.csv.gz"]
    assert expected[0][ROWS] == ("b.csv.gz, row 1", {"price": None})


def test_a_pass_that_was_not_completed_keeps_nothing(tmp_path: Path, reads: list[str]) -> None:
    table = kept(two_files(tmp_path), tmp_path)
    begun = iter(table.pieces(["u"]))
    next(begun)()
    begun.close()  # type: ignore[attr-defined]
    assert len(rows_of(table, ["u"])) == 2 * ROWS
    assert reads == ["a.csv.gz", "a.csv.gz", "b.csv.gz"]


def test_a_table_without_rows_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("u,i,price\n")
    table = kept(CsvTable.open([("a.csv", tmp_path / "a.csv")], Dialect(), "edges.files"), tmp_path)
    assert [rows_of(table, ["i"]) for _ in range(3)] == [[], [], []]


def shop(folder: Path, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    edges = {
        "files": [str(folder / "*.csv.gz")],
        "source": "u",
        "destination": "i",
        "columns": {"price": "number"},
    }
    return {"nodes": {"user": {}, "item": {}}, "edges": {"user buys item": {**edges, **changes}}}


def typed(folder: Path) -> dict[str, Any]:
    """Two edge types of one table."""
    each = {"source": "u", "destination": "i"}
    return {
        "nodes": {"user": {}, "item": {}},
        "edges_from": [{
            "files": [str(folder / "*.csv.gz")],
            "edges": [
                {"type": "user buys item", "where": "kind = 'buy'", "columns": {"price": "number"}, **each},
                {"type": "user views item", "where": "kind = 'view'", **each},
            ],
        }],
    }  # fmt: skip


@pytest.mark.core(1)
@pytest.mark.parametrize("spec_of", [shop, typed])
def test_text_is_read_once_and_the_graph_is_the_same(
    tmp_path: Path,
    reads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    spec_of: Any,  # noqa: ANN401
) -> None:
    two_files(tmp_path)
    import_tables(spec_of(tmp_path), tmp_path / "kept", threads=2)
    assert reads == ["a.csv.gz", "b.csv.gz"]
    monkeypatch.setattr(parsed_once, "read_again", lambda _: [])
    import_tables(spec_of(tmp_path), tmp_path / "again", threads=2)
    assert len(reads) > 4
    kept_graph, again = ((tmp_path / name / "graph.json").read_bytes() for name in ("kept", "again"))
    assert kept_graph == again


def state_of(spec: dict[str, Any]) -> ImportState:
    return opened(checked_spec(spec, "spec"), SourceFolder(Path(), {}), 1, 1 << 26, lambda *_: None)


def test_the_file_ends_with_the_reading(tmp_path: Path) -> None:
    two_files(tmp_path)
    state = state_of(shop(tmp_path))
    with parsed_once.parsed_once(state, tmp_path):
        (source,) = state.edge_sources.values()
        list(source.pieces(["u"]))
        assert (tmp_path / "rows-0.arrow").stat().st_size > 0
    assert not list(tmp_path.glob("*.arrow"))
    assert not _left_by_an_error(state, tmp_path)


def _left_by_an_error(state: ImportState, folder: Path) -> list[Path]:
    with suppress(KeyError), parsed_once.parsed_once(state, folder):
        (folder / "rows-0.arrow").touch()
        raise KeyError
    return list(folder.glob("*.arrow"))


def test_a_table_that_is_read_once_is_not_kept(tmp_path: Path) -> None:
    two_files(tmp_path)
    users, items = (
        {"rows": pa.table({"id": [f"{name}-{n}" for n in range(90)]}), "id": "id"}
        for name in ("user", "item")
    )
    spec = {**shop(tmp_path, columns={}), "nodes": {"user": users, "item": items}}
    assert read_again(state_of(spec)) == []
    assert len(read_again(state_of(shop(tmp_path)))) == 1
