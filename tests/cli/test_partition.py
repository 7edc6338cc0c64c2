"""`khop partition`: parts of a graph, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from khop import partition_graph
from khop.partition.book import read_book
from support.small_typed_folders import write_typed_graph

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
    assert f"{book.quality.cut['all']:.1%} of the edges join two parts (" in said
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
