"""The users' own ids in a graph folder: found again, both ways, and checked."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import khop
from khop.api.open_ids import open_ids
from khop.graph.folder import open_folder
from khop.graph.node_ids import first_lost, stored_ids
from khop.graph.verify import verify_folder

NAMES = [f"user-{n}" for n in range(500)] + ["", "Ünï", "42"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    nodes = {
        "user": khop.NodeTable(ids=NAMES),
        "item": khop.NodeTable(3, ids=np.array([7, -1, 2**62])),
        "place": khop.NodeTable(2),
    }
    edges = {("user", "buys", "item"): khop.EdgeTable(np.array([1, 0]), np.array([2, 2]))}
    return khop.write_graph(tmp_path / "shop", nodes, edges)


def test_ids_lead_to_their_nodes_and_back(shop: Path) -> None:
    users, items = open_ids(shop, "user"), khop.open_ids(shop, "item")
    assert users.rows(NAMES).tolist() == list(range(len(NAMES)))
    assert users.rows(["user-7", "user-500", "Ünï"]).tolist() == [7, -1, 501]
    assert users.ids([501, 0]) == ["Ünï", "user-0"]
    assert items.rows([2**62, 7, 8]).tolist() == [2, 0, -1]
    assert items.rows(["-1"]).tolist() == [1]
    assert items.ids(np.array([1])) == [-1]
    assert len(users) == 503
    assert first_lost(users) == first_lost(items) == -1


def test_a_folder_with_ids_has_format_version_2_and_is_sound(shop: Path) -> None:
    assert json.loads((shop / "graph.json").read_text())["version"] == 2
    assert verify_folder(shop) == []
    assert khop.open_graph(shop).num_nodes("user") == 503


def test_saving_and_sorting_keep_the_ids(shop: Path, tmp_path: Path) -> None:
    saved = khop.open_graph(shop).save(tmp_path / "saved")
    assert (saved / "graph.json").read_bytes() == (shop / "graph.json").read_bytes()
    assert sorted(stored_ids(open_folder(saved))) == ["item", "user"]


@pytest.mark.parametrize(
    ("node_type", "ids", "message"),
    [
        ("place", ["a"], "ids of 'place' are not stored; its nodes are 0 to 1"),
        ("shop", ["a"], "no node type 'shop'"),
        ("user", [5], "id 5: ids of 'user' are text; give it in quotes"),
        ("item", ["x"], "id 'x': ids of 'item' are integers of 64 bits"),
        ("item", ["007"], "id '007': ids of 'item' are integers of 64 bits"),
        ("item", ["1_0"], "id '1_0': ids of 'item' are integers of 64 bits"),
        ("item", [" 7"], "id ' 7': ids of 'item' are integers of 64 bits"),
        ("item", [7.9], "id 7.9: ids of 'item' are integers of 64 bits"),
        ("item", [True], "id True: ids of 'item' are integers of 64 bits"),
        ("item", [2**63], "ids of 'item' are integers of 64 bits"),
    ],
)
def test_what_is_no_id_is_said(shop: Path, node_type: str, ids: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_ids(shop, node_type).rows(ids)  # type: ignore[arg-type]


def test_nodes_that_do_not_exist_have_no_id(shop: Path) -> None:
    with pytest.raises(ValueError, match="node 3: there are 3 'item' nodes, 0 to 2"):
        open_ids(shop, "item").ids([0, 3])


@pytest.mark.parametrize("name", ["rows", "tags", "buckets", "bytes", "offsets"])
def test_damage_is_found_by_verify_and_never_read_as_an_id(shop: Path, name: str) -> None:
    path = shop / f"nodes/user/ids/{name}.npy"
    data = bytearray(path.read_bytes())
    data[200] ^= 0x55
    path.write_bytes(data)
    findings = verify_folder(shop)
    assert [finding.file for finding in findings] == [f"nodes/user/ids/{name}.npy"]
    with suppress(ValueError):  # a wrong answer at worst, never a read outside of the files
        open_ids(shop, "user").rows(NAMES)


def test_an_index_that_leads_elsewhere_is_found_by_verify(tmp_path: Path) -> None:
    """A faulty writer: right digests, wrong rows."""
    khop.write_graph(tmp_path / "one", {"a": khop.NodeTable(ids=["x", "y", "z"])}, {})
    khop.write_graph(tmp_path / "two", {"a": khop.NodeTable(ids=["x", "z", "y"])}, {})
    one, two = (json.loads((tmp_path / n / "graph.json").read_text()) for n in ("one", "two"))
    from khop.graph.manifest import fingerprint

    for file in ("nodes/a/ids/bytes.npy", "nodes/a/ids/offsets.npy"):
        (tmp_path / "one" / file).write_bytes((tmp_path / "two" / file).read_bytes())
        one["arrays"][file] = two["arrays"][file]
    del one["fingerprint"]
    (tmp_path / "one" / "graph.json").write_text(json.dumps({**one, "fingerprint": fingerprint(one)}))
    findings = verify_folder(tmp_path / "one")
    assert ["the id of node 1 is not found" in finding.problem for finding in findings] == [True]
