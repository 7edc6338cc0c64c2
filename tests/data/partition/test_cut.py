"""Folders of parts: edge columns and original ids follow their edges and nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.api.partition import partition_graph
from khop.data.partition.partition import Renumbering
from khop.data.partition.verify import verify_partition
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.partitions.parts_folder import open_part
from support.small_typed_folders import BUYS, write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def _originals(parts: list[GraphFolder], node_type: str) -> Tensor:
    return torch.cat([part.columns()[node_type]["original_id"] for part in parts])


def test_edge_columns_and_input_positions_follow_their_edges(shop: Path, tmp_path: Path) -> None:
    whole = open_folder(shop)
    book = partition_graph(shop, tmp_path / "parts", 3)
    kept, indptr = dict(whole.columns()[BUYS]), whole.csc(BUYS).indptr
    edge_id = whole.edge_id(BUYS)
    assert edge_id is not None
    for part in range(3):
        folder = open_part(tmp_path / "parts", book, part)
        items = folder.columns()["item"]["original_id"].tolist()
        positions = torch.cat([torch.arange(int(indptr[i]), int(indptr[i + 1])) for i in items])
        for name, column in kept.items():
            assert torch.equal(folder.columns()[BUYS][name], column[positions])
        of_part = folder.edge_id(BUYS)
        assert of_part is not None
        assert torch.equal(of_part, edge_id[positions])
        assert folder.manifest.edge(BUYS).row_order == "time"


def test_ids_that_were_new_once_already_stay_those_of_the_first_graph(tmp_path: Path) -> None:
    graph = write_typed_graph(tmp_path / "graph", renumbered=True)
    book = partition_graph(graph, tmp_path / "parts", 2)
    parts = [open_part(tmp_path / "parts", book, part) for part in range(2)]
    assert sorted(_originals(parts, "user").tolist()) == list(range(1000, 1300))
    ages = {int(i): int(a) for i, a in zip(*_id_and_age(open_folder(graph)), strict=True)}
    for part in parts:
        assert all(ages[int(i)] == int(a) for i, a in zip(*_id_and_age(part), strict=True))
    assert verify_partition(tmp_path / "parts") == []


def _id_and_age(folder: GraphFolder) -> tuple[Tensor, Tensor]:
    return folder.columns()["user"]["original_id"], folder.columns()["user"]["age"]


@given(parts_of=st.lists(st.integers(0, 3), max_size=30))
def test_new_ids_are_consecutive_within_parts_and_keep_the_old_order(parts_of: list[int]) -> None:
    assigned = torch.tensor(parts_of, dtype=torch.int32)
    numbers = Renumbering.of({"node": assigned}, 4)
    old = [node for part in range(4) for node in range(len(parts_of)) if parts_of[node] == part]
    assert numbers.old_ids["node"].tolist() == old
    assert [numbers.new_ids["node"].tolist()[node] for node in old] == list(range(len(old)))
    for part in range(4):
        owned = numbers.owned("node", part).tolist()
        assert owned == [node for node in old if parts_of[node] == part]
    assert numbers.offsets["node"][-1] == len(parts_of)
