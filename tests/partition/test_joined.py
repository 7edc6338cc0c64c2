"""Joined parts are the graph before partitioning, by original ids, and are made once."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.api.partition import partition_graph
from khop.graph.folder import open_folder
from khop.kernels.csc import Csc
from khop.partition.joined import joined_graph
from khop.partition.parts_folder import open_parts
from support.small_typed_folders import write_typed_graph


def rows_of(csc: Csc, sources: torch.Tensor) -> list[list[int]]:
    """The original ids of the sources of each row."""
    return [row.tolist() for row in sources[csc.indices.long()].tensor_split(csc.indptr[1:-1])]


def test_rows_are_those_of_the_graph_before(tmp_path: Path) -> None:
    whole = open_folder(write_typed_graph(tmp_path / "shop", renumbered=True))
    partition_graph(whole.path, tmp_path / "parts", 3)
    joined = joined_graph(open_parts(tmp_path / "parts"))
    before = {
        t: torch.arange(whole.num_nodes(t)) if (ids := whole.original_ids(t)) is None else ids
        for t in whole.schema.node_types
    }
    for edge_type in whole.schema.edge_types:
        source, _, destination = edge_type
        sources, destinations = joined.original_ids(source), joined.original_ids(destination)
        assert sources is not None
        assert destinations is not None
        rows = dict(zip(destinations.tolist(), rows_of(joined.csc(edge_type), sources), strict=True))
        expected = rows_of(whole.csc(edge_type), before[source])
        assert rows == dict(zip(before[destination].tolist(), expected, strict=True))
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "parts" / "derived").rglob("*.npy")}
    assert files
    joined_graph(open_parts(tmp_path / "parts"))
    assert {file: file.stat().st_mtime_ns for file in files} == files
