"""A run over a typed graph is made of what its config says, and trains and scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from khop.config.build import Run, prepare
from khop.config.read import RawRun
from khop.config.run_fingerprint import facts_of
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.build import EdgeTable, NodeTable, write_graph
from khop.graph.csc_graph import CscGraph
from khop.inference.chunks import unwatched
from khop.models.rgcn import RGCN
from khop.models.sage import SAGE
from khop.rules.rule import Hop

BUYS, BOUGHT_BY, ON = ("user", "buys", "item"), ("item", "bought_by", "user"), ("tag", "on", "item")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(5)
    items = torch.arange(60)
    nodes = {
        "user": NodeTable(columns={"x": torch.randn(40, 3, generator=generator)}),
        "item": NodeTable(
            columns={"x": torch.randn(60, 5, generator=generator), "kind": items % 4},
            splits={"train": items[:40], "val": items[40:50], "test": items[50:]},
            num_classes={"kind": 4},
        ),
        "tag": NodeTable(count=7),
    }
    users = torch.randint(40, (300,), generator=generator)
    bought = torch.randint(60, (300,), generator=generator)
    tags = torch.randint(7, (90,), generator=generator)
    edges = {
        BUYS: EdgeTable(users, bought),
        BOUGHT_BY: EdgeTable(bought, users),
        ON: EdgeTable(tags, torch.randint(60, (90,), generator=generator)),
    }
    return write_graph(tmp_path_factory.mktemp("graphs") / "shop", nodes, edges)


def prepared(shop: Path, **tables: object) -> Run:
    fanouts = {"fanouts": [{"* buys *": 4, "*": 2}, 3]}
    return prepare(RawRun({"graph": str(shop), "sampler": fanouts, **tables}, "run.toml"), shop.parent)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ({"kind": "sage", "embedding": 6}, SAGE),
        ({"kind": "sage", "embedding": 0, "encoder": "linear"}, SAGE),
        ({"kind": "rgcn", "embedding": 6, "bases": 2}, RGCN),
    ],
)
def test_a_run_over_types_trains_every_parameter_and_scores_exactly(
    shop: Path, model: dict[str, object], kind: type
) -> None:
    run = prepared(shop, model={"hidden": 8, "norm": "layer", **model}, training={"batch_size": 16})
    assert isinstance(run.model, kind)
    assert run.model.num_layers == 2
    batch = run.loader().batch(0, 0)
    run.task.losses(run.model(batch), batch).sum().backward()
    assert [name for name, p in run.model.named_parameters() if p.grad is None] == []
    first_hop = batch.blocks[-1].adjacencies
    assert int(first_hop[BUYS].indptr.diff().max()) == 4
    assert int(first_hop[ON].indptr.diff().max()) <= 2
    scores = run.scores(("val", "test"), unwatched)
    assert scores.keys() == {"val", "test"}


def test_an_edge_type_that_no_hop_follows_is_unknown_to_the_model_and_to_exact_evaluation(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = {"user buys item": 4, "item bought_by user": 2, "*": 0}
    run = prepared(shop, sampler={"fanouts": [hop, hop]}, model={"hidden": 8})
    assert run.model.sizes.edge_types == (BUYS, BOUGHT_BY)
    drawn: dict[tuple[str, str, str], int] = {}
    sample_hop = CscGraph.sample_hop

    def noting(graph: CscGraph, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        found = sample_hop(graph, frontier, hop, key)
        for edge_type, neighbors in found.items():
            drawn[edge_type] = drawn.get(edge_type, 0) + neighbors.nodes.numel()
        return found

    monkeypatch.setattr(CscGraph, "sample_hop", noting)
    run.scores(("val",), unwatched)
    assert drawn[BUYS] > 0
    assert drawn[BOUGHT_BY] > 0
    assert drawn[ON] == 0


def test_a_node_type_without_the_column_has_to_be_decided_on(shop: Path) -> None:
    with pytest.raises(ValueError, match=r"its node type 'tag' has no column 'x'; give embedding=64"):
        prepared(shop)


def test_more_epochs_are_another_run_where_the_learning_rate_falls_to_the_last(shop: Path) -> None:
    def facts(**training: object) -> Mapping[str, str]:
        run = prepared(shop, model={"hidden": 8, "embedding": 0, "encoder": "linear"}, training=training)
        return facts_of(run.config, run.fingerprint)

    assert facts(epochs=3) == facts(epochs=4)
    falling = facts(epochs=3, schedule="linear")
    assert falling["training.epochs"] == "3"
    assert falling != facts(epochs=4, schedule="linear")
