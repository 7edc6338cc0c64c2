"""Tables of an import are opened and checked before rows are read.

Disk space of an import: estimated before rows are read, and refused before anything is written.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.tables.shop import spec
from khop import open_graph, open_ids
from khop.data.tables.import_state import edge_reader, import_bytes, node_reader, opened, peak_bytes, rows_of
from khop.data.tables.labels import keys_of
from khop.data.tables.pipeline import import_tables
from khop.data.tables.read_spec import checked_spec
from khop.data.tables.source import OpenSource, SourceFolder
from khop.data.tables.spec import Source
from khop.graph.edge_runs import EdgeRuns
from khop.kernels.id_table import id_table


def test_readers_and_tables_of_ids_exist_for_all_types(tmp_path: Path) -> None:
    state = opened(checked_spec(spec(), "spec"), SourceFolder(tmp_path, {}), 1, 1 << 20, lambda *_: None)
    assert {node_type: ids.kind for node_type, ids in state.ids.items()} == {
        "user": "string",
        "item": "string",
    }
    assert state.unit == "us"
    for edge_type in state.rules():
        assert edge_reader(state, edge_type).source.spec.time == "ts"
    assert node_reader(state, "user", None).columns()


def test_a_column_that_does_not_exist_is_found_without_reading(tmp_path: Path) -> None:
    values = checked_spec(spec(**{"nodes.user.id": "user"}), "spec")
    with pytest.raises(ValueError, match=r"nodes\.user\.id.*'user'.*user_id"):
        opened(values, SourceFolder(tmp_path, {}), 1, 1 << 20, lambda *_: None)


ROWS = 60_000


def events() -> pa.Table:
    random = np.random.default_rng(1)
    users, items = (random.integers(1000, size=ROWS) for _ in range(2))
    return pa.table(
        {"u": [f"user-{i}" for i in users], "i": [f"{i}" for i in items], "t": random.random(ROWS)}
    )


def source(**values: Any) -> OpenSource:  # noqa: ANN401
    return OpenSource.open(Source(**values), "edges", SourceFolder(Path(), {}))


def test_rows_are_counted_or_estimated_from_the_first_bytes(tmp_path: Path) -> None:
    table = events()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7000)
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    assert rows_of(source(rows=table)) == ROWS
    assert rows_of(source(files=(str(tmp_path / "a.parquet"),))) == ROWS
    for name in ("a.csv", "a.csv.gz"):
        assert rows_of(source(files=(str(tmp_path / name),))) == pytest.approx(ROWS, rel=0.15)
    assert rows_of(source(rows=table, where="t < 0.1")) == 0  # only its rows tell


def test_small_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("u,i\n1,2\n3,4\n")
    assert rows_of(source(files=(str(tmp_path / "a.csv"),))) == 3  # with the line of names


def test_the_estimate_is_near_the_bytes_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    save = EdgeRuns.save
    monkeypatch.setattr(
        EdgeRuns, "save", lambda run: (written.append(run.count * run.spill.row_bytes), save(run))[1]
    )
    for columns in ({}, {"t": "raw"}):
        values = {"edges": {"a to b": {
            "rows": events(), "source": "u", "destination": "i", "columns": columns, "reverse": "back",
        }}, "nodes": {"a": {}, "b": {}}}  # fmt: skip
        state = opened(checked_spec(values, "spec"), SourceFolder(Path(), {}), 1, 1 << 26, lambda *_: None)
        written.clear()
        import_tables(values, tmp_path / f"out-{len(columns)}")
        assert 0.75 * sum(written) <= import_bytes(state) <= 1.1 * sum(written)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_dictionaries_that_exceed_their_share_of_memory_count_as_files(tmp_path: Path, kind: str) -> None:
    ids = pa.table(
        {"id": [f"customer-{number:0{60 if kind == 'parquet' else 10}d}" for number in range(20_000)]}
    )
    if kind == "parquet":
        pq.write_table(ids, tmp_path / "a.parquet", row_group_size=6000)
    else:
        pyarrow.csv.write_csv(ids, tmp_path / "a.csv")
    values = {"nodes": {"a": {"files": [str(tmp_path / f"a.{kind}")], "id": "id"}}, "edges": {}}

    def needed(memory: int) -> int:
        return import_bytes(
            opened(checked_spec(values, "spec"), SourceFolder(Path(), {}), 1, memory, lambda *_: None)
        )

    table = id_table("string")
    table.append(keys_of(ids["id"].combine_chunks(), "string", "id", str))
    assert needed(1 << 20) - needed(1 << 26) == pytest.approx(table.nbytes, rel=0.3)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100))))
def test_the_peak_is_the_most_that_is_on_the_disk_at_a_time(types: list[tuple[int, int]]) -> None:
    used, seen = 0, [0]
    for arrays, file in types:
        seen.append(used + arrays)
        used += arrays - file
    assert peak_bytes(types) == max(seen)


def test_too_small_a_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=20))
    with pytest.raises(
        ValueError, match=r"out: the import needs [\d.]+ (bytes|kB) of disk; 20 bytes are free; free some"
    ):
        import_tables(spec(**{"edges.user buys item.where": None}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_filters_hid_is_refused_before_the_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of all tables are unknown until they are read."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=20))
    values = spec()
    for table in (*values["nodes"].values(), *values["edges"].values()):
        table["where"] = "1 = 1"
    with pytest.raises(ValueError, match=r"importing: the graph needs .* of disk"):
        import_tables(values, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("column", "dtype", "expected"),
    [
        ("number", pa.float32(), 4),
        ({"kind": "text", "width": 128}, pa.string(), 512),
        ("raw", pa.int8(), 1),
        ("raw", pa.float32(), 4),
        ({"kind": "raw", "dtype": "int64"}, pa.int8(), 8),
        ({"kind": "date", "parts": ["age", "month", "hour"]}, pa.timestamp("s"), 20),
        ("vector", pa.list_(pa.float32(), 100), 400),
        ("category", pa.string(), 12),
        ({"kind": "category", "encoding": "embedding"}, pa.string(), 8),
    ],
)
def test_columns_count_with_their_widths(column: object, dtype: Any, expected: int) -> None:  # noqa: ANN401
    table = pa.table({"id": pa.array(range(1000)), "c": pa.nulls(1000, dtype)})
    sizes = []
    for columns in ({}, {"c": column}):
        values = {"nodes": {"a": {"rows": table, "id": "id", "columns": columns}}}
        state = opened(checked_spec(values, "spec"), SourceFolder(Path(), {}), 1, 1 << 26, lambda *_: None)
        sizes.append(import_bytes(state))
    assert sizes[1] - sizes[0] == 1000 * expected


def test_a_disk_too_small_for_all_categories_is_refused_before_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number is known when the rows were read once."""
    table = pa.table({"id": pa.array(range(200)), "c": [f"c{n}" for n in range(200)]})
    values = {"nodes": {"a": {"rows": table, "id": "id", "columns": {"c": "category"}}}}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(ValueError, match=r"importing/graph: node type a needs [\d.]+ (bytes|kB) of disk"):
        import_tables(values, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


EDGES = "edges.user buys item"


def test_types_without_rows_have_the_ids_that_edges_name(tmp_path: Path) -> None:
    import_tables(spec(**{"nodes.user": {}}), tmp_path / "out")
    graph = open_graph(tmp_path / "out")
    assert graph.num_nodes("user") == 3
    csc = graph.folder.csc(("user", "buys", "item"))  # type: ignore[union-attr]
    pairs = list(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))
    assert pairs == [(1, 0), (0, 0), (0, 1), (2, 1), (1, 2), (0, 2), (2, 3)]
    assert open_ids(tmp_path / "out", "user").ids([0, 1, 2]) == ["u1", "u2", "u3"]


def test_new_sources_of_an_edge_type_come_before_its_new_destinations(tmp_path: Path) -> None:
    follows = pa.table({"from": ["u9", "u8", "u9"], "to": ["u7", "u9", "u8"]})
    edges = {"user follows user": {"rows": follows, "source": "from", "destination": "to", "orphans": "add"}}
    done = import_tables(spec(edges=edges, splits=None), tmp_path / "out")
    assert open_ids(tmp_path / "out", "user").ids([3, 4, 5]) == ["u9", "u8", "u7"]
    assert done.notes[0] == "user follows user: 3 nodes of user added by edges"
