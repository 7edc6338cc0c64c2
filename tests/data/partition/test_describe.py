"""The summary of a partitioned graph counts what its parts hold, also where only some are here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from khop.data.partition.describe import describe_parts
from khop.graph.describe import describe_folder
from khop.graph.partitions.parts_folder import open_part
from support.small_typed_folders import write_typed_graph


def test_the_whole_is_the_graph_and_parts_are_counted(tmp_path: Path) -> None:
    shop, out = write_typed_graph(tmp_path / "shop"), tmp_path / "parts"
    book = partition_graph(shop, out, 3, balance=["nodes", "edges"])
    reports: list[tuple[str, int, int]] = []
    summary = describe_parts(out, lambda *report: reports.append(report))
    before = describe_folder(shop)
    sizes = [path.stat().st_size for path in (out / "edges").rglob("degrees.npy")]
    assert (reports[0][1], reports[-1][1]) == (0, reports[-1][2]) == (0, 2 * sum(sizes))
    assert [(node.type, node.count, node.splits) for node in summary.whole.nodes] == [
        (node.type, node.count, node.splits) for node in before.nodes
    ]
    assert [(edge.type, edge.count, edge.degrees) for edge in summary.whole.edges] == [
        (edge.type, edge.count, edge.degrees) for edge in before.edges
    ]
    for of_part in summary.parts:
        part = open_part(out, book, of_part.number)
        assert of_part.nodes == sum(part.num_nodes(t) for t in part.schema.node_types)
        assert of_part.edges == sum(part.num_edges(t) for t in part.schema.edge_types)
        assert of_part.share == max(shares[of_part.number] for shares in book.quality.shares.values())
        assert of_part.num_bytes == sum(entry.bytes for entry in part.arrays.values())
    shutil.rmtree(out / "part-0001")
    assert [part.num_bytes is None for part in describe_parts(out).parts] == [False, True, False]
    for number in (0, 2):
        shutil.rmtree(out / f"part-000{number}")
    with pytest.raises(ValueError, match="none of its 3 parts is on this machine"):
        describe_parts(out)
