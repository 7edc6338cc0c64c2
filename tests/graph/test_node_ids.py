"""The users' own ids in a graph folder: found again, both ways, and checked.

Ids of nodes as users give them in Python.

Ids by node are those of the nodes, in their order, in memory of their own.

The names of a folder: ids, class names and units where they are stored, and nothing elsewhere.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch

import khop
from khop.api.open_graph import open_ids
from khop.api.partition import partition_graph
from khop.graph.folder import open_folder
from khop.graph.node_ids import IdsHere, Names, first_lost, given_ids, kind_of, label_records, stored_ids
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.verify import verify_folder
from khop.kernels.id_table import StringKeys
from support.named_shop import RECORD, user_ids, write_named_shop
from support.small_folders import write_learnable_graph

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


def test_nodes_and_ids_are_integers_of_python_numpy_and_torch(shop: Path) -> None:
    ids = open_ids(shop, "item")
    for two, seven in [
        ([2], [7]),
        ([np.int32(2)], [np.uint64(7)]),
        ([np.array(2)], [np.array(7)]),
        ([torch.tensor(2)], [torch.tensor(7)]),
        (np.array([2], np.uint64), np.array([7], np.int8)),
        (np.array([2], object), np.array([7], object)),
        (torch.tensor([2]), torch.tensor([7])),
        (range(2, 3), range(7, 8)),
    ]:
        assert ids.ids(two) == [2**62]  # type: ignore[arg-type]
        assert ids.rows(seven).tolist() == [0]  # type: ignore[arg-type]


def test_nodes_that_do_not_exist_have_no_id(shop: Path) -> None:
    with pytest.raises(ValueError, match="node 3: there are 3 'item' nodes, 0 to 2"):
        open_ids(shop, "item").ids([0, 3])
    for beyond in (10**20, 2**63, -(10**20)):
        with pytest.raises(ValueError, match=f"node {beyond}: there are 3 'item' nodes, 0 to 2"):
            open_ids(shop, "item").ids([0, beyond, -1])
    assert open_ids(shop, "item").ids([]) == open_ids(shop, "item").ids(np.array([])) == []
    for wrong in (
        [0.5], ["1"], [True], [np.True_], [np.float64(1)], [torch.tensor(True)], [torch.tensor(1.0)], [[1]],
        np.array([1.0]), np.array([True]), np.array([[1]]), np.array([1, None]), torch.tensor([1.0]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"nodes .*: give whole numbers"):
            open_ids(shop, "item").ids(wrong)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("ids", "kind", "plain"),
    [
        (["b", "a"], "string", ["b", "a"]),
        (np.array(["b", "ä"]), "string", ["b", "ä"]),
        (np.array(["b", "a"], object), "string", ["b", "a"]),
        (["a", "a\0", "\0"], "string", ["a", "a\0", "\0"]),
        (np.array([3, 1], np.uint8), "int64", [3, 1]),
        (torch.tensor([3, 1], dtype=torch.int32), "int64", [3, 1]),
        (StringKeys.of(["b"]), "string", ["b"]),
    ],
)
def test_text_and_integers_are_ids(ids: Any, kind: str, plain: list[Any]) -> None:  # noqa: ANN401
    keys = given_ids(ids, "node type 'user'")
    assert kind_of(keys) == kind
    assert (keys.strings() if isinstance(keys, StringKeys) else keys.tolist()) == plain


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"ids": ["a", "b", "a"]}, r"ids\[2\] is 'a', and so is ids\[0\]: an id names one node; remove one"),
        ({"ids": np.array([5, 5])}, r"ids\[1\] is 5, and so is ids\[0\]"),
        ({"ids": ["a"], "count": 2}, "has 2 nodes and 1 ids; give one id per node"),
        ({"ids": np.array([0.5])}, r"ids\[0\] is 0.5: ids are text or integers of 64 bits"),
        ({"ids": np.array([1], np.uint64)}, r"ids\[0\] is 1: ids are text or integers"),
        ({"ids": np.zeros((2, 2), np.int64)}, r"ids have shape \(2, 2\): give one per node"),
        ({"ids": ["a", None]}, r"ids\[1\] is None"),
    ],
)
def test_what_is_no_id_is_refused_before_anything_is_written(
    table: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"node type 'user'.*{message}"):
        khop.write_graph(tmp_path / "g", {"user": khop.NodeTable(**table)}, {})
    assert list(tmp_path.iterdir()) == []


NODES = torch.tensor([2, 0, 2])


def test_ids_of_text_come_in_the_order_of_the_nodes() -> None:
    ids = IdsHere(StringKeys.of(["a", "", "ü"]))
    found = ids.at(NODES)
    assert isinstance(found, StringKeys)
    assert (ids.kind, len(ids), found.strings()) == ("string", 3, ["ü", "a", "ü"])
    assert len(ids.at(NODES[:0])) == 0


def test_ids_of_integers_are_copies() -> None:
    stored = np.array([7, -1, 2**62])
    ids = IdsHere(stored)
    found = ids.at(NODES)
    assert isinstance(found, np.ndarray)
    assert (ids.kind, found.tolist()) == ("int64", [2**62, 7, 2**62])
    assert not np.shares_memory(found, stored)


def test_a_folder_has_the_names_that_were_given(tmp_path: Path) -> None:
    folder = open_folder(write_named_shop(tmp_path / "shop"))
    names = Names.of(folder)
    users = names.ids["user"].at(torch.arange(90))
    assert isinstance(users, StringKeys)
    assert users.strings() == user_ids(90)
    assert label_records(folder) == {t: of_type["label"] for t, of_type in RECORD["nodes"].items()}
    assert names.labels["user"]["unit"] == "EUR"
    assert not names.original_ids


def test_parts_have_the_ids_from_before_the_partitioning_too(tmp_path: Path) -> None:
    partition_graph(write_named_shop(tmp_path / "shop"), tmp_path / "parts", 2, method="random")
    names, nodes = Names.of(open_parts(tmp_path / "parts")), torch.arange(60)
    originals = names.original_ids["item"].at(nodes)
    assert sorted(originals) == list(range(60))  # type: ignore[call-overload]
    assert names.ids["item"].at(nodes).tolist() == [7 * node - 100 for node in originals]  # type: ignore[union-attr]


def test_other_graphs_have_no_names(tmp_path: Path) -> None:
    for names in (Names.of(None), Names.of(open_folder(write_learnable_graph(tmp_path / "graph")))):
        assert (dict(names.ids), dict(names.labels), dict(names.original_ids)) == ({}, {}, {})


# Labels may be unknown: NaN in classes and in numbers to predict.


def test_unknown_labels_are_kept_saved_and_verified(tmp_path: Path) -> None:
    table = khop.NodeTable(
        columns={"y": np.array([2.0, np.nan, 0.0], np.float32), "price": np.array([1.5, np.nan, 2.0])},
        num_classes={"y": 3},
        unknown=("price",),
    )
    khop.write_graph(tmp_path / "a", {"item": table}, {})
    khop.open_graph(tmp_path / "a").save(tmp_path / "b")
    for name in ("a", "b"):
        columns = khop.open_graph(tmp_path / name).columns["item"]
        assert columns["y"].tolist() == [2, -1, 0]
        assert np.array_equal(columns["price"].numpy(), [1.5, np.nan, 2.0], equal_nan=True)
        assert verify_folder(tmp_path / name) == []


# Attributes of NetworkX graphs as columns.


EDGE = ("node", "to", "node")


def test_missing_numbers(tmp_path: Path) -> None:
    given = networkx.DiGraph()
    given.add_node(0, age=3)
    given.add_edge(0, 1, weight=2, size=2**70)
    given.add_edge(1, 0)
    with pytest.warns(UserWarning, match="have no number") as told:
        graph = khop.graph_from_networkx(given)
    assert [str(one.message) for one in told] == [
        "attribute 'age': 1 of 2 nodes have no number; they get NaN",
        "attribute 'weight': 1 of 2 edges have no number; they get 1",
        "attribute 'size': 1 of 2 edges have no number; they get 0, and 1 in size_missing",
    ]
    stored = khop.open_graph(graph.save(tmp_path / "g"))
    for one in (graph, stored):
        assert one.columns["node"]["age"].isnan().tolist() == [False, True]
        columns = {name: column.tolist() for name, column in one.columns[EDGE].items()}
        assert columns == {"weight": [1, 2], "size": [0, 2.0**70], "size_missing": [1, 0]}
