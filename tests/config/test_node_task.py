"""Node classification follows the edge types that its model has learned."""

from __future__ import annotations

from pathlib import Path

import pytest

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
