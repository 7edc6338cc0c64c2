"""Files of parts and of all nodes: splits keep their order, and a copy of another part is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from khop.api.partition import partition_graph
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.partitions.parts_folder import map_splits, map_whole, open_part
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def _originals(parts: list[GraphFolder], node_type: str) -> Tensor:
    return torch.cat([part.columns()[node_type]["original_id"] for part in parts])


def test_seeds_keep_their_order_and_ids_give_their_owners(shop: Path, tmp_path: Path) -> None:
    whole, out = open_folder(shop), tmp_path / "parts"
    book = partition_graph(shop, out, 4)
    parts = [open_part(out, book, part) for part in range(4)]
    for name in whole.split_names:
        for node_type, ids in map_splits(out, book)[name].items():
            originals = _originals(parts, node_type)
            assert torch.equal(originals[ids], whole.split(name)[node_type])
            owners = book.owner(node_type, ids)
            expected = [p for p in range(4) for _ in range(parts[p].num_nodes(node_type))]
            assert owners.tolist() == [expected[node] for node in ids.tolist()]
    assert map_splits(out, book).keys() == set(whole.split_names)


def test_a_part_of_another_graph_and_a_changed_array_are_refused(shop: Path, tmp_path: Path) -> None:
    book = partition_graph(shop, tmp_path / "parts", 2, method="range")
    other = partition_graph(shop, tmp_path / "other", 2, method="hash")
    with pytest.raises(ValueError, match=r"part-0001: not the part that partition\.json was written with"):
        open_part(tmp_path / "other", book, 1)
    assert open_part(tmp_path / "other", other, 1).fingerprint == other.parts[1]
    file = "nodes/user/original_id.npy"
    assert sorted(map_whole(tmp_path / "parts", book, file).tolist()) == list(range(300))
    (tmp_path / "parts" / file).write_bytes(b"")
    with pytest.raises(ValueError, match=r"original_id\.npy: has 0 bytes"):
        map_whole(tmp_path / "parts", book, file)
