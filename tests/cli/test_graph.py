"""`khop verify`, `khop graph sort`, `khop graph cluster` and `khop graph walks`, as a user runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from cli.conftest import Ran
from khop.api.open_graph import open_graph
from khop.cli.main import app
from khop.config.build import prepare
from khop.config.read import RawRun
from khop.graph.build import write_graph
from khop.graph.folder import open_folder
from khop.graph.tables import EdgeTable, NodeTable
from khop.sampling.node2vec import Node2Vec
from khop.sampling.walk_neighbors import WalkCounts, walk_neighbors
from support.small_folders import write_learnable_graph
from support.small_link_folders import write_shop

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
