"""Verification of a partitioned graph names the damaged file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from khop.api.partition import partition_graph
from khop.data.partition.verify import verify_partition
from khop.graph import layout
from khop.graph.build import write_graph
from khop.graph.partitions.book import edge_key, part_folder, write_book
from khop.graph.tables import EdgeTable, NodeTable
from support.small_typed_folders import BUYS, write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def _damage(path: Path, what: str) -> None:
    part = part_folder(path, 1)
    if what == "lost part":
        part.rename(path / "elsewhere")
    elif what == "flipped bit":
        file = part / layout.edge_array(BUYS, "indices")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    elif what == "split":
        (path / layout.node_split("user", "train")).unlink()
    elif what == "part twice":
        part.rename(path / "elsewhere")
        part_folder(path, 0).rename(part)
        (path / "elsewhere").rename(part_folder(path, 0))


@pytest.mark.parametrize(
    ("what", "file", "problem"),
    [
        ("lost part", "part-0001", "no such folder"),
        ("flipped bit", "part-0001/edges/user__buys__item/indices.npy", "checksum differs from graph.json"),
        ("split", "nodes/user/splits/train.npy", "is missing, or its checksum differs from partition.json"),
        ("part twice", "partition.json", "not the part that partition.json was written with"),
    ],
)
def test_verify_names_what_is_damaged(shop: Path, tmp_path: Path, what: str, file: str, problem: str) -> None:
    partition_graph(shop, tmp_path / "parts", 2)
    _damage(tmp_path / "parts", what)
    findings = verify_partition(tmp_path / "parts")
    assert [(finding.file, problem in finding.problem) for finding in findings] == [(file, True)]


@pytest.mark.parametrize("changed", ["digest", "count"])
def test_verify_finds_edges_that_are_not_those_of_the_graph(shop: Path, tmp_path: Path, changed: str) -> None:
    out = tmp_path / "parts"
    book = partition_graph(shop, out, 2)
    digest, (*first, last) = book.edge_digests[edge_key(BUYS)], book.edge_offsets[edge_key(BUYS)]
    if changed == "digest":
        book = replace(book, edge_digests={**book.edge_digests, edge_key(BUYS): digest ^ 1})
    else:
        book = replace(book, edge_offsets={**book.edge_offsets, edge_key(BUYS): (*first, last + 1)})
    write_book(out, book)
    assert [finding.problem for finding in verify_partition(out)] == [
        f"the edges of {BUYS} differ from those of the graph before partitioning; write the graph again"
    ]


def test_an_unknown_number_is_no_damage(tmp_path: Path) -> None:
    label = np.array([0.5, np.nan] * 8, np.float32)
    nodes = {"item": NodeTable(16, {"label": label}, unknown=["label"])}
    ring = EdgeTable(np.arange(16), np.roll(np.arange(16), 1))
    write_graph(tmp_path / "whole", nodes, {("item", "to", "item"): ring})
    partition_graph(tmp_path / "whole", tmp_path / "parts", 2, method="hash")
    assert verify_partition(tmp_path / "parts") == []
