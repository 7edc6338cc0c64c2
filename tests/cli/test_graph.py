"""`khop verify`, `khop graph sort`, `khop graph cluster` and `khop graph walks`, as a user runs them.

`khop partition`: parts of a graph, and what is said of them.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cli.conftest import Ran
from khop import partition_graph
from khop.api.open_graph import open_graph
from khop.cli.main import app
from khop.graph.build import write_graph
from khop.graph.folder import open_folder
from khop.graph.partitions.book import read_book
from khop.graph.tables import EdgeTable, NodeTable
from khop.run.build import prepare
from khop.run.read import RawRun
from khop.sampling.random_walks import Node2Vec, WalkCounts, walk_neighbors
from support.small_folders import write_learnable_graph
from support.small_link_folders import write_shop
from support.small_typed_folders import write_typed_graph

NEAR = ("item", "near", "item")
BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought-by", "user")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """1,200 users, three items of which the last is isolated, each user bought item 0 or 1."""
    users = np.arange(1200)
    items = users % 2
    x = np.zeros((3, 8), np.float32)
    table = NodeTable(
        columns={"x": x, "y": np.array([0, 1, 6])}, splits={"train": np.array([0, 2])}, num_classes={"y": 7}
    )
    edges = {
        BUYS: EdgeTable(users, items, {"price": users * 1.0}),
        BOUGHT_BY: EdgeTable(items, users, reverse_of=BUYS),
    }
    return write_graph(tmp_path / "shop", {"user": NodeTable(1200), "item": table}, edges)


def khop(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, arguments)
    return result.exit_code, result.output


def test_verify_of_a_good_folder_is_silent_about_files(graph: Path) -> None:
    assert khop("verify", str(graph)) == (0, f"{graph}: no problems found\n")
    assert json.loads(khop("verify", "--json", str(graph))[1]) == {"path": str(graph), "findings": []}


def test_verify_names_each_damaged_file_and_fails(graph: Path) -> None:
    damaged = ("edges/user__buys__item/indices.npy", "nodes/item/x.npy")
    for file in damaged:
        with (graph / file).open("r+b") as out:
            out.seek(-1, os.SEEK_END)
            out.write(b"\x55")
    code, output = khop("verify", str(graph))
    problem = "checksum differs from graph.json; the file was changed or damaged. Re-import, or copy it again"
    assert code == 1
    assert output.splitlines() == [f"{graph / file}: {problem}" for file in damaged] + [
        f"{graph}: 2 findings"
    ]

    code, output = khop("verify", "--json", str(graph))
    assert code == 1
    assert [finding["file"] for finding in json.loads(output)["findings"]] == list(damaged)


def test_sort_writes_the_graph_in_the_order_of_time(khop_command: Callable[..., Ran], tmp_path: Path) -> None:
    times = {"time": np.array([30, 10, 20])}
    edges = {("a", "to", "a"): EdgeTable(np.array([0, 1, 2]), np.array([0, 0, 0]), times)}
    plain, out = str(write_graph(tmp_path / "plain", {"a": NodeTable(3)}, edges)), tmp_path / "sorted"
    done = khop_command("graph", "sort", plain, str(out), "--by", "time")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == f"{out}: sorted by time. Show it: khop info {out}\n"
    assert open_folder(out).csc(("a", "to", "a")).indices.tolist() == [1, 2, 0]
    wrong = khop_command("graph", "sort", plain, str(tmp_path / "other"), "--by", "when")
    assert wrong.code == 2
    assert "sort_by 'when': no such column of times" in wrong.stderr


def test_cluster_writes_the_graph_with_a_column(khop_command: Callable[..., Ran], tmp_path: Path) -> None:
    edges = {("a", "to", "a"): EdgeTable(np.array([0, 1, 2]), np.array([1, 2, 3]))}
    plain, out = str(write_graph(tmp_path / "plain", {"a": NodeTable(4)}, edges)), tmp_path / "clustered"
    done = khop_command("graph", "cluster", plain, str(out), "--clusters", "2", "--column", "c")
    assert (done.code, done.stderr) == (0, "")
    expected = f"{out}: 2 clusters. Train on them: khop train --graph {out} --sampler cluster\n"
    assert done.stdout == expected
    assert sorted(open_folder(out).columns()["a"]["c"].tolist()) == [0, 0, 1, 1]
    wrong = khop_command("graph", "cluster", plain, str(tmp_path / "b"), "--clusters", "2", "--method", "zz")
    assert wrong.code == 2
    assert "method 'zz'" in wrong.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("sort", "--by", "time"),
        ("resplit", "--ratio", "0.5,0.25,0.25"),
        ("cluster", "--clusters", "2"),
        ("walks", "--path", "a to a"),
        ("split", "--links", "a to a"),
        ("propagate", "--columns", "x", "--hops", "1"),
    ],
    ids=lambda words: words[0],
)
def test_the_printed_command_names_a_folder_with_a_blank_as_one_word(
    khop_command: Callable[..., Ran], tmp_path: Path, words: tuple[str, ...]
) -> None:
    columns: dict[str, Any] = {"x": np.ones((8, 2), np.float32), "y": np.arange(8) % 2}
    nodes = NodeTable(columns=columns, splits={"train": np.arange(8)}, num_classes={"y": 2})
    edges = EdgeTable(np.arange(8), np.arange(8)[::-1].copy(), {"time": np.arange(8)})
    given = write_graph(tmp_path / "a graph", {"a": nodes}, {("a", "to", "a"): edges})
    out = tmp_path / "its copy"
    done = khop_command("graph", words[0], str(given), str(out), *words[1:])
    assert done.code == 0, done.stderr
    printed = shlex.split(done.stdout.splitlines()[0].partition(": khop ")[2])
    assert {str(out), str(out / "train")} & {*printed}


def test_walks_write_an_edge_type_that_a_run_samples(
    khop_command: Callable[..., Ran], tmp_path: Path
) -> None:
    shop, out = write_shop(tmp_path / "shop", users=30, items=20), tmp_path / "walked"
    path = ["user buys item", "item bought_by user"]
    words = ["graph", "walks", str(shop), str(out), "--walks", "5", "--keep", "3", "--seed", "2"]
    done = khop_command(*words, "--path", ", ".join(path), "--relation", "near")
    assert (done.code, done.stderr) == (0, "")
    fanouts = {"item near item": 3, "*": 0}
    assert done.stdout == (
        f"{out}: edges item near item with visits. Train on them: khop train --graph {out} "
        '--fanouts \'{"item near item" = 3, "*" = 0}\' --weight visits\n'
    )
    values = {
        "graph": str(out),
        "task": {"kind": "link-prediction", "target": "user buys item"},
        "links": {"eval_negatives": 1, "val": 0.2, "test": 0.2},
        "sampler": {"fanouts": [fanouts], "rule": {"kind": "top-k", "column": "visits"}},
    }
    batch = prepare(RawRun(values, "run.toml"), tmp_path / "cache").loader().batch(0, 0)
    assert [t for t, of in batch.blocks[0].adjacencies.items() if of.indices.numel()] == [NEAR]
    for path, bias, message in (
        ("user buys item", (), "must lead back"),
        ("user likes item, item likes user", (), "no edge type ('user', 'likes', 'item')"),
        ("user buys item, item bought_by user", ("-q", "2"), "must be of one edge type"),
        ("user buys item, item bought_by user", ("-p", "0"), "p 0.0: must be from 1/1024 to 1024"),
    ):
        wrong = khop_command("graph", "walks", str(shop), str(tmp_path / "b"), "--path", path, *bias)
        assert wrong.code == 2
        assert message in wrong.stderr


def test_walks_take_the_parameters_of_node2vec(khop_command: Callable[..., Ran], tmp_path: Path) -> None:
    graph, path = write_learnable_graph(tmp_path / "graph", nodes=60), "item like item"
    counts = WalkCounts(6, 3, 0.2, keep=60)
    edges = {}
    for name, words, bias in (
        ("uniform", ["--relation", "near"], None),
        ("biased", ["--relation", "near", "-p", "4", "--in-out-parameter", "0.5"], Node2Vec(4, 0.5)),
    ):
        out = tmp_path / name
        numbers = ["--walks", "6", "--rounds", "3", "--stop", "0.2", "--keep", "60", "--seed", "2"]
        done = khop_command("graph", "walks", str(graph), str(out), "--path", path, *numbers, *words)
        assert (done.code, done.stderr) == (0, "")
        (table,) = walk_neighbors(open_graph(graph), [path], counts, bias=bias, seed=2).chunks
        edges[name] = open_graph(out).csc(NEAR).indices.long()
        assert torch.equal(edges[name], torch.as_tensor(table.sources))
    assert not torch.equal(edges["biased"], edges["uniform"])


Command = Callable[..., Any]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def test_partition_writes_what_partition_graph_writes_and_says_how_good_it_is(
    khop_command: Command, shop: Path, tmp_path: Path
) -> None:
    given = ("--parts", "3", "--balance", "nodes, edges", "--fanouts", "5,5", "--batch-size", "30")
    done = khop_command("partition", str(shop), str(tmp_path / "out"), *given)
    assert (done.code, done.stderr) == (0, "")
    book = partition_graph(
        shop, tmp_path / "same", 3, balance=["nodes", "edges"], fanouts=[5, 5], batch_size=30
    )
    assert read_book(tmp_path / "out") == book
    assert book.quality.remote_share is not None
    said = " ".join(done.stdout.split())
    assert f"{book.quality.cut['all']:.1%} of the edges connect two parts (" in said
    assert f"{book.quality.remote_share:.1%} of a batch's nodes will be remote, at fanouts 5,5" in said
    for part in range(3):
        assert f"part-{part:04d}" in said


def test_json_is_one_object(khop_command: Command, shop: Path, tmp_path: Path) -> None:
    done = khop_command("partition", str(shop), str(tmp_path / "out"), "--parts", "2", "--json")
    report = json.loads(done.stdout)
    assert report["method"] == "ldg"
    assert report["cut"]["all"] == read_book(tmp_path / "out").quality.cut["all"]
    assert report["remote_share"] is None


def test_verify_reads_all_parts(khop_command: Command, shop: Path, tmp_path: Path) -> None:
    partition_graph(shop, tmp_path / "out", 2)
    done = khop_command("verify", str(tmp_path / "out"))
    assert (done.code, done.stdout) == (0, f"{tmp_path / 'out'}: no problems found\n")
    (tmp_path / "out" / "part-0001" / "graph.json").unlink()
    done = khop_command("verify", str(tmp_path / "out"))
    assert done.code == 1
    assert "part-0001: " in done.stdout


def test_the_files_of_a_machine_are_those_that_it_needs_and_no_others(
    khop_command: Command, shop: Path, tmp_path: Path
) -> None:
    parts = tmp_path / "out"
    partition_graph(shop, parts, 3)
    everything = {str(file.relative_to(parts)) for file in parts.rglob("*") if file.is_file()}

    def files(*given: str) -> set[str]:
        done = khop_command("part-files", str(parts), "--machines", "2", *given)
        assert (done.code, done.stderr) == (0, "")
        return set(done.stdout.split())

    of_all = {file for file in everything if not file.startswith("part-")}
    assert files("--machine", "0", "--placement", "whole") == everything
    edges = ("indptr.npy", "indices.npy", "times.npy", "columns/time.npy", "columns/weight.npy", "graph.json")
    for machine, own in (("0", ("part-0000/", "part-0001/")), ("1", ("part-0002/",))):
        mine = {file for file in everything if file.startswith(own)}
        assert files("--machine", machine, "--placement", "all") == of_all | mine
        of_others = {file for file in everything - of_all - mine if file.endswith(edges)}
        assert files("--machine", machine) == of_all | mine | of_others
    # Of four processes on two machines the second is one of those that hold part 1.
    assert "part-0001/nodes/user/x.npy" in files("--machine", "1", "--procs", "2")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--parts", "0"], "khop: parts 0: must be 1 to 4096"),
        (["--parts", "2", "--fanouts", "5,x"], "khop: --fanouts 'x': give numbers as 15,10,5"),
        (["--parts", "2", "--balance", "rows"], "khop: balance 'rows': parts can be balanced by nodes"),
    ],
)
def test_bad_input_is_one_line(
    khop_command: Command, shop: Path, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    done = khop_command("partition", str(shop), str(tmp_path / "out"), *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(complaint)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("machine", "procs", "complaint"),
    [("2", "1", "machine 2 of 2 with 1 process"), ("0", "0", "machine 0 of 2 with 0 processes each")],
)
def test_a_machine_that_is_none_is_named(
    khop_command: Command, shop: Path, tmp_path: Path, machine: str, procs: str, complaint: str
) -> None:
    partition_graph(shop, tmp_path / "out", 2)
    given = ("--machine", machine, "--machines", "2", "--procs", procs)
    done = khop_command("part-files", str(tmp_path / "out"), *given)
    assert done.code == 2
    assert complaint in done.stderr


def test_a_folder_that_is_there_already_is_left_alone(
    khop_command: Command, shop: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    done = khop_command("partition", str(shop), str(tmp_path / "out"), "--parts", "2")
    assert done.code == 2
    assert "exists already; remove it or choose another name" in done.stderr
