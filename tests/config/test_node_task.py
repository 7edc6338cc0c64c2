"""Node classification follows the edge types that its model has learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from khop.api.open_graph import Graph
from khop.config.node_task import NodeTask
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.edge_draws import EdgeDraws
from khop.inference.chunks import unwatched
from khop.rules.rule import Hop
from support.typed_runs import BOUGHT_BY, BUYS, ON, prepared, write_tagged_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagged_shop(tmp_path_factory.mktemp("graphs") / "shop")


def test_an_edge_type_that_no_hop_follows_is_unknown_to_the_model_and_to_exact_evaluation(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = {"user buys item": 4, "item bought_by user": 2, "*": 0}
    run = prepared(shop, sampler={"fanouts": [hop, hop]}, model={"hidden": 8})
    assert run.model.sizes.edge_types == (BUYS, BOUGHT_BY)
    drawn: dict[tuple[str, str, str], int] = {}
    sample_hop = EdgeDraws.sample_hop

    def noting(graph: EdgeDraws, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        found = sample_hop(graph, frontier, hop, key)
        for edge_type, neighbors in found.items():
            drawn[edge_type] = drawn.get(edge_type, 0) + neighbors.nodes.numel()
        return found

    monkeypatch.setattr(EdgeDraws, "sample_hop", noting)
    run.scores(("val",), unwatched)
    assert drawn[BUYS] > 0
    assert drawn[BOUGHT_BY] > 0
    assert drawn[ON] == 0


def test_the_majority_is_measured_beside_every_score(shop: Path) -> None:
    run_task = prepared(shop, model={"hidden": 8, "embedding": 4}).run_task
    assert isinstance(run_task, NodeTask)
    found = run_task.evaluated(("val", "test"), unwatched, ("f1-macro",))
    # Items 0 to 39 train, of the kinds 0 to 3 in turn: kind 0 wins the tie. It is the kind of 3 of 50 to 59.
    assert found.baselines == pytest.approx({
        "val/majority/accuracy": 3 / 10, "val/majority/f1-macro": 2 * 3 / (10 + 3) / 4,
        "test/majority/accuracy": 2 / 10, "test/majority/f1-macro": 2 * 2 / (10 + 2) / 4,
    })  # fmt: skip
    assert found.scores.keys() == {"val", "val/f1-macro", "test", "test/f1-macro"}


def with_splits(run_task: NodeTask, **splits: torch.Tensor) -> NodeTask:
    """The task on the same graph in memory, with other splits."""
    graph = run_task.context.graph
    changed = Graph(
        graph.topology, graph.features, splits={name: {"item": of} for name, of in splits.items()}
    )
    return replace(run_task, context=replace(run_task.context, graph=changed))


def test_a_training_split_without_known_labels_has_no_majority_and_scores_are_as_ever(shop: Path) -> None:
    run_task, nodes = prepared(shop, model={"hidden": 8, "embedding": 4}).run_task, torch.arange(60)
    assert isinstance(run_task, NodeTask)
    found = with_splits(run_task, train=nodes[:0], val=nodes[40:]).evaluated(("val",), unwatched)
    assert (found.scores.keys(), found.baselines) == ({"val"}, {})


def test_an_empty_split_fails_where_it_is_scored(shop: Path) -> None:
    run_task, nodes = prepared(shop, model={"hidden": 8, "embedding": 4}).run_task, torch.arange(60)
    assert isinstance(run_task, NodeTask)
    changed = with_splits(run_task, train=nodes[:6], val=nodes[6:], test=nodes[:0])
    assert len(changed.loader()) == 1  # nothing is measured before the first epoch
    assert changed.evaluated(("val",), unwatched).baselines.keys() == {"val/majority/accuracy"}
    with pytest.raises(ValueError, match="split 'test' of 'item': has no nodes to score"):
        changed.evaluated(("val", "test"), unwatched)
