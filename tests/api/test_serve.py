"""A served graph has the views that clients ask for, each made once.

What connect says before it connects.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import khop
from khop.api.serve import ServedGraph, service_of
from khop.sampling.links.link_split import LinkColumns, Shares
from khop.servers.messages import CandidatesBefore, Only, SplitArguments, SplitPart
from support.in_process import connected
from support.small_folders import write_learnable_graph
from support.small_graphs import one_type
from support.small_typed_folders import BUYS, LIKE, write_typed_graph

SPLIT = SplitArguments((BUYS,), Shares(0.2, 0.1), LinkColumns(), 3)


@pytest.fixture
def served(tmp_path: Path) -> ServedGraph:
    return ServedGraph.of(khop.open_graph(write_typed_graph(tmp_path / "shop")))


def test_the_name_is_that_of_the_folder(served: ServedGraph) -> None:
    assert served.name == "shop"
    assert served.graph.folder is not None
    assert served.fingerprint == served.graph.folder.fingerprint


def test_no_steps_are_the_whole_graph(served: ServedGraph) -> None:
    assert served.viewed(()) is served.whole


def test_a_view_is_made_once(served: ServedGraph) -> None:
    step = Only((LIKE,))
    assert served.viewed((step,)) is served.viewed((step,))
    assert served.viewed((step,)).graph.schema.edge_types == (LIKE,)


def test_the_parts_of_a_split_are_made_together(served: ServedGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    split_links = khop.split_links

    def counted(*given: object, **named: object) -> khop.LinkSplit:
        calls.append(given)
        return split_links(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("khop.api.serve.split_links", counted)
    parts = [served.viewed((SplitPart(SPLIT, part),)) for part in ("train", "val", "test")]
    assert len(calls) == 1
    assert parts[0].links == parts[1].links
    assert parts[0].graph.num_edges(BUYS) < 3000


def test_views_are_let_go(served: ServedGraph) -> None:
    one = served.viewed((SplitPart(SPLIT, "train"),))
    size = served.views.counts()["view_bytes"]
    few = ServedGraph.of(served.graph, view_bytes=2 * size + 1000)
    for seed in range(6):
        few.viewed((SplitPart(replace(SPLIT, seed=seed), "train"),))
    counts = few.views.counts()
    assert (counts["views"], counts["views_made"], counts["views_dropped"]) == (2, 6, 4)
    assert 0 < counts["view_bytes"] <= 2 * size + 1000
    again = few.viewed((SplitPart(SPLIT, "train"),))
    assert again is not one
    assert {name: of.digest() for name, of in again.links.items()} == {
        name: of.digest() for name, of in one.links.items()
    }


def test_a_step_that_does_not_fit_is_refused(served: ServedGraph) -> None:
    with pytest.raises(ValueError, match="is a step that only servers of parts support"):
        served.viewed((CandidatesBefore(1),))
    with pytest.raises(ValueError, match="no edge type"):
        served.viewed((Only((("user", "sells", "item"),)),))


def test_a_graph_in_memory_cannot_be_served() -> None:
    with pytest.raises(ValueError, match="save it, and serve the folder"):
        ServedGraph.of(khop.Graph(one_type().store, one_type().features))


def test_a_partitioned_folder_is_served_whole(tmp_path: Path) -> None:
    khop.partition_graph(write_typed_graph(tmp_path / "shop"), tmp_path / "shop-3", 3)
    assert service_of(tmp_path / "shop-3").name == "shop-3"


def test_addresses_are_a_list() -> None:
    with pytest.raises(ValueError, match=r"addresses '10.0.0.5:7311': must be a list"):
        khop.connect("10.0.0.5:7311")  # type: ignore[arg-type]


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.api.serve.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install pyarrow"):
        khop.connect(["10.0.0.5:7311"])


def test_a_connected_graph_trains_unchanged_scripts(tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = connected(khop.open_graph(write_learnable_graph(tmp_path_factory.mktemp("graph") / "graph")))
    loader = khop.Loader(khop.NeighborSampler(graph, fanouts=[3, 2]), graph.split("train"), 64, columns=["x"])
    assert sum(batch.seeds.numel() for batch in loader) == 360
