"""Damage of derived files never changes a draw, and `khop verify` finds all of it."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from khop.api.partition import partition_graph
from khop.data.partition.verify import verify_partition
from khop.draw import DrawKey, Frontier, Positives, UniformNegatives
from khop.graph.build import write_graph
from khop.graph.partitions.local_partitions import LocalPartitionGraph
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.rule import Hop
from khop.graph.store import GraphStore, open_csc_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.graph.verify import verify_folder
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.weighted import Weighted

TO = ("n", "to", "n")
NODES, EDGES = 60, 900


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph and its parts, with what draws derive from each."""
    path, generator = tmp_path_factory.mktemp("derived"), torch.Generator().manual_seed(3)
    ends = torch.randint(0, NODES, (2, EDGES), generator=generator)
    columns = {
        "w": torch.rand(EDGES, generator=generator),
        "time": torch.randint(0, 99, (EDGES,), generator=generator),
    }
    nodes = {"n": NodeTable(NODES, {"time": torch.randint(0, 99, (NODES,), generator=generator)})}
    write_graph(path / "whole", nodes, {TO: EdgeTable(ends[0], ends[1], columns)}, sort_by="time")
    partition_graph(path / "whole", path / "parts", 2, method="hash")
    drawn(path)
    return path


def drawn(path: Path) -> list[Tensor]:
    """Draws that use every array that is derived from a graph or from its parts."""
    of_parts = LocalPartitionGraph(open_parts(path / "parts"))
    found = [of_parts.in_one_piece("test").csc(TO).indptr, of_parts.in_one_piece("test").csc(TO).indices]
    graphs: tuple[GraphStore, ...] = (open_csc_graph(path / "whole"), of_parts)
    for graph in graphs:
        for rule in (Weighted("w"), Temporal("time"), Temporal("time", inner=Weighted("w"))):
            times = torch.full((NODES,), 50) if isinstance(rule, Temporal) else None
            frontier = {"n": Frontier(torch.arange(NODES), until=times)}
            found.append(graph.sample_hop(frontier, Hop(1, {TO: 5}, rule), DrawKey(2))[TO].nodes)
        everyone = torch.arange(NODES)
        links = Positives(everyone, everyone)
        found.append(graph.sample_negatives(TO, UniformNegatives(3, exact=True), links, DrawKey(2)))
    return found


def derived_files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*.npy") if "derived" in file.parts)


def test_every_kind_of_array_is_kept(folder: Path) -> None:
    names = {file.name for file in derived_files(folder)}
    assert {"weight_sums.w.npy", "weight_sums_outline.w.npy", "times.time.npy", "indices.npy"} <= names
    assert {"times_outline.time.npy", "partners.npy", "partners_indptr.npy", "indptr.npy"} <= names
    assert verify_folder(folder / "whole") == []
    assert verify_partition(folder / "parts") == []


@pytest.mark.parametrize("kinds", [1, pytest.param(4, marks=pytest.mark.long)])
def test_damage_changes_no_draw_and_is_found_by_verify(folder: Path, tmp_path: Path, kinds: int) -> None:
    wanted, random = drawn(folder), Random(5)
    path = shutil.copytree(folder, tmp_path / "copy")
    for file in derived_files(path):
        good = file.read_bytes()
        flipped = bytearray(good)
        flipped[random.randrange(len(good))] ^= 1 << random.randrange(8)
        other = random.choice(derived_files(path)).read_bytes()
        damaged = [bytes(flipped), good[: random.randrange(len(good))], good + b"\0", other]
        for content in {*damaged[:kinds]} - {good}:
            file.write_bytes(content)
            findings = verify_folder(path / "whole") + verify_partition(path / "parts")
            assert [str(file).endswith(finding.file) for finding in findings] == [True]
            with pytest.warns(UserWarning, match="was damaged"):
                found = drawn(path)
            assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
            assert file.read_bytes() == good


def test_what_is_sound_is_used_without_a_word(folder: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in derived_files(folder)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn(folder)
    assert {file: file.stat().st_mtime_ns for file in derived_files(folder)} == before


def test_a_linked_folder_of_derived_arrays_is_a_finding(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "whole", tmp_path / "whole")
    (path / "derived").rename(tmp_path / "elsewhere")
    (path / "derived").symlink_to(tmp_path / "elsewhere")
    assert [finding.file for finding in verify_folder(path)] == ["derived"]
