"""Commands on damaged folders say which file it is, and write nothing; links that lead nowhere are named."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import khop
from cli.conftest import Ran
from khop.api.partition import partition_graph
from khop.data.partition.verify import verify_partition
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought", "user")
EDGES = "edges/user__buys__item"
Command = Callable[..., Ran]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with columns on nodes and edges, as `whole`, and its parts, as `parts`."""
    path, random = tmp_path_factory.mktemp("shop"), np.random.default_rng(5)
    users, items = random.integers(0, 40, 300), random.integers(0, 30, 300)
    nodes = {
        "user": NodeTable(40),
        "item": NodeTable(30, {"x": random.random((30, 3))}, {"train": np.arange(9)}),
    }
    edges = {
        BUYS: EdgeTable(users, items, {"day": random.integers(0, 99, 300)}),
        BOUGHT: EdgeTable(items, users, reverse_of=BUYS),
    }
    write_graph(path / "whole", nodes, edges)
    partition_graph(path / "whole", path / "parts", 2, method="hash")
    return path


def flipped(path: Path, file: str, byte: int, bit: int = 0) -> Path:
    """The same folder with one other bit in the data of a file."""
    content = bytearray((path / file).read_bytes())
    content[byte] ^= 1 << bit
    (path / file).write_bytes(content)
    return path


@pytest.fixture
def whole(shop: Path, tmp_path: Path) -> Path:
    """A copy of the graph to damage."""
    return Path(shutil.copytree(shop / "whole", tmp_path / "whole"))


REWRITES = {
    "partition": ["partition", "{graph}", "{out}", "--parts", "2"],
    "sort": ["graph", "sort", "{graph}", "{out}", "--by", "day"],
    "cluster": ["graph", "cluster", "{graph}", "{out}", "--clusters", "2"],
    "walks": ["graph", "walks", "{graph}", "{out}", "--path", "user buys item,item bought user"],
    "split": ["graph", "split", "{graph}", "{out}", "--links", "user buys item"],
}


def filled(arguments: Sequence[str], **names: Path) -> list[str]:
    return [argument.format(**names) for argument in arguments]


@pytest.mark.parametrize("command", REWRITES)
@pytest.mark.parametrize("file", ["nodes/item/x.npy", f"{EDGES}/indptr.npy", f"{EDGES}/columns/day.npy"])
def test_damage_is_not_copied(whole: Path, khop_command: Command, command: str, file: str) -> None:
    flipped(whole, file, 128 + 8 * 7 + 2)
    before = sorted(whole.parent.iterdir())
    ran = khop_command(*filled(REWRITES[command], graph=whole, out=whole.with_name("out")))
    assert ran.code == 2
    assert f"{whole / file}: checksum differs; the file was changed or damaged" in ran.stderr
    assert f"copy it again. `khop verify {whole}` lists all" in ran.stderr
    assert sorted(whole.parent.iterdir()) == before


def test_graphs_in_memory_are_not_saved_with_the_damage_of_their_folder(whole: Path) -> None:
    graph = khop.open_graph(whole)
    split = khop.split_links(graph, BUYS)
    flipped(whole, "nodes/item/x.npy", -1)
    table = EdgeTable(np.array([0]), np.array([1]))
    savers = (graph, graph.with_edges({("user", "likes", "item"): table}), graph.only([BUYS]), split)
    for number, saver in enumerate(savers):
        with pytest.raises(ValueError, match=r"nodes/item/x\.npy: checksum differs"):
            saver.save(whole.with_name(f"out-{number}"))
    assert [path.name for path in whole.parent.iterdir()] == ["whole"]


@pytest.mark.long
def test_sound_folders_are_rewritten(whole: Path, khop_command: Command) -> None:
    for command, arguments in REWRITES.items():
        assert khop_command(*filled(arguments, graph=whole, out=whole.with_name(command))).code == 0
    assert verify_partition(whole.with_name("partition")) == []
    parts = khop.open_graph(whole.with_name("partition"))
    parts.save(whole.with_name("joined"))
    flipped(whole.with_name("partition"), f"part-0001/{EDGES}/columns/day.npy", -1)
    with pytest.raises(ValueError, match=r"part-0001/.*/day.npy: checksum differs"):
        parts.save(whole.with_name("joined-again"))


def test_info_names_the_damaged_row_of_offsets(whole: Path, khop_command: Command) -> None:
    file = f"{EDGES}/indptr.npy"
    ran = khop_command("info", str(flipped(whole, file, 128 + 8 * 7 + 2)))
    assert (ran.code, ran.stdout) == (2, "")
    assert f"{whole / file}: row 7 has -65" in ran.stderr
    assert "copy it again" in ran.stderr


def test_info_finds_damage_that_leaves_sound_offsets(whole: Path, khop_command: Command) -> None:
    file = f"{EDGES}/indptr.npy"
    offsets = np.load(whole / file)
    row = int(np.argmax((np.diff(offsets)[:-1] > 0) & (offsets[1:-1] % 2 == 1)))
    ran = khop_command("info", str(flipped(whole, file, 128 + 8 * (row + 1))))
    assert ran.code == 2
    assert f"{whole / file}: checksum differs" in ran.stderr


def test_info_of_parts_names_a_degree_that_is_damaged(
    shop: Path, tmp_path: Path, khop_command: Command
) -> None:
    parts = Path(shutil.copytree(shop / "parts", tmp_path / "parts"))
    ran = khop_command("info", str(flipped(parts, f"{EDGES}/degrees.npy", 128 + 4 * 3 + 3, bit=7)))
    assert ran.code == 2
    assert f"{parts / EDGES}/degrees.npy: row 3 has -2" in ran.stderr


@pytest.mark.long
def test_an_output_that_is_a_link_to_nothing_is_named(
    shop: Path, tmp_path: Path, khop_command: Command, trained_run: None
) -> None:
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    (tmp_path / "edges.csv").write_text("1,2\n")
    (tmp_path / "rows.npy").symlink_to("/nowhere/at/all")
    graph = shop / "whole"
    commands = [
        *(filled(arguments, graph=graph, out=tmp_path / "link") for arguments in REWRITES.values()),
        ["partition", str(graph), str(tmp_path / "link/deeper"), "--parts", "2"],
        ["import", f"edges:{tmp_path / 'edges.csv'}", str(tmp_path / "link")],
        ["train", "run.toml", "--out", str(tmp_path / "link")],
        ["profile", "run.toml", "--out", str(tmp_path / "link")],
        ["infer", "a", "--out", str(tmp_path / "rows.npy")],
    ]
    for command in commands:
        ran = khop_command(*command)
        assert ran.code == 2, command
        assert "is a symbolic link to /nowhere/at/all, which does not exist; remove the link" in ran.stderr


def test_a_link_to_a_folder_is_no_place_for_another(whole: Path, khop_command: Command) -> None:
    whole.with_name("empty").mkdir()
    whole.with_name("link").symlink_to(whole.with_name("empty"))
    ran = khop_command(*filled(REWRITES["partition"], graph=whole, out=whole.with_name("link")))
    assert ran.code == 2
    assert f"name the folder that it leads to, {whole.with_name('empty')}" in ran.stderr
