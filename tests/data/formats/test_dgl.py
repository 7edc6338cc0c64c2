"""`khop import dgl:FOLDER`: folders of DGL's CSVDataset."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from data.formats.layouts import csv_dataset
from khop.data.formats.dgl import dgl_importer
from khop.data.importers import Dgl, ImportContext

FOLLOWS = ("user", "follow", "user")


def imported(home: Path) -> khop.Graph:
    dgl_importer(Dgl("set"), ImportContext(home)).write(home / "out")
    return khop.open_graph(home / "out")


def test_features_labels_masks_and_ids(tmp_path: Path) -> None:
    csv_dataset(tmp_path / "set")
    graph = imported(tmp_path)
    columns = graph.columns["user"]
    assert columns["feat"].tolist() == [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]
    assert columns["age"].tolist() == [31, 45, 27]
    assert columns["label"].tolist() == [1, 0, 1]
    assert graph.schema.columns["user"]["label"].num_classes == 2
    assert {name: graph.split(name)["user"].tolist() for name in graph.split_names} == {
        "train": [0], "val": [1], "test": [2],
    }  # fmt: skip
    csc, edges = graph.csc(FOLLOWS), graph.columns[FOLLOWS]
    found = zip(csc.indices.tolist(), csc.destinations().tolist(), edges["split"].tolist(), strict=True)
    assert sorted(found) == [(0, 2, 0), (1, 0, 1), (2, 1, -1)]
    assert edges["weight"].shape == (3,)


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("edges.csv", "src_id,dst_id\n10,99\n", "column dst_id, row 2: no 'user' node has the id 99; add it"),
        ("edges.csv", "from,dst_id\n10,20\n", "has no column 'src_id', but from, dst_id"),
        ("nodes.csv", "node_id,graph_id\n10,0\n20,1\n30,1\n", "has 2 graphs"),
        ("nodes.csv", 'node_id,feat\n10,"1,2"\n20,"1"\n30,"1,2"\n', "row 3: '1' is not a list of 2 numbers"),
        (
            "nodes.csv",
            "node_id,label\n10,1\n10,2\n20,1\n30,1\n",
            "column node_id, row 3: an earlier node has the id '10'",
        ),
        (
            "nodes.csv",
            "node_id,train_mask\n10,True\n20,maybe\n",
            "column train_mask, row 3: 'maybe' is neither true",
        ),
        ("nodes.csv", "node_id,x,x\n10,1,2\n", "column 'x' occurs twice"),
        ("meta.yaml", "- 1\n", "the file is .*: must be a table"),
        ("meta.yaml", "#" * (2 << 20), "has 2,097,152 bytes"),
        ("meta.yaml", "dataset_name: x\nversion: 2.0.0\nnode_data: []\nedge_data: []\n", "version"),
    ],
)
def test_bad_files_are_named(file: str, text: str, sentence: str, tmp_path: Path) -> None:
    csv_dataset(tmp_path / "set")
    (tmp_path / "set" / file).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        imported(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


# The files of DGL's guide, section 4.6.
DEFAULT = {
    "meta.yaml": "dataset_name: mini\nedge_data:\n- file_name: edges_0.csv\nnode_data:\n- file_name: nodes_0.csv\n",
    "nodes_0.csv": "node_id\n0\n1\n2\n",
    "edges_0.csv": "src_id,dst_id\n0,1\n1,2\n2,0\n",
}
TYPED = {
    "meta.yaml": (
        "dataset_name: shop\nseparator: ;\n"
        "edge_data:\n- file_name: follow.csv\n  etype: [user, follow, user]\n"
        "- file_name: like.csv\n  etype: [user, like, item]\n  src_id_field: who\n  dst_id_field: what\n"
        "node_data:\n- file_name: users.csv\n  ntype: user\n  node_id_field: name\n"
        "- file_name: items.csv\n  ntype: item\n"
    ),
    "users.csv": (
        "name;full name;label;feat;age;_score;train_mask\n"
        'ann;Ann A.;good;"0.5, 1.0";31;1.5;True\n'
        '007;Bob B.;bad;"1.5, 2.0";;2.5;False\n'
        'eve;"E; V.";;"2.5, 3.0";27;3.5;False\n'
    ),
    "items.csv": "node_id;label\n7;1\n007;nan\n08;0.0\n",
    "follow.csv": "src_id;dst_id;weight;label\nann;007;0.5;1\n007;eve;nan;0\n",
    "like.csv": "who;what;kind\nann;007;buys\neve;7;sees\n",
}


def written(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)


def test_default_names(tmp_path: Path) -> None:
    written(tmp_path / "set", DEFAULT)
    said = dgl_importer(Dgl("set"), ImportContext(tmp_path)).write(tmp_path / "out").split("\n")
    assert said == ["3 node; 3 node to node", "type '_V' is 'node'"]
    csc = khop.open_graph(tmp_path / "out").csc(("node", "to", "node"))
    assert (csc.indices.tolist(), csc.destinations().tolist()) == ([2, 0, 1], [0, 1, 2])


def test_floats_are_float32_except_times(tmp_path: Path) -> None:
    rows = '0,4096.00001,1700000000.25,"1700000000.25,1"\n1,4096.00002,1700000001.5,"1700000001.5,2"\n'
    written(tmp_path / "set", {
        "meta.yaml": DEFAULT["meta.yaml"],
        "nodes_0.csv": f"node_id,x,time,feat\n{rows}",
        "edges_0.csv": "src_id,dst_id,weight\n0,1,0.1\n1,0,0.2\n",
    })  # fmt: skip
    graph = imported(tmp_path)
    columns = graph.columns["node"]
    assert {name: columns[name].dtype for name in ("x", "time", "feat")} == {
        "x": torch.float32, "time": torch.float64, "feat": torch.float32,
    }  # fmt: skip
    assert columns["time"].tolist() == [1700000000.25, 1700000001.5]
    assert graph.columns["node", "to", "node"]["weight"].dtype == torch.float32


def test_rows_with_several_marks_are_in_the_first_split(tmp_path: Path) -> None:
    """The files of DGL's guide have such rows."""
    marks = "False,True,True\n1,{0},True,True,True\n2,{0},True,False,True\n3,{0},False,True,False\n"
    head = "label,train_mask,val_mask,test_mask\n0,{0},"
    files = {
        "meta.yaml": DEFAULT["meta.yaml"],
        "nodes_0.csv": "node_id," + (head + marks).format(1),
        "edges_0.csv": "src_id,dst_id," + (head + marks).format("0,1"),
    }
    written(tmp_path / "set", files)
    said = dgl_importer(Dgl("set"), ImportContext(tmp_path)).write(tmp_path / "out")
    note = "4 marks are ignored, because their row is already in an earlier split (order: train, val, test)"
    assert [f"{name}: {note}" in said for name in ("nodes_0.csv", "edges_0.csv")] == [True, True]
    graph = khop.open_graph(tmp_path / "out")
    assert {name: graph.split(name)["node"].tolist() for name in graph.split_names} == {
        "train": [1, 2], "val": [0, 3],
    }  # fmt: skip
    edges = ("node", "to", "node")
    order = graph.csc(edges).indices.tolist()
    assert [graph.columns[edges]["split"].tolist()[order.index(at)] for at in range(4)] == [1, 0, 0, 1]


def test_text_ids_names_labels_and_missing_values(tmp_path: Path) -> None:
    written(tmp_path / "set", TYPED)
    said = dgl_importer(Dgl("set"), ImportContext(tmp_path)).write(tmp_path / "out").split("\n")
    graph = khop.open_graph(tmp_path / "out")
    assert said[0] == "3 user, 3 item; 2 user follow user, 2 user like item"
    notes = [note.replace(f"{tmp_path / 'set'}/", "") for note in said[1:]]
    assert notes == [
        "users.csv, column full name: text is omitted",
        "users.csv, column label: classes are bad, good, in this order",
        "users.csv, column label: 1 of 3 have no value; they are -1, unknown",
        "users.csv, column age: 1 of 3 have no value; they are NaN",
        "users.csv, column _score: is column 'score'",
        "items.csv, column label: 1 of 3 have no value; they are -1, unknown",
        "follow.csv, column weight: 1 of 2 have no value; they are 0, and 1 in weight_missing",
        "like.csv, column kind: text is omitted",
    ]
    users = graph.columns["user"]
    assert users["label"].tolist() == [1, 0, -1]
    assert users["feat"].tolist() == [[0.5, 1], [1.5, 2], [2.5, 3]]
    assert users["age"].isnan().tolist() == [False, True, False]
    assert users["score"].tolist() == [1.5, 2.5, 3.5]
    assert graph.schema.columns["item"]["label"].num_classes == 2
    assert graph.columns["item"]["label"].tolist() == [1, -1, 0]
    likes = graph.csc(("user", "like", "item"))
    assert list(zip(likes.indices.tolist(), likes.destinations().tolist(), strict=True)) == [(2, 0), (0, 1)]
    assert graph.split("train")["user"].tolist() == [0]


def test_columns_of_users_keep_their_names(tmp_path: Path) -> None:
    """The column of splits and marks of missing values replace none; neither does a name that is corrected."""
    files = {
        "meta.yaml": DEFAULT["meta.yaml"],
        "nodes_0.csv": "node_id,_label,label,original_id\n0,5,1,7\n1,6,0,8\n",
        "edges_0.csv": "src_id,dst_id,split,w,w_missing,train_mask,val_mask\n0,1,7,,3,1,0\n1,0,8,2.5,4,0,1\n",
    }
    written(tmp_path / "set", files)
    said = dgl_importer(Dgl("set"), ImportContext(tmp_path)).write(tmp_path / "out")
    assert "edges_0.csv, column split: is column 'split.2'" in said
    assert "column w: 1 of 2 have no value; they are 0, and 1 in w_missing.2" in said
    graph = khop.open_graph(tmp_path / "out")
    nodes, edges = graph.columns["node"], graph.columns["node", "to", "node"]
    assert (nodes["label"].tolist(), nodes["label.2"].tolist()) == ([1, 0], [5, 6])
    assert nodes["original_id.2"].tolist() == [7, 8]
    of_edges = {name: values.flip(0).tolist() for name, values in edges.items()}  # by destination
    assert of_edges == {
        "split": [0, 1], "split.2": [7, 8], "w": [0, 2.5], "w_missing": [3, 4], "w_missing.2": [1, 0],
    }  # fmt: skip


def test_the_folder_of_a_spec_gives_the_name(tmp_path: Path) -> None:
    assert dgl_importer(Dgl("."), ImportContext(tmp_path / "set")).name == "set"
