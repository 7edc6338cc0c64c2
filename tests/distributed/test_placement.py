"""A rank opens what it needs of a folder of parts, and says what is missing before it meets others."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from khop.distributed.placement import PartitionOptions, stores_of
from khop.partition.parts_folder import known_folder, open_parts
from khop.partition.placements import Placement
from khop.runtime.group import Group
from support.machine_folders import of_machine
from support.small_typed_folders import write_typed_graph

RANK_1 = Group(rank=1, world_size=2)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    parts = tmp_path / "parts"
    partition_graph(write_typed_graph(tmp_path / "whole"), parts, 2, method="random")
    return parts


@pytest.mark.parametrize(
    ("placement", "file", "needs"),
    [
        (Placement.FEATURES, "part-0001/nodes/user/x.npy", "edges of parts 0 to 1 and the columns of part 1"),
        (Placement.FEATURES, "part-0000/edges/user__buys__item/indices.npy", "edges of parts 0 to 1"),
        (Placement.FEATURES, "part-0000/edges/user__buys__item/columns/weight.npy", "edges of parts 0 to 1"),
        (
            Placement.ALL,
            "part-0001/edges/item__like__item/indptr.npy",
            "edges of part 1 and the columns of part 1",
        ),
        (Placement.ALL, "nodes/user/original_id.npy", "edges of part 1 and the columns of part 1"),
    ],
)
def test_a_file_that_is_missing_is_named_with_the_rank_that_needs_it(
    shop: Path, placement: Placement, file: str, needs: str
) -> None:
    folder = of_machine(shop, placement, 1, 2)
    (folder / file).unlink()
    with pytest.raises(ValueError, match=r"is missing; .* rank 1 of 2 needs the ") as raised:
        stores_of(folder, RANK_1, PartitionOptions(placement))
    assert str(raised.value).startswith(str(folder / file))
    assert needs in str(raised.value)
    assert f"placement {placement}" in str(raised.value)


def test_a_part_that_is_missing_is_named_with_the_rank_that_needs_it(shop: Path) -> None:
    folder = of_machine(shop, Placement.ALL, 0, 2)
    assert not (folder / "part-0001").exists()
    with pytest.raises(ValueError, match=r"part 1 of 2 is not on this machine.* rank 1 of 2 needs the edges"):
        stores_of(folder, RANK_1, PartitionOptions(Placement.ALL))


@pytest.mark.parametrize("placement", [Placement.FEATURES, Placement.ALL])
def test_what_is_known_of_a_graph_is_known_on_every_machine(shop: Path, placement: Placement) -> None:
    folder, everything = known_folder(of_machine(shop, placement, 1, 2)), open_parts(shop)
    assert folder.schema == everything.schema
    assert folder.fingerprint == everything.fingerprint
    for name in everything.split_names:
        assert folder.split(name).keys() == everything.split(name).keys()
    assert folder.columns()["user"]["age"].tolist() == everything.columns()["user"]["age"].tolist()


def test_missing_files_are_named_to_a_process_that_needs_all(shop: Path) -> None:
    folder = of_machine(shop, Placement.FEATURES, 0, 2)
    with pytest.raises(ValueError, match=r"part-0001/.*npy: is missing"):
        stores_of(folder, Group(), PartitionOptions())
    edges = open_parts(folder, columns_of=range(1))
    with pytest.raises(
        ValueError, match=r"'x' of 'user': .*part-0001/nodes/user/x.npy is not on this machine"
    ):
        edges.columns()["user"]["x"]
