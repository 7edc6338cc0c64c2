"""`khop import`: specs, sets and their errors."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from data.formats.layouts import arxiv
from khop.cli.main import app
from khop.graph.folder import open_folder

Command = Callable[..., Any]
KINDS = "ogb, pyg, igb, dgl, movielens, relbench, edges"

WITHOUT_DUCKDB = """
import sys
sys.modules["duckdb"] = None
from khop.cli.main import run
run(["import", *sys.argv[1:]])
"""


def test_a_spec_without_a_kind_is_answered_with_the_known_ones(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text('root = "sets"\n')
    ran = khop_command("import", "spec.toml")
    assert ran.code == 2
    assert ran.stderr.replace("\n", " ").startswith(
        f"khop: kind is missing: name the importer, one of {KINDS}, or package.module:Class (spec.toml)"
    )


def test_a_graph_that_is_built_in_is_not_imported(khop_command: Command) -> None:
    ran = khop_command("import", "debian")
    assert ran.code == 2
    assert ran.stderr.startswith(
        "khop: khop import debian: this graph is built in; train on it with khop train debian"
    )


def test_other_sources_are_answered_with_the_known_one(khop_command: Command) -> None:
    ran = khop_command("import", "gentoo")
    assert ran.code == 2
    assert f"must be one of {KINDS}, or package.module:Class" in ran.stderr.replace("\n", " ")


def test_other_data_is_named_with_the_way_to_import_it(khop_command: Command) -> None:
    ran = khop_command("import", "shop.toml")
    assert ran.code != 0
    assert ran.stderr.startswith("khop: shop.toml: no such file; give a file with kind = ...")
    assert "khop.write_graph" in ran.stderr


SHOP = """
[nodes.user]
files = ["users.csv"]
id = "id"
[nodes.item]
[edges."user buys item"]
files = ["buys.csv"]
source = "user"
destination = "item"
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spec and its tables; the command runs in it."""
    (tmp_path / "shop.toml").write_text(SHOP)
    (tmp_path / "users.csv").write_text("id,age\nu1,20\nu2,30\n")
    (tmp_path / "buys.csv").write_text("user,item\nu1,a\nu2,b\nu2,a\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tables_become_a_folder_with_the_name_of_the_spec(khop_command: Command, shop: Path) -> None:
    ran = khop_command("import", "shop.toml", "--threads", "2", "--memory", "100MB")
    assert ran.stderr == ""
    assert ran.code == 0
    assert ran.stdout == (
        "graphs/shop: 2 user, 2 item; 3 user buys item\nShow it: khop info graphs/shop\n"
        "Train on it: khop init graphs/shop > run.toml && khop train run.toml\n"
    )
    assert open_folder("graphs/shop").num_edges(("user", "buys", "item")) == 3


def test_a_graph_without_rows_is_named_by_import_and_by_train(khop_command: Command, shop: Path) -> None:
    (shop / "buys.csv").write_text("user,item\n")
    ran = khop_command("import", "shop.toml", "linkless")
    assert (ran.code, ran.stdout.splitlines()[0]) == (0, "linkless: 2 user, 0 item; 0 user buys item")
    ran = khop_command("train", "linkless", "--task", "link-prediction", "--epochs", "1")
    assert ran.code == 2
    assert "task.target is 'user buys item': the graph has no edges of this type; import some" in ran.stderr
    (shop / "users.csv").write_text("id,age\n")
    ran = khop_command("import", "shop.toml", "empty")
    assert ran.stdout.endswith(
        "The graph has no nodes to train on: the tables are empty, or where selects no rows\n"
    )


def test_a_spec_of_edges_alone_and_seconds_of_times_are_read_and_notes_say_so(
    khop_command: Command, shop: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (shop / "buys.csv").write_text("user,item,at\nu1,a,1262304000\nu2,b,1262304060\n")
    edges = (
        '[edges."user buys item"]\nfiles = ["buys.csv"]\nsource = "user"\ndestination = "item"\ntime = "at"\n'
    )
    (shop / "edges.toml").write_text(edges)
    ran = khop_command("import", "edges.toml", "out")
    assert ran.code == 0, ran.stderr
    notes = [str(one.message) for one in recwarn]
    assert any(
        note.startswith("nodes.user is not in the spec: its nodes are the ids of the edges") for note in notes
    )
    assert 'edges."user buys item".time: whole numbers are taken as s since 1970; write unit = "s"' in notes
    graph = open_folder("out")
    assert graph.columns()["user", "buys", "item"]["time"].tolist() == [1262304000, 1262304060]


@pytest.mark.parametrize("times", [[5, 9], [1262304000, 1262304000000]], ids=["early", "of two units"])
def test_numbers_that_may_be_of_any_unit_need_one(
    khop_command: Command, shop: Path, times: list[int]
) -> None:
    pq.write_table(pa.table({"user": ["u1", "u2"], "item": ["a", "b"], "at": times}), shop / "buys.parquet")
    spec = (shop / "shop.toml").read_text().replace("buys.csv", "buys.parquet") + 'time = "at"\n'
    (shop / "shop.toml").write_text(spec)
    ran = khop_command("import", "shop.toml", "out")
    assert ran.code == 2
    assert "times are numbers without a unit" in ran.stderr.replace("\n", " ")


def test_a_list_of_edges_and_a_folder_of_dgl_need_no_name_of_their_importer(
    khop_command: Command, shop: Path
) -> None:
    (shop / "links.txt").write_text("a b\nb c\n")
    ran = khop_command("import", "links.txt", "out", "--undirected")
    assert ran.code == 0, ran.stderr
    assert "links.txt is read as edges:links.txt" in ran.stdout
    assert len(open_folder("out").schema.edge_types) == 2
    ran = khop_command("import", "buys.csv", "out-2")
    assert ran.code == 2
    assert "khop import --guess buys.csv > tables.toml" in ran.stderr.replace("\n", " ")
    (shop / "cited").mkdir()
    (shop / "cited" / "meta.yaml").write_text(
        "dataset_name: cited\nedge_data:\n- file_name: e.csv\nnode_data:\n- file_name: n.csv\n"
    )
    (shop / "cited" / "e.csv").write_text("src_id,dst_id\n0,1\n")
    (shop / "cited" / "n.csv").write_text("node_id\n0\n1\n")
    ran = khop_command("import", "cited", "out-3")
    assert ran.code == 0, ran.stderr
    assert "cited is read as dgl:cited" in ran.stdout


def test_a_bad_table_is_one_sentence(khop_command: Command, shop: Path) -> None:
    (shop / "buys.csv").write_text("user,item\nu1,a\nu3,b\n")
    ran = khop_command("import", "shop.toml", "out")
    assert ran.code == 2
    assert ran.stderr.replace("\n", " ").startswith(
        "khop: buys.csv, row 2: edges.\"user buys item\": user is 'u3', and no 'user' has this id;"
    )
    assert not Path("out").exists()


@pytest.mark.long
@pytest.mark.parametrize("source", ["shop.toml", "edges:list.txt"])
def test_a_missing_package_is_named_with_its_installation(shop: Path, source: str) -> None:
    """In a process of its own: an import that failed would leave other modules to the tests after it."""
    command = [sys.executable, "-c", WITHOUT_DUCKDB, source]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("khop: khop import needs pyarrow and duckdb: pip install pyarrow duckdb")


def test_a_spec_is_proposed_on_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("users.csv").write_text("user_id,age\na,1\nb,2\n")
    Path("likes.csv").write_text("user_id,other_user\na,b\na,a\n")
    Path("extra.csv").write_text("extra_id\nx\n")
    result = CliRunner().invoke(app, ["import", "--guess", "users.csv", "likes.csv", "extra.csv"])
    assert result.exit_code == 0, result.output
    assert tomllib.loads(result.stdout)["nodes"]["user"]["id"] == "user_id"
    missing = CliRunner().invoke(app, ["import"])
    assert "the data to import are missing" in str(missing.exception)


def test_a_standard_set_is_named_after_its_kind(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arxiv(tmp_path)
    monkeypatch.chdir(tmp_path)
    ran = khop_command("import", "--undirected", "ogb:ogbn-arxiv", "out", "--root", str(tmp_path))
    assert ran.code == 0, ran.stderr
    assert ran.stdout.endswith("out: 5 node; 8 node to node. Show it: khop info out\n")
    assert khop_command("info", "out").code == 0
    ran = khop_command("import", "ogb:arxiv")
    assert ran.code == 2
    assert "ogb:arxiv: no such node or link set; did you mean ogbn-arxiv" in ran.stderr


def test_a_header_and_what_is_left_out_are_said(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("Source,Target\n1,2\n2,3\n")
    ran = khop_command("import", f"edges:{tmp_path / 'a.csv'}", "out")
    assert ran.stdout == (
        "out: 3 node; 2 node to node. Show it: khop info out\n"
        "the first line, 'Source,Target', names the columns; --header no reads it as an edge\n"
    )
    ran = khop_command("import", f"edges:{tmp_path / 'a.csv'}", "other", "--header", "no")
    assert ran.stdout == "other: 5 node; 3 node to node. Show it: khop info other\n"
    assert khop_command("lookup", "out", "node", "2").stdout.startswith("2\t1\n")
    assert khop_command("lookup", "other", "node", "Source").stdout.startswith("Source\t0\n")
    ran = khop_command("lookup", "out", "node", "02")
    assert (ran.code, "id '02': ids of 'node' are integers" in ran.stderr) == (2, True)
