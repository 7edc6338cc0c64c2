"""What connect says before it connects."""

from __future__ import annotations

import pytest

import khop
from support.in_process import connected
from support.small_folders import write_learnable_graph


def test_addresses_are_a_list() -> None:
    with pytest.raises(ValueError, match=r"addresses '10.0.0.5:7311': must be a list"):
        khop.connect("10.0.0.5:7311")  # type: ignore[arg-type]


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.api.connect.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install pyarrow"):
        khop.connect(["10.0.0.5:7311"])


def test_a_connected_graph_trains_unchanged_scripts(tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = connected(khop.open_graph(write_learnable_graph(tmp_path_factory.mktemp("graph") / "graph")))
    loader = khop.Loader(khop.NeighborSampler(graph, fanouts=[3, 2]), graph.split("train"), 64, columns=["x"])
    assert sum(batch.seeds.numel() for batch in loader) == 360
