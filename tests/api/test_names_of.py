"""A graph has the names of its folder, also if some of its edges are left out, and on servers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.api.names_of import names_of
from khop.kernels.id_table import StringKeys
from support.in_process import connected
from support.named_shop import BUYS, user_ids, write_named_shop

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
