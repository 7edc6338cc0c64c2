"""The summary of a folder: counts, sizes that add up, degrees as quantiles and as a histogram."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.build import write_graph
from khop.graph.describe import Bucket, ColumnSummary, DegreeCounts, degrees_of, describe_folder
from khop.graph.folder import open_folder
from khop.graph.tables import EdgeTable, NodeTable


def test_it_counts_what_the_folder_holds(shop: Path) -> None:
    summary = describe_folder(shop)
    user, item = summary.nodes
    buys, bought_by = summary.edges
    assert (user.type, user.count, user.columns, user.splits) == ("user", 4, (), {})
    assert (item.type, item.count, item.splits) == ("item", 3, {"train": 1, "test": 2})
    assert item.columns[0] == ColumnSummary(
        "x", "float32", (2,), None, (shop / "nodes/item/x.npy").stat().st_size
    )
    assert [(column.name, column.num_classes) for column in item.columns[1:]] == [
        ("half", None),
        ("y", 3),
        ("original_id", None),
    ]
    assert (buys.count, buys.index_dtype, buys.edge_id, buys.reverse_of) == (5, "int32", True, bought_by.type)
    assert (bought_by.edge_id, bought_by.columns) == (False, ())
    assert summary.fingerprint == open_folder(shop).fingerprint


def test_progress_goes_from_nothing_to_all(shop: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    describe_folder(shop, lambda *report: reports.append(report))
    done, total = [report[1] for report in reports], reports[0][2]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, total)
    assert total == 2 * sum(path.stat().st_size for path in shop.rglob("indptr.npy"))
    assert {report[0] for report in reports} == {
        f"reading {folder.name}/indptr.npy" for folder in (shop / "edges").iterdir()
    }


def test_sizes_are_those_on_disk(shop: Path) -> None:
    summary = describe_folder(shop)
    on_disk = sum(path.stat().st_size for path in shop.rglob("*.npy"))
    assert summary.num_bytes == on_disk == sum(part.num_bytes for part in (*summary.nodes, *summary.edges))


def test_degrees_of_a_graph_counted_by_hand() -> None:
    degrees = degrees_of(DegreeCounts.of([np.array([0, 0, 1, 2, 3]), np.array([4, 9, 1, 1, 1])]))
    assert (degrees.minimum, degrees.median, degrees.p90, degrees.p99, degrees.maximum) == (0, 1, 4, 9, 9)
    assert (degrees.mean, degrees.isolated) == (2.2, 2)
    assert degrees.histogram == (
        Bucket(0, 0, 2),
        Bucket(1, 1, 4),
        Bucket(2, 3, 2),
        Bucket(4, 7, 1),
        Bucket(8, 15, 1),
    )


@given(degrees=st.lists(st.integers(0, 100) | st.integers(0, 1 << 40), min_size=1, max_size=60))
def test_quantiles_are_degrees_and_buckets_hold_all_nodes(degrees: list[int]) -> None:
    described = degrees_of(DegreeCounts.of(np.array_split(np.array(degrees), 3)))
    for percent, found in ((50, described.median), (90, described.p90), (99, described.p99)):
        assert found == np.quantile(degrees, percent / 100, method="inverted_cdf")
    assert described.mean == sum(degrees) / len(degrees)
    quantiles = [described.minimum, described.median, described.p90, described.p99, described.maximum]
    assert quantiles == sorted(quantiles)
    assert set(quantiles) <= set(degrees)
    assert (quantiles[0], quantiles[-1]) == (min(degrees), max(degrees))
    assert described.isolated == degrees.count(0)
    for bucket in described.histogram:
        assert bucket.nodes == sum(bucket.low <= degree <= bucket.high for degree in degrees)
    assert sum(bucket.nodes for bucket in described.histogram) == len(degrees)


def test_a_graph_without_nodes_has_no_degrees(tmp_path: Path) -> None:
    assert degrees_of(DegreeCounts.of([np.array([], np.int64)])).histogram == ()
    summary = describe_folder(write_graph(tmp_path / "g", {"n": NodeTable(0)}, {}))
    assert (summary.nodes[0].count, summary.edges, summary.num_bytes) == (0, (), 0)


def test_memory_does_not_grow_with_the_graph(tmp_path: Path) -> None:
    nodes = 3_000_000
    folder = write_graph(tmp_path / "g", {"n": NodeTable(nodes)}, {"n to n": few_edges(nodes)})
    tracemalloc.start()
    summary = describe_folder(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert summary.edges[0].degrees.isolated == nodes - 3
    assert peak < 40 << 20, f"{peak:,} bytes, of an array of {8 * nodes:,}"


def few_edges(nodes: int) -> EdgeTable:
    return EdgeTable(torch.tensor([0, 1, 2]), torch.tensor([5, nodes // 2, nodes - 1]))
