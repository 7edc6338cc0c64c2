"""khop.partition_graph refuses what it cannot do, and leaves nothing behind.

A run over clusters, from the graph folder to the scores.

A folder with the most visited nodes of walks has everything of the graph before, and their edges.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.api.open_graph import open_graph
from khop.api.partition import partition_graph, walk_graph
from khop.graph.store import open_csc_graph
from khop.sampling.random_walks import WalkCounts, walk_neighbors
from support.small_folders import write_learnable_graph
from support.small_link_folders import BUYS, write_shop
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def test_a_part_alone_is_no_graph(shop: Path, tmp_path: Path) -> None:
    partition_graph(shop, tmp_path / "parts", 2)
    with pytest.raises(ValueError, match=r"part 1 of 2 of a graph; open the folder of all parts, .*parts$"):
        open_csc_graph(tmp_path / "parts" / "part-0001")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"parts": 0}, "parts 0: must be 1 to 4096"),
        ({"parts": 2, "method": "louvain"}, "method 'louvain': must be one of ldg, fennel, metis, random"),
        (
            {"parts": 2, "balance": ["rows"]},
            "parts can be balanced by nodes, edges, bytes, train",
        ),
        ({"parts": 2, "balance": ["nodes", "nodes"]}, "give at least one name, each once"),
        ({"parts": 2, "slack": -0.1}, "slack -0.1: must be a number, at least 0"),
        ({"parts": 2, "fanouts": [5, -2]}, r"fanouts \[5, -2\]: must be 0 or more, or -1"),
        ({"parts": 2, "batch_size": 0}, "batch_size 0: must be a whole number, 1 or more"),
    ],
)
def test_invalid_settings_are_one_sentence(
    shop: Path, tmp_path: Path, arguments: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        partition_graph(shop, tmp_path / "parts", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "parts").exists()


def test_an_interrupted_partition_leaves_nothing(shop: Path, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("part 1: edges"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition_graph(shop, tmp_path / "parts", 2, notice=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_training_on_clusters_learns(tmp_path: Path) -> None:
    graph = khop.open_graph(khop.cluster_graph(write_learnable_graph(tmp_path / "a"), tmp_path / "b", 12))
    torch.manual_seed(1)
    model = khop.models.SAGE.for_graph(graph, hidden=16, layers=2)
    sampler = khop.ClusterSampler(graph, khop.clusters_of(graph), layers=2, per_group=2)
    loader = khop.Loader(
        sampler, graph.split("train"), 2, shuffle=True, columns=["x"], seed_columns=["category"]
    )
    before = khop.evaluate(model, graph, split="val", loader=loader)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    task = khop.NodeClassification.of(graph.schema)
    for _ in range(15):
        for batch in loader:
            optimizer.zero_grad()
            batch.global_mean(task.losses(model(batch), batch)).backward()
            optimizer.step()
    assert khop.evaluate(model, graph, split="val", loader=loader) > before + 0.3


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
        (PATH[:1], "near", "it must lead back to the start"),
        (["user likes item"], "near", "no edge type"),
        (["user sees shop", "shop seen user"], "near", "no edge type"),
    ):
        with pytest.raises(ValueError, match=message):
            walk_graph(tmp_path / "shop", tmp_path / "out", path, relation, WalkCounts())
    walk_graph(tmp_path / "shop", tmp_path / "out", PATH, "near", WalkCounts(1))
    with pytest.raises(ValueError, match="already has the edge type item near item"):
        walk_graph(tmp_path / "out", tmp_path / "more", PATH, "near", WalkCounts(1))
