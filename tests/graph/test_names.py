"""The names of a folder: ids, class names and units where they are stored, and nothing elsewhere."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.api.partition import partition_graph
from khop.graph.folder import open_folder
from khop.graph.names import Names, label_records
from khop.kernels.id_table import StringKeys
from khop.partition.parts_folder import open_parts
from support.named_shop import RECORD, user_ids, write_named_shop
from support.small_folders import write_learnable_graph


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
