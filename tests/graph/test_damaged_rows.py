"""Draws from a damaged folder end in an error that names file and row, and never in a crash."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import khop
from khop import EdgeTable, NodeTable, Temporal, UniformNegatives, Weighted, write_graph
from khop.draw import DrawKey, Frontier, Positives
from khop.graph.derived import FOLDER
from khop.graph.partitions.local_partitions import LocalPartitionGraph
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.rule import Hop, Rule
from khop.graph.store import CscGraph, open_csc_graph
from khop.sampling.rules.temporal import TemporalStrategy
from khop.sampling.rules.uniform import Uniform

SENT = ("user", "sent", "user")
NODES, EDGES = 100, 2000
HEADER = 128
KEY = DrawKey(3)
RULES: dict[str, Rule] = {
    "uniform": Uniform(),
    "weighted": Weighted("weight"),
    "temporal": Temporal("time"),
    "latest": Temporal("time", TemporalStrategy.LATEST),
    "window": Temporal("time", window=(400, -10)),
    "temporal and weighted": Temporal("time", inner=Weighted("weight")),
}


@pytest.fixture(params=["edges", "sources", "both"])
def timed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder whose rows are in the order of the times of edges, of their sources, or of the later."""
    generator = torch.Generator().manual_seed(1)
    ends = torch.randint(NODES, (2, EDGES), generator=generator)
    times = torch.randint(1000, (EDGES,), generator=generator)
    of_nodes = torch.randint(1000, (NODES,), generator=generator).int()
    columns = {"weight": torch.rand(EDGES, generator=generator)}
    columns |= {} if request.param == "sources" else {"time": times}
    nodes = NodeTable(NODES) if request.param == "edges" else NodeTable(columns={"time": of_nodes})
    edges = EdgeTable(ends[0], ends[1], columns)
    return write_graph(tmp_path / "g", {"user": nodes}, {SENT: edges}, sort_by="time")


def array_file(folder: Path, name: str = "indptr") -> Path:
    return folder / "edges" / "user__sent__user" / f"{name}.npy"


def flip(file: Path, byte: int, bit: int = 0) -> None:
    damaged = bytearray(file.read_bytes())
    damaged[byte] ^= 1 << bit
    file.write_bytes(damaged)


def flip_of_the_issue(folder: Path) -> None:
    flip(array_file(folder), HEADER + 8 * 37 + 2)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def drawn(graph: CscGraph | LocalPartitionGraph, rule: Rule) -> list[list[int]]:
    until = torch.arange(NODES) * 10 if isinstance(rule, Temporal) else None
    frontier = Frontier(torch.arange(NODES), until)
    found = graph.sample_hop({"user": frontier}, Hop(1, {SENT: 3}, rule, edge_ids=True), KEY)[SENT]
    return [found.offsets.tolist(), found.nodes.tolist(), found.edges.tolist()]


@pytest.mark.core(6)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_flipped_row_pointer_is_named_with_its_file(timed: Path, rule: Rule) -> None:
    flip_of_the_issue(timed)
    with pytest.raises(ValueError, match=rf"{array_file(timed)}: row 3[67] .* Re-import, or copy it again"):
        drawn(open_csc_graph(timed), rule)


@pytest.mark.core(2)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_source_that_is_no_node_is_named_with_its_row(timed: Path, rule: Rule) -> None:
    graph = open_csc_graph(timed)
    drawn(graph, rule)  # else what has to be made first names the file
    row = 40  # all of its edges
    first, last = graph.csc(SENT).indptr[row : row + 2].tolist()
    for edge in range(first, last):
        flip(array_file(timed, "indices"), HEADER + 4 * edge + 3, bit=6)
    until = torch.tensor([1000]) if isinstance(rule, Temporal) else None
    hop = Hop(1, {SENT: 3}, rule)
    with pytest.raises(ValueError, match=r"indices\.npy: row 40 has source id \d+: must be in \[0, 100\)"):
        open_csc_graph(timed).sample_hop({"user": Frontier(torch.tensor([row]), until)}, hop, KEY)


def negatives(folder: Path, rest: Path) -> object:
    positives = Positives(torch.arange(5), torch.arange(5))
    return open_csc_graph(folder).sample_negatives(SENT, UniformNegatives(2, exact=True), positives, KEY)


def cooccurrence(folder: Path, rest: Path) -> object:
    return khop.cooccurrence(open_csc_graph(folder), SENT, min_count=1)


def sorted_again(folder: Path, rest: Path) -> object:
    graph = khop.open_graph(folder)
    return khop.graph.build.save_graph(rest / "s", open_csc_graph(folder), graph.columns, {}, None, "time")


def partition(folder: Path, rest: Path) -> object:
    return khop.partition_graph(folder, rest / "p", 2)


def whole_rows(folder: Path, rest: Path) -> object:
    return open_csc_graph(folder).sample_hop(
        {"user": Frontier(torch.arange(NODES))}, Hop(1, {SENT: -1}, Uniform()), KEY
    )


READERS = [negatives, cooccurrence, sorted_again, partition, whole_rows]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("entry", [0, 37, 100])
def test_whatever_reads_all_rows_names_the_damaged_one(
    timed: Path, tmp_path: Path, entry: int, read: Callable[[Path, Path], object]
) -> None:
    flip(array_file(timed), HEADER + 8 * entry + 2)
    with pytest.raises(ValueError, match=r"indptr\.npy: (row \d+ begins|checksum differs)"):
        read(timed, tmp_path)


@pytest.mark.parametrize("name", ["temporal", "latest", "window", "temporal and weighted"])
def test_rows_that_are_not_in_their_order_are_named(timed: Path, name: str) -> None:
    """Times are primary: what is drawn is right by the times as they lie, or an error says which row."""
    columns = timed / "edges" / "user__sent__user" / "columns" / "time.npy"
    of_nodes = timed / "nodes" / "user" / "time.npy"
    file, width = (columns, 8) if columns.exists() else (of_nodes, 4)
    flip(file, HEADER + width * 50 + 1, bit=6)
    with pytest.raises(ValueError, match=r"row \d+ is said to be in the order of 'time'"):
        drawn(open_csc_graph(timed), RULES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", ["temporal", "latest", "window"])
def test_damage_of_what_is_derived_never_changes_what_time_allows(timed: Path, name: str) -> None:
    expected = drawn(open_csc_graph(timed), RULES[name])
    files = sorted((timed / FOLDER).rglob("*times*.npy"))
    assert files
    generator = np.random.default_rng(5)
    for file in files:
        sound = file.read_bytes()
        for _ in range(30):
            flip(file, int(generator.integers(HEADER, len(sound))), int(generator.integers(8)))
            with warnings.catch_warnings(action="ignore"):  # that it is made anew
                assert drawn(open_csc_graph(timed), RULES[name]) == expected
            file.write_bytes(sound)


@pytest.mark.core(3)
@pytest.mark.parametrize("name", ["uniform", "weighted", "temporal"])
def test_damage_of_a_part_is_named_with_the_file_of_the_part(timed: Path, tmp_path: Path, name: str) -> None:
    parts = tmp_path / "parts"
    khop.partition_graph(timed, parts, 2)
    folder = LocalPartitionGraph(open_parts(parts)).folder.parts[0].path
    flip(array_file(folder), HEADER + 8 * 11 + 2)
    with pytest.raises(ValueError, match=rf"{array_file(folder)}: row 1[01] begins"):
        drawn(LocalPartitionGraph(open_parts(parts)), RULES[name])
