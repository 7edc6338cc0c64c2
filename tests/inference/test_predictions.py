"""Predictions carry the users' ids, class names and units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from tests.importing.shop import items, spec

from khop import Links, import_tables, open_graph
from khop.graph.ids_by_node import IdsHere
from khop.graph.names import Names
from khop.inference.evaluation import SplitOutputs
from khop.inference.predictions import LinkPredictions, NodePredictions
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
