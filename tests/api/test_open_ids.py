"""The users' own ids of partitioned graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import khop
from khop.api.open_graph import open_ids
from khop.data.partition.verify import verify_partition
from khop.graph.node_ids import first_lost, stored_ids
from khop.graph.partitions.parts_folder import known_folder
from khop.kernels.id_table import StringKeys, keys_at

NAMES = [f"user-{n}" for n in range(300)] + ["", "Ünï"]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    draw = np.random.default_rng(5)
    nodes = {
        "user": khop.NodeTable(ids=NAMES),
        "item": khop.NodeTable(50, ids=np.arange(50) * 7 - 20),
        "place": khop.NodeTable(9),
    }
    ends = (draw.integers(0, 302, 900), draw.integers(0, 50, 900))
    graph = khop.write_graph(tmp_path / "g", nodes, {("user", "buys", "item"): khop.EdgeTable(*ends)})
    khop.partition_graph(graph, tmp_path / "parts", 3, method="random")
    return tmp_path / "parts"


def test_partitions_keep_the_ids_of_their_nodes(parts: Path) -> None:
    folder = known_folder(parts)
    for node_type, names in (("user", NAMES), ("item", (np.arange(50) * 7 - 20).tolist())):
        ids = open_ids(parts, node_type)
        nodes = ids.rows(names)
        assert first_lost(ids) == -1
        assert folder.original_ids(node_type)[nodes].tolist() == list(range(len(names)))
        assert ids.ids(nodes) == names
    assert sorted(stored_ids(folder)) == ["item", "user"]
    assert verify_partition(parts) == []


def test_types_without_ids_are_named(parts: Path) -> None:
    with pytest.raises(ValueError, match="ids of 'place' are not stored; its nodes are 0 to 8"):
        open_ids(parts, "place")
    with pytest.raises(ValueError, match="no node type 'shop'"):
        open_ids(parts, "shop")


def test_a_graph_saved_from_its_partitions_has_the_ids_too(parts: Path, tmp_path: Path) -> None:
    saved = khop.open_graph(parts).save(tmp_path / "saved")
    assert open_ids(saved, "user").rows(NAMES).tolist() == open_ids(parts, "user").rows(NAMES).tolist()


@given(st.lists(st.text(max_size=5), min_size=1), st.lists(st.integers(0, 99)))
@settings(max_examples=50)
def test_keys_are_chosen_by_row(texts: list[str], rows: list[int]) -> None:
    rows = [row % len(texts) for row in rows]
    found = keys_at(StringKeys.of(texts), np.array(rows, np.int64))
    assert isinstance(found, StringKeys)
    assert found.strings() == [texts[row] for row in rows]
