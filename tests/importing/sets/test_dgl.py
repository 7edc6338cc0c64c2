"""`khop import dgl:FOLDER`: folders of DGL's CSVDataset."""

from __future__ import annotations

from pathlib import Path

import pytest

import khop
from importing.sets.layouts import csv_dataset
from khop.datasets.importers import ImportContext
from khop.importing.sets.dgl import dgl_importer
from khop.importing.sets.options import DglOptions

FOLLOWS = ("user", "follow", "user")


def imported(home: Path) -> khop.Graph:
    dgl_importer(DglOptions("set"), ImportContext(home)).write(home / "out")
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
        ("nodes.csv", "node_id,graph_id\n10,0\n20,1\n30,1\n", "holds 2 graphs"),
        ("nodes.csv", 'node_id,feat\n10,"1,2"\n20,"1"\n30,"1,2"\n', "row 3: '1' is no list of 2 numbers"),
        ("nodes.csv", "node_id,age\n10,1\n20,\n30,3\n", "column age: has 1 empty fields; fill them"),
        ("nodes.csv", "node_id\na\nb\nc\n", "no list of 1 numbers"),
        ("meta.yaml", "dataset_name: !!python/object/apply:os.mkdir [made]\n", "not plain YAML"),
        ("meta.yaml", "dataset_name: x\nversion: 2.0.0\nnode_data: []\nedge_data: []\n", "version"),
    ],
)
def test_bad_files_are_named(file: str, text: str, sentence: str, tmp_path: Path) -> None:
    csv_dataset(tmp_path / "set")
    (tmp_path / "set" / file).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        imported(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
