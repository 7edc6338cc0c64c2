"""Predictions carry the users' ids, class names and units.

Parquet files appear when they are complete.

Files of rows with ids, for other programs; a file that could not be written is named first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from data.tables.shop import items, spec
from khop import Links, import_tables, open_graph
from khop.distributed.processes.group import ALONE
from khop.graph.node_ids import IdsHere, Names
from khop.inference.evaluation import SplitOutputs
from khop.inference.predictions import (
    LinkPredictions,
    NodePredictions,
    RowOutput,
    check_parquet,
    id_columns,
    write_parquet,
)
from khop.kernels.id_table import StringKeys

IDS = {"item": IdsHere(StringKeys.of(["a", "b", "c"]))}
NODES = torch.tensor([2, 0])


def rows(labels: torch.Tensor, outputs: torch.Tensor, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of one split of two nodes, without ids."""
    made = NodePredictions("item", "label", {"test": SplitOutputs(NODES, labels, outputs)})
    (piece,) = made.pieces(Names(IDS, {"item": record}))
    found: list[dict[str, Any]] = pa.table(piece).to_pylist()
    assert [(row.pop("id"), row.pop("node"), row.pop("split")) for row in found] == [
        ("c", 2, "test"), ("a", 0, "test"),
    ]  # fmt: skip
    return found


def test_classes_have_names_and_probabilities() -> None:
    found = rows(torch.tensor([1, -1]), torch.tensor([[0.0, 0.0], [0.0, 9.0]]), {"classes": ["hat", "shoe"]})
    assert found[0] == {"label": "shoe", "prediction": "hat", "score": 0.5, "scores": [0.5, 0.5]}
    assert (found[1]["label"], found[1]["prediction"]) == (None, "shoe")
    assert rows(torch.tensor([1, 0]), torch.eye(2), {})[0]["label"] == 1


def test_several_classes_are_lists_of_names() -> None:
    labels = torch.tensor([[1, 0], [255, 255]], dtype=torch.uint8)
    found = rows(labels, torch.tensor([[0.0, 5.0], [1.0, 1.0]]), {"classes": ["wool", "warm"]})
    assert [row["label"] for row in found] == [["wool"], None]
    assert [row["prediction"] for row in found] == [["warm"], ["wool", "warm"]]


def test_numbers_have_their_unit_and_other_outputs_are_written_as_they_are() -> None:
    found = rows(torch.tensor([3.5, 1.0]), torch.tensor([[3.0], [1.5]]), {"unit": "EUR", "classes": []})
    assert found[0] == {"label": 3.5, "prediction": 3.0, "unit": "EUR"}
    assert rows(torch.tensor([3.5, 1.0]), torch.zeros(2, 3), {})[0]["output"] == [0, 0, 0]


def test_links_have_both_ids_and_their_rank_among_negatives() -> None:
    edge_type = ("item", "with", "item")
    links = Links({edge_type: torch.tensor([[0, 1], [2, 0]])})
    scored = {edge_type: (torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1.0], [5.0, -1.0]]))}
    (piece,) = LinkPredictions((edge_type,), {"val": (links, scored)}).pieces(Names(IDS))
    assert pa.table(piece).to_pylist()[0] == {
        "source_id": "a", "source": 0, "destination_id": "c", "destination": 2, "split": "val", "score": 1.0,
        "rank": 1.5,
    }  # fmt: skip
    assert piece["rank"].to_pylist() == [1.5, 2.0]


def test_links_of_several_types_have_their_type() -> None:
    types = (("item", "with", "item"), ("item", "near", "item"))
    links = Links({t: torch.tensor([[0], [number]]) for number, t in enumerate(types)})
    scored = {t: (torch.tensor([1.0]), torch.tensor([[0.0]])) for t in types}
    pieces = list(LinkPredictions(types, {"val": (links, scored)}).pieces(Names(IDS)))
    assert [piece["edge_type"].to_pylist() for piece in pieces] == [["item with item"], ["item near item"]]
    assert [piece["destination"].to_pylist() for piece in pieces] == [[0], [1]]


def test_names_are_read_from_an_imported_folder(tmp_path: Path) -> None:
    changes = {"nodes.item.label": "category", "nodes.item.split": {"ratio": [1, 0, 0]}}
    import_tables(spec(**changes), tmp_path / "shop")
    names = Names.of(open_graph(tmp_path / "shop").folder)
    assert names.labels["item"]["classes"] == ["hat", "shoe"]
    ids = names.ids["item"]
    assert ids.kind == "string"
    assert ids.at(torch.arange(len(items()))).strings() == items()["item_id"].to_pylist()
    assert "user" not in names.labels
    assert not Names.of(None).ids


def test_pieces_become_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    assert write_parquet(path, iter([{"a": pa.array([1, 2])}, {"a": pa.array([3])}])) == 3
    assert pyarrow.parquet.read_table(path)["a"].to_pylist() == [1, 2, 3]
    assert pyarrow.parquet.read_metadata(path).num_row_groups == 2
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_stays_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"a": pa.array([1])}
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        write_parquet(tmp_path / "rows.parquet", broken())
    assert list(tmp_path.iterdir()) == []


def test_ids_are_text_or_integers_or_nodes_alone() -> None:
    nodes = torch.tensor([1, 0])
    assert id_columns(IdsHere(StringKeys.of(["a", "b"])), nodes, "id", "node")["id"].to_pylist() == ["b", "a"]
    assert id_columns(IdsHere(np.array([7, 8])), nodes, "id", "node")["id"].to_pylist() == [8, 7]
    assert list(id_columns(None, nodes, "id", "node")) == ["node"]


def test_a_name_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--out .*rows.csv: give a name that ends in \.parquet"):
        check_parquet(tmp_path / "rows.csv", "--out")
    with pytest.raises(ValueError, match="there is no folder"):
        check_parquet(tmp_path / "none" / "rows.parquet", "--out")
    (tmp_path / "rows.parquet").touch()
    with pytest.raises(ValueError, match="exists already; remove it or choose another name"):
        check_parquet(tmp_path / "rows.parquet", "--out")


ROWS = torch.arange(12.0).view(4, 3)


def output(path: Path, nodes: torch.Tensor | None = None, originals: torch.Tensor | None = None) -> RowOutput:
    original_ids = None if originals is None else IdsHere(originals.numpy())
    return RowOutput(path, "item", "embedding", 4, nodes, original_ids)


def written(out: RowOutput) -> None:
    file = out.path.with_name("hidden.npy")
    np.save(file, ROWS.numpy())
    out.check()
    out.write(ROWS, file, ALONE)


def test_npy_has_ids_beside_it(tmp_path: Path) -> None:
    out = output(tmp_path / "rows.npy", torch.tensor([7, 5, 3, 1]))
    written(out)
    assert np.array_equal(np.load(out.path), ROWS)
    assert np.load(out.ids_path).tolist() == [7, 5, 3, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.ids.npy", "rows.npy"]


def test_parquet_has_ids_and_original_ids(tmp_path: Path) -> None:
    out = output(tmp_path / "rows.parquet", torch.tensor([3, 0, 1, 2]), torch.tensor([10, 11, 12, 13]))
    written(out)
    table = pyarrow.parquet.read_table(out.path)
    assert table.column_names == ["node", "original_id", "embedding"]
    assert table["node"].to_pylist() == [3, 0, 1, 2]
    assert table["original_id"].to_pylist() == [13, 10, 11, 12]
    assert table["embedding"].to_pylist() == ROWS.tolist()


def test_a_rank_has_a_file_with_its_rows(tmp_path: Path) -> None:
    every = output(tmp_path / "rows.npy").of_rank(2, 1, 3)
    assert (every.path.name, every.count) == ("rows.rank-2.npy", 3)
    assert every.nodes is not None
    assert every.nodes.tolist() == [1, 2, 3]
    some = output(tmp_path / "rows.npy", torch.tensor([9, 8, 7, 6])).of_rank(0, 2, 1)
    assert some.nodes is not None
    assert some.nodes.tolist() == [7]


def test_files_that_cannot_be_written_are_named_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"give a name that ends in \.npy or \.parquet"):
        output(tmp_path / "rows.csv").check()
    with pytest.raises(ValueError, match="there is no folder"):
        output(tmp_path / "nowhere" / "rows.npy").check()
    (tmp_path / "rows.ids.npy").touch()
    with pytest.raises(ValueError, match=r"rows\.ids\.npy: exists already"):
        output(tmp_path / "rows.npy").check()


@pytest.mark.parametrize("own", [["a", "b", "ü", "d"], [7, 5, 3, 1]], ids=["text", "integers"])
def test_parquet_has_the_users_ids(tmp_path: Path, own: list[str] | list[int]) -> None:
    keys = StringKeys.of([str(one) for one in own]) if isinstance(own[0], str) else np.array(own, np.int64)
    nodes = torch.tensor([3, 0, 1, 2])
    out = RowOutput(tmp_path / "rows.parquet", "item", "embedding", 4, nodes, None, IdsHere(keys))
    written(out)
    table = pyarrow.parquet.read_table(out.path)
    assert table.column_names == ["id", "node", "embedding"]
    assert table["id"].to_pylist() == [own[3], own[0], own[1], own[2]]
