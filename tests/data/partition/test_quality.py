"""The reported cut and shares are counted from the parts themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from khop.graph.partitions.book import edge_key
from khop.graph.partitions.parts_folder import open_part
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def test_the_reported_cut_and_shares_are_those_of_the_parts(shop: Path, tmp_path: Path) -> None:
    book = partition_graph(shop, tmp_path / "parts", 3, balance=["nodes", "edges", "bytes", "train", "val"])
    parts = [open_part(tmp_path / "parts", book, part) for part in range(3)]
    cut = edges = 0
    for edge_type in parts[0].schema.edge_types:
        of_type = [
            int((book.owner(edge_type[0], part.csc(edge_type).indices) != number).sum())
            for number, part in enumerate(parts)
        ]
        count = sum(part.num_edges(edge_type) for part in parts)
        assert book.quality.cut[edge_key(edge_type)] == pytest.approx(sum(of_type) / count)
        cut, edges = cut + sum(of_type), edges + count
    assert book.quality.cut["all"] == pytest.approx(cut / edges)
    shares = book.quality.shares
    assert shares["user nodes"] == pytest.approx([part.num_nodes("user") / 100 for part in parts])
    assert shares["edges"] == pytest.approx(
        [3 * sum(part.num_edges(t) for t in part.schema.edge_types) / edges for part in parts]
    )
    assert set(shares) == {"user nodes", "item nodes", "tag nodes", "edges", "bytes", "train", "val"}
    assert all(share <= 1.05 + 3 / 7 for of_parts in shares.values() for share in of_parts)  # 7 tags
