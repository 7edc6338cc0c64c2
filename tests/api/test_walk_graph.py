"""A folder with the most visited nodes of walks has everything of the graph before, and their edges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.api.open_graph import open_graph
from khop.api.walk_graph import walk_graph
from khop.sampling.walk_neighbors import WalkCounts, walk_neighbors
from support.small_link_folders import BUYS, write_shop

PATH, NEAR = ["user buys item", "item bought_by user"], ("item", "near", "item")


def test_the_folder_has_the_graph_and_the_edges_of_the_walks(tmp_path: Path) -> None:
    before = open_graph(write_shop(tmp_path / "shop", users=30, items=20))
    counts, out = WalkCounts(5, keep=3), tmp_path / "out"
    assert walk_graph(tmp_path / "shop", out, PATH, "near", counts, seed=2) == NEAR
    graph, chunks = open_graph(out), list(walk_neighbors(before, PATH, counts, seed=2).chunks)
    expected = [
        torch.cat([torch.as_tensor(getattr(of, end)) for of in chunks]) for end in ("sources", "destinations")
    ]
    csc = graph.csc(NEAR)
    assert torch.equal(csc.indices.long(), expected[0])
    assert torch.equal(csc.destinations(), expected[1])
    visits = torch.cat([torch.as_tensor(of.columns["visits"]) for of in chunks])
    assert torch.equal(graph.columns[NEAR]["visits"], visits)
    assert torch.equal(graph.csc(BUYS).indices, before.csc(BUYS).indices)
    assert torch.equal(graph.columns["user"]["x"], before.columns["user"]["x"])
    assert graph.schema.reverse_of == before.schema.reverse_of


def test_names_and_paths_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_shop(tmp_path / "shop", users=9, items=6)
    for path, relation, message in (
        (PATH[:1], "near", "it must lead back, add the edge types of the way back"),
        (["user likes item"], "near", "no edge type"),
        (["user sees shop", "shop seen user"], "near", "no edge type"),
    ):
        with pytest.raises(ValueError, match=message):
            walk_graph(tmp_path / "shop", tmp_path / "out", path, relation, WalkCounts())
    walk_graph(tmp_path / "shop", tmp_path / "out", PATH, "near", WalkCounts(1))
    with pytest.raises(ValueError, match="item near item is an edge type of "):
        walk_graph(tmp_path / "out", tmp_path / "more", PATH, "near", WalkCounts(1))
