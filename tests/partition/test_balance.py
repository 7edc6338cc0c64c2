"""Balanced quantities: no part holds more than its share and the slack."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.api.partition import partition_graph
from khop.graph.folder import open_folder
from khop.partition.balance import Numbering, balance_of
from khop.partition.part_files import open_part
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


@pytest.mark.parametrize("method", ["ldg", "fennel"])
def test_no_part_is_fuller_than_its_share_where_bytes_are_balanced(
    shop: Path, tmp_path: Path, method: str
) -> None:
    """A user has 14 bytes and an item 4, so parts of as many nodes could be unequally full."""
    book = partition_graph(shop, tmp_path / "parts", 3, method=method, balance=["bytes"], slack=0.02)
    full = [
        sum(
            column.nbytes
            for node_type in part.schema.node_types
            for name, column in part.columns()[node_type].items()
            if name != "original_id"  # what partitioning adds
        )
        for part in (open_part(tmp_path / "parts", book, number) for number in range(3))
    ]
    assert sum(full) == 300 * 14 + 200 * 4
    assert max(full) <= 1.02 * sum(full) / 3
    assert book.quality.shares["bytes"] == pytest.approx([3 * of_part / sum(full) for of_part in full])


def test_nodes_of_all_types_have_one_numbering() -> None:
    numbering = Numbering.of({"user": 3, "tag": 0, "item": 2})
    assert (numbering.num_nodes, numbering.first("tag"), numbering.first("item")) == (5, 3, 3)
    values = {t: of_type.tolist() for t, of_type in numbering.by_type(torch.arange(5)).items()}
    assert values == {"user": [0, 1, 2], "tag": [], "item": [3, 4]}


def test_limits_are_shares_with_the_slack(shop: Path) -> None:
    folder = open_folder(shop)
    numbering = Numbering.of({t: folder.num_nodes(t) for t in folder.schema.node_types})
    balance = balance_of(folder, numbering, 4, ["nodes", "edges", "train"], 0.1)
    edges = sum(folder.num_edges(t) for t in folder.schema.edge_types)
    seeds = sum(ids.numel() for ids in folder.split("train").values())
    totals = {"user nodes": 300, "item nodes": 200, "tag nodes": 7, "edges": edges, "train": seeds}
    assert balance.totals == totals
    for name, total in totals.items():
        assert total / 4 <= balance.limits[name].capacity <= max(1.1 * total / 4, total / 4 + 1)
    assert int((balance.members & balance.limits["train"].member).count_nonzero()) == seeds
