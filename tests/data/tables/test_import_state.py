"""Tables of an import are opened and checked before rows are read."""

from __future__ import annotations

import gzip
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from data.tables.shop import spec
from khop import open_graph, open_ids
from khop.data.tables.import_state import edge_reader, node_reader, opened, table_rows
from khop.data.tables.pipeline import import_tables
from khop.data.tables.read_spec import checked_spec
from khop.data.tables.source import OpenSource, SourceFolder
from khop.data.tables.spec import Source


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
    assert table_rows(source(rows=table)) == ROWS
    assert table_rows(source(files=(str(tmp_path / "a.parquet"),))) == ROWS
    for name in ("a.csv", "a.csv.gz"):
        assert table_rows(source(files=(str(tmp_path / name),))) == pytest.approx(ROWS, rel=0.15)


def test_small_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("u,i\n1,2\n3,4\n")
    assert table_rows(source(files=(str(tmp_path / "a.csv"),))) == 3  # with the line of names


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


@pytest.mark.parametrize("limit", [1 << 12, 1 << 18])  # of a file: that of kept rows; that of sorted edges
def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    pyarrow.csv.write_csv(events(), tmp_path / "a.csv")
    edges = {
        "files": [str(tmp_path / "a.csv")],
        "source": "u",
        "destination": "i",
        "columns": {"t": "number"},
    }
    if limit > 1 << 12:
        pq.write_table(events(), tmp_path / "a.parquet")
        edges["files"] = [str(tmp_path / "a.parquet")]
    values = {"nodes": {"a": {}, "b": {}}, "edges": {"a to b": edges}}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match=r"out: no space for .*; nothing was left behind\. Free some space"):
            import_tables(values, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path.name for path in tmp_path.iterdir() if path.suffix not in (".csv", ".parquet")]


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
