"""An opened graph is its folder: it pickles as a path, and options without effect are named.

DGL graphs become graphs. DGL has no build for this torch: a stand-in has the members that are read.

NetworkX graphs become graphs.

Sparse matrices become graphs.

A graph has the names of its folder, also if some of its edges are left out, and on servers.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import networkx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import khop
from khop import EdgeTable, Graph, NodeTable, open_graph, write_graph
from khop.api.open_graph import names_of, open_ids
from khop.data.partition.verify import verify_partition
from khop.graph.node_ids import first_lost, stored_ids
from khop.graph.partitions.parts_folder import known_folder
from khop.kernels.id_table import StringKeys, keys_at
from support.in_process import connected
from support.named_shop import BUYS, user_ids, write_named_shop
from support.typed_shop import shop

EDGE = ("node", "to", "node")
CLOSE = np.random.default_rng(0).random(20_000)  # five are equal to others as float32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    nodes = {"node": NodeTable(6, {"x": torch.arange(12.0).view(6, 2)}, {"train": torch.tensor([5, 0, 2])})}
    edges = {EDGE: EdgeTable(torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1, 2, 2, 2, 5, 0]))}
    return write_graph(tmp_path / "graph", nodes, edges)


def test_a_graph_pickles_as_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    graph = open_graph(folder.name)
    written = pickle.dumps(graph)
    monkeypatch.chdir("/")
    again = pickle.loads(written)
    assert len(written) - len(os.fsencode(folder)) < 300  # names and a checksum; no array travels
    assert torch.equal(again.split("train")["node"], graph.split("train")["node"])


def test_a_graph_in_memory_pickles_whole_and_has_no_splits() -> None:
    again = pickle.loads(pickle.dumps(shop()))
    assert isinstance(again, Graph)
    assert again.num_nodes("user") == 40
    with pytest.raises(ValueError, match="no split 'train'; there are"):
        shop().split("train")


def test_options_of_partitions_given_for_a_whole_graph_have_no_effect_and_a_warning_says_so(
    folder: Path,
) -> None:
    with pytest.warns(
        UserWarning, match="graph: lanes 2 and wire int8: no effect, because the graph"
    ) as told:
        open_graph(folder, lanes=2, wire="int8")
    assert len(told) == 1
    assert told[0].filename == __file__


class Edges:
    """`graph.edges`, which DGL both calls and indexes."""

    def __init__(
        self, ends: Mapping[object, tuple[Tensor, Tensor]], data: Mapping[object, dict[str, Tensor]]
    ) -> None:
        self.ends, self.data = ends, data

    def __call__(self, etype: object) -> tuple[Tensor, Tensor]:
        return self.ends[etype]

    def __getitem__(self, etype: object) -> SimpleNamespace:
        return SimpleNamespace(data=self.data.get(etype, {}))


def dgl_graph(
    nodes: Mapping[str, tuple[int, dict[str, Tensor]]],
    ends: Mapping[tuple[str, str, str], tuple[list[int], list[int]]],
    data: Mapping[object, dict[str, Tensor]],
) -> SimpleNamespace:
    tensors = {etype: (torch.tensor(s), torch.tensor(d)) for etype, (s, d) in ends.items()}
    return SimpleNamespace(
        ntypes=list(nodes), canonical_etypes=list(ends), num_nodes=lambda ntype: nodes[ntype][0],
        edges=Edges(tensors, data),
        nodes={ntype: SimpleNamespace(data=of) for ntype, (_, of) in nodes.items()},
    )  # fmt: skip


def test_a_graph_of_one_type_has_khops_names() -> None:
    node_data = {"feat": torch.ones(3, 2), "train_mask": torch.tensor([True, False, True])}
    etype = ("_N", "_E", "_N")
    given = dgl_graph(
        {"_N": (3, node_data)}, {etype: ([0, 1], [2, 0])}, {etype: {"w": torch.tensor([5.0, 6.0])}}
    )
    graph = khop.graph_from_dgl(given)
    edge_type = ("node", "to", "node")
    assert graph.csc(edge_type).indices.tolist() == [1, 0]
    assert graph.columns[edge_type]["w"].tolist() == [6, 5]  # by destination
    assert graph.split("train")["node"].tolist() == [0, 2]
    assert set(graph.columns["node"]) == {"feat"}


def test_a_mask_that_marks_no_node_is_left_out_with_a_warning() -> None:
    given = dgl_graph(
        {"_N": (3, {"val_mask": torch.zeros(3, dtype=torch.bool)})}, {("_N", "_E", "_N"): ([], [])}, {}
    )
    with pytest.warns(
        UserWarning, match="the mask of 'val' does not mark any 'node' node: the split is omitted"
    ):
        assert khop.graph_from_dgl(given).split_names == ()


def test_types_are_kept() -> None:
    etype = ("user", "buys", "item")
    graph = khop.graph_from_dgl(dgl_graph({"user": (2, {}), "item": (3, {})}, {etype: ([0, 1], [2, 0])}, {}))
    assert graph.schema.node_types == ("user", "item")
    assert graph.num_edges(etype) == 2
    with pytest.raises(ValueError, match="must be a DGLGraph"):
        khop.graph_from_dgl(5)


def ends(graph: khop.Graph) -> list[tuple[int, int]]:
    csc = graph.csc(EDGE)
    return sorted(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))


def test_nodes_edges_and_their_numbers() -> None:
    given = networkx.DiGraph()
    given.add_node("b", x=[1.0, 2.0], age=3, club="red")
    given.add_node("a", x=[3.0, 4.0], age=5)
    given.add_edge("a", "b", weight=0.5)
    with pytest.warns(UserWarning, match="attribute 'club' of nodes is omitted: it has text"):
        graph = khop.graph_from_networkx(given)
    assert ends(graph) == [(1, 0)]
    assert graph.columns["node"]["x"].tolist() == [[1, 2], [3, 4]]
    assert graph.columns["node"]["age"].tolist() == [3, 5]
    assert set(graph.columns["node"]) == {"x", "age"}
    assert graph.columns[EDGE]["weight"].tolist() == [0.5]


def test_undirected_edges_are_there_in_both_directions() -> None:
    given = networkx.les_miserables_graph()
    graph = khop.graph_from_networkx(given)
    rows = {node: row for row, node in enumerate(given)}
    both = {pair for u, v in given.edges for pair in ((rows[u], rows[v]), (rows[v], rows[u]))}
    assert ends(graph) == sorted(both)
    assert graph.schema.reverse(EDGE) == EDGE
    assert graph.columns[EDGE]["weight"].shape == (2 * given.number_of_edges(),)


def test_empty_graphs_lists_of_different_lengths_and_other_objects() -> None:
    assert khop.graph_from_networkx(networkx.Graph()).num_nodes("node") == 0
    given = networkx.Graph()
    given.add_node(0, x=[1.0], y=np.ones(2))
    given.add_node(1, x=[1.0, 2.0], y=np.ones(2))
    with pytest.warns(UserWarning, match="'x' of nodes is omitted: its lists are not numbers of one length"):
        assert set(khop.graph_from_networkx(given).columns["node"]) == {"y"}
    with pytest.raises(ValueError, match="must be a NetworkX graph"):
        khop.graph_from_networkx({0: [1]})


@pytest.mark.parametrize("form", ["csr_array", "csc_array", "coo_array", "csr_matrix", "lil_array"])
def test_rows_are_sources(form: str, tmp_path: Path) -> None:
    dense = np.array([[0, 2, 0], [0, 0, 0], [3, 0, 0.5]])
    graph = khop.graph_from_scipy(getattr(sp, form)(dense))
    csc, weights = graph.csc(EDGE), graph.columns[EDGE]["weight"]
    found = {
        (s, d): w
        for s, d, w in zip(csc.indices.tolist(), csc.destinations().tolist(), weights.tolist(), strict=True)
    }
    assert found == {(0, 1): 2, (2, 0): 3, (2, 2): 0.5}
    graph.save(tmp_path / "g")
    assert khop.open_graph(tmp_path / "g").num_edges(EDGE) == 3


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**53 + 1, 5], torch.int64),
        (np.array([2**24 + 1, 5], np.int32), torch.int64),
        (np.array([-(2**24) - 1, 5], np.int32), torch.int64),
        (np.array([2**24, -(2**24)], np.int32), torch.float32),
        (np.array([-128, 127], np.int8), torch.float32),
        (np.array([2**63, 0], np.uint64), torch.float32),
        ([1700000000.25, 1700000001.5], torch.float64),
        ([1e300, 1.0], torch.float64),
        ([0.1, 0.2], torch.float32),
        (CLOSE, torch.float32),
        (np.array([0.1, 0.2], np.float32), torch.float32),
        ([True, True], torch.float32),
    ],
)
def test_weights_are_the_entries_of_the_matrix(values: object, dtype: torch.dtype) -> None:
    given = np.asarray(values)
    rows = np.arange(len(given))
    weights = khop.graph_from_scipy(sp.coo_array((given, (rows, rows)))).columns[EDGE]["weight"]
    assert weights.dtype == dtype
    assert torch.equal(weights, torch.from_numpy(given).to(dtype))


def test_features_of_any_number_of_nodes_are_float32() -> None:
    given = networkx.Graph()
    for node, number in enumerate(CLOSE):
        given.add_node(node, x=number, pair=[number, 1700000000.25], time=1700000000.25 + node)
    columns = khop.graph_from_networkx(given).columns["node"]
    assert {name: column.dtype for name, column in columns.items()} == {
        "x": torch.float32, "pair": torch.float32, "time": torch.float64,
    }  # fmt: skip
    assert columns["time"][:2].tolist() == [1700000000.25, 1700000001.25]


def test_several_matrices_share_node_types() -> None:
    buys, likes = sp.csr_array(np.eye(2, 3)), sp.csr_array(np.ones((2, 3)))
    graph = khop.graph_from_scipy({"user buys item": buys, ("user", "likes", "item"): likes})
    assert (graph.num_nodes("user"), graph.num_nodes("item")) == (2, 3)
    assert graph.num_edges(("user", "likes", "item")) == 6


def test_other_objects_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="must be a sparse matrix of SciPy"):
        khop.graph_from_scipy(np.eye(3))
    with pytest.raises(ValueError, match=r"shape \(2, 3\), but there are 2 'node' nodes"):
        khop.graph_from_scipy(sp.csr_array(np.ones((2, 3))))
    with pytest.raises(ValueError, match="must be finite numbers"):
        khop.graph_from_scipy(sp.csr_array(np.array([[np.nan]])))


NODES = torch.tensor([89, 3, 3, 0, 41])


@pytest.mark.parametrize("place", ["folder", "memory", "servers", "servers, some edge types"])
def test_a_graph_has_the_names_of_its_folder(tmp_path: Path, place: str) -> None:
    graph = khop.open_graph(write_named_shop(tmp_path / "shop"))
    graphs = {
        "folder": lambda: graph,
        "memory": lambda: graph.only([BUYS]),
        "servers": lambda: connected(graph),
        "servers, some edge types": lambda: connected(graph).only([BUYS]),
    }
    names = names_of(graphs[place]())
    found = names.ids["user"].at(NODES)
    assert isinstance(found, StringKeys)
    assert found.strings() == [user_ids(90)[node] for node in NODES]
    assert names.labels["user"]["unit"] == "EUR"


# The users' own ids of partitioned graphs.


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
def test_keys_are_chosen_by_row(texts: list[str], rows: list[int]) -> None:
    rows = [row % len(texts) for row in rows]
    found = keys_at(StringKeys.of(texts), np.array(rows, np.int64))
    assert isinstance(found, StringKeys)
    assert found.strings() == [texts[row] for row in rows]
