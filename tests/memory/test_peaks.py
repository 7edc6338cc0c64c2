"""Work on large graphs takes as much memory as its budget, or some bytes per node, not per edge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import khop
from support.peak import peak_bytes

MIB = 1 << 20
NODES, EDGES, WIDTH = 100_000, 8_000_000, 256
BUDGET = 64 * MIB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns of nodes take 102 MB, edges with times and their positions 128 MB."""

    def edges() -> Iterator[khop.EdgeTable]:
        for number in range(EDGES // 500_000):
            random = np.random.default_rng(number)
            ends = random.integers(NODES, size=(2, 500_000), dtype=np.int32)
            ends[1, random.random(500_000) < 0.1] = 7
            yield khop.EdgeTable(ends[0], ends[1], {"time": random.integers(1000, size=500_000)})

    path = tmp_path_factory.mktemp("peaks") / "g"
    random = np.random.default_rng(0)
    columns = {"x": random.random((NODES, WIDTH), np.float32), "y": random.integers(9, size=NODES)}
    nodes = khop.NodeTable(columns=columns, splits={"train": np.arange(0, NODES, 9)}, num_classes={"y": 9})
    chunks = khop.EdgeChunks(edges())
    khop.write_graph(path, {"a": nodes}, {"a to a": chunks}, sort_by="time", memory=BUDGET)
    return path


def test_verify_marks_no_more_than_a_byte_for_each_edge_at_once(folder: Path) -> None:
    work = "from khop.graph.verify import verify_folder; assert verify_folder(sys.argv[1]) == []"
    assert peak_bytes(work, folder) < EDGES + 60 * MIB


def test_partitioning_takes_some_bytes_per_node(folder: Path, tmp_path: Path) -> None:
    work = "khop.partition_graph(sys.argv[1], sys.argv[2], 3)"
    assert peak_bytes(work, folder, tmp_path / "parts") < 100 * NODES + 190 * MIB


def test_partitions_are_verified_in_as_little(folder: Path, tmp_path: Path) -> None:
    khop.partition_graph(folder, tmp_path / "parts", 3, method="range")
    work = (
        "from khop.data.partition.verify import verify_partition; assert verify_partition(sys.argv[1]) == []"
    )
    assert peak_bytes(work, tmp_path / "parts") < 100 * NODES + EDGES // 3 + 150 * MIB


def test_info_reads_degrees_in_chunks(folder: Path) -> None:
    work = "from khop.graph.describe import describe_folder; describe_folder(sys.argv[1])"
    assert peak_bytes(work, folder) < 60 * MIB


def test_a_build_in_memory_takes_at_most_6_bytes_per_edge() -> None:
    """With offsets, on two threads, where 17 % of all edges have one destination."""
    before = (
        "from khop.kernels.csc import group_by_destination; random = torch.Generator().manual_seed(0); "
        f"ends = torch.randint({EDGES // 15}, (2, {EDGES}), generator=random, dtype=torch.int32); "
        f"ends[1, torch.rand({EDGES}, generator=random) < 0.17] = 7"
    )
    work = f"csc = group_by_destination(ends[0], ends[1], {EDGES // 15}, {EDGES // 15}, threads=2)"
    assert peak_bytes(work, before=before) < 6 * EDGES + MIB


def test_an_import_keeps_to_its_budget(tmp_path: Path) -> None:
    """In memory, the edges would take 190 MB as they are read; Arrow and its threads take some 80 MB."""
    random = np.random.default_rng(0)
    names = pa.array([f"user-{number:08d}" for number in range(200_000)])
    pq.write_table(pa.table({"id": names}), tmp_path / "users.parquet")
    for number in range(12):
        ends = random.integers(200_000, size=(2, 375_000))
        table = {"from": names.take(ends[0]), "to": names.take(ends[1]), "price": random.random(375_000)}
        path = tmp_path / f"edges-{number}.parquet"
        pq.write_table(pa.table(table), path, row_group_size=50_000)
    (tmp_path / "spec.toml").write_text(
        '[nodes.user]\nfiles = ["users.parquet"]\nid = "id"\n[edges."user pays user"]\n'
        'files = ["edges-*.parquet"]\nsource = "from"\ndestination = "to"\ncolumns.price = "number"\n'
    )
    before = "import pyarrow.parquet, khop.data.tables.pipeline"
    work = f"khop.import_tables(sys.argv[1], sys.argv[2], memory={BUDGET}, threads=2)"
    peak = peak_bytes(work, tmp_path / "spec.toml", tmp_path / "g", before=before)
    assert khop.open_folder(tmp_path / "g").num_edges(("user", "pays", "user")) == 4_500_000
    assert peak < BUDGET + 128 * MIB
