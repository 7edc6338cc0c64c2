"""khop import relbench:NAME: databases as their package stores them."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import khop
from data.formats.layouts import relbench
from data.formats.server import FileServer
from khop.data.formats.relbench import RelbenchTable, relbench_importer, relbench_spec, relbench_task
from khop.data.importers import ImportContext, Relbench
from khop.graph.folder import open_folder, recorded_cut_offs


@pytest.mark.core(2)
@pytest.mark.parametrize("root", ["rel-f1/db", "rel-f1", "."])
def test_tables_and_foreign_keys(root: str, tmp_path: Path) -> None:
    relbench(tmp_path / "rel-f1" / "db")
    importer = relbench_importer(Relbench("rel-f1", root=root), ImportContext(tmp_path))
    said = importer.write(tmp_path / "out").split("\n")
    assert said[0] == "2 drivers, 4 results; 2 results driverId drivers, 2 drivers rev-driverId results"
    assert said[1:3] == [
        "results driverId drivers: left out 1 edge with an unknown source or destination",
        "results driverId drivers: left out 1 edge with a null source or destination",
    ]
    graph = khop.open_graph(tmp_path / "out")
    edge_type = ("results", "driverId", "drivers")
    assert graph.schema.edge_types == (edge_type, ("drivers", "rev-driverId", "results"))
    assert (
        graph.num_edges(edge_type) == 2
    )  # of the others, one has no driver and one a driver that is not there
    cut_offs = recorded_cut_offs(open_folder(tmp_path / "out"))
    assert cut_offs is not None
    assert cut_offs.val < cut_offs.test
    assert graph.columns["drivers"]["x"].shape[0] == 2


def test_a_database_from_a_server_with_other_cut_offs(tmp_path: Path) -> None:
    relbench(tmp_path / "files" / "db")
    (tmp_path / "served" / "rel-own").mkdir(parents=True)
    shutil.make_archive(str(tmp_path / "served" / "rel-own" / "db"), "zip", tmp_path / "files")
    context = ImportContext(tmp_path, cache=tmp_path / "cache")
    with FileServer(tmp_path / "served") as server:
        options = Relbench("rel-own", mirror=server.url, val="2004-01-01", test="2006-01-01")
        relbench_importer(options, context).write(tmp_path / "out")
    assert khop.open_graph(tmp_path / "out").num_nodes("results") == 4


def test_cut_offs_and_folders_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="relbench:rel-own: give the first days of validation and test"):
        relbench_importer(Relbench("rel-own"), ImportContext(tmp_path))
    with pytest.raises(ValueError, match="--val soon: must be a day"):
        relbench_importer(Relbench("rel-f1", val="soon"), ImportContext(tmp_path))
    with pytest.raises(ValueError, match=r"has none of \*.parquet, db/\*.parquet"):
        relbench_importer(Relbench("rel-f1", root="."), ImportContext(tmp_path)).write(tmp_path / "out")


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


@pytest.mark.parametrize("keys", ["[1]", "{", '{"driverId": 1}', '"drivers"'])
def test_a_damaged_record_of_keys_is_named(tmp_path: Path, keys: str) -> None:
    table = pa.table({"a": [1]}).replace_schema_metadata({"fkey_col_to_pkey_table": keys})
    pq.write_table(table, tmp_path / "train.parquet")
    for read in (RelbenchTable.read, lambda path: relbench_task(path.parent, "task", "rel-f1")):
        with pytest.raises(ValueError, match=r"train.parquet: its record of keys is damaged; download it ag"):
            read(tmp_path / "train.parquet")
