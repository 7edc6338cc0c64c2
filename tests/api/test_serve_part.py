"""The service of one part: folders and owners that do not fit are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from khop.api.serve import part_service_of
from khop.graph.partitions.book import read_book
from khop.servers.parts.exchange import OwnerAddresses
from support.small_folders import write_learnable_graph

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

TWO = OwnerAddresses((("127.0.0.1:1",), ("127.0.0.1:2",)))


def test_a_part_is_served_under_the_fingerprint_of_the_whole_graph(tmp_path: Path) -> None:
    whole = write_learnable_graph(tmp_path / "whole", nodes=60)
    partition_graph(whole, tmp_path / "shop-2", 2)
    described = json.loads(part_service_of(tmp_path / "shop-2", 1, TWO).description())
    assert (described["part"], described["name"]) == (1, "shop-2")
    assert described["fingerprint"] == read_book(tmp_path / "shop-2").fingerprint
    assert described["nodes"] == [["item", 60]]
    with pytest.raises(ValueError, match="--part 2: the graph has parts 0 to 1"):
        part_service_of(tmp_path / "shop-2", 2, TWO)
    with pytest.raises(ValueError, match="is not a partitioned graph; make one with `khop partition`"):
        part_service_of(whole, 0, TWO)
