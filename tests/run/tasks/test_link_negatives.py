"""Negatives of a link-prediction run: mixed kinds, and hard ones that the model scores high."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.draw import DegreeNegatives, MixedNegatives, NegativeMode, TableNegatives, UniformNegatives
from khop.inference.link_evaluation import ends_of_links, node_rows
from khop.run.build import Run, prepare
from khop.run.read import RawRun
from khop.run.tasks.link_run_task import LinkTask, negatives_of
from khop.run.values import LinksTable
from support.small_link_folders import BUYS, SEES, write_shop


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with two hard negatives of each link, computed before every second epoch."""
    home = tmp_path_factory.mktemp("run")
    values = {
        "graph": str(write_shop(home / "shop", users=40, items=30)),
        "task": {"kind": "link-prediction", "target": "user buys item"},
        "links": {"eval_negatives": 4, "hard_negatives": 2, "hard_every": 2},
        "sampler": {"fanouts": [{"user sees shop": 0, "*": 5}]},
        "model": {"hidden": 8},
        "training": {"batch_size": 64},
    }
    return prepare(RawRun(values, "run.toml"), home / "cache")


def test_the_table_has_the_highest_scores_that_are_no_training_links(run: Run) -> None:
    task = run.run_task
    assert isinstance(task, LinkTask)
    task.before_epoch(1)
    table = task.model.get_buffer("hard_negatives")
    assert not table.any(), "not due"
    task.before_epoch(2)
    graph = task.split.train
    rows = node_rows(task.model.encoder, graph, graph.features, ["user", "item"])
    scores = (rows["user"].double() * 64).round() @ (rows["item"].double() * 64).round().T
    users, items = ends_of_links(task.split.train_links, BUYS)
    scores[users, items] = -torch.inf
    expected = scores.argsort(dim=1, descending=True, stable=True)[:, :2]
    assert torch.equal(table, expected)
    assert "hard_negatives" in task.model.state_dict(), "checkpoints have the table"
    batch = task.loader().batch(0, 0)
    links = batch.links[BUYS]
    assert links.pairs_per_link == 1 + 1 + 2
    count = links.num_links
    sources = batch.sample.nodes["user"][links.source[:count]]
    drawn = batch.sample.nodes["item"][links.destination[count:]].view(count, 3)
    assert torch.equal(drawn[:, 1:], expected[sources])


@pytest.mark.core(2)
@pytest.mark.parametrize("decoder", ["dot", "distmult", "complex", "transe", "rotate"])
def test_each_of_several_edge_types_has_a_table_by_the_scores_of_its_decoder(
    tmp_path: Path, decoder: str
) -> None:
    graph = write_shop(tmp_path / "shop", users=20, items=15, one_way=True)
    values = {
        "graph": str(graph),
        "precision": "float64",
        "task": {"kind": "link-prediction", "target": "user buys item, user sees shop"},
        "links": {"decoder": decoder, "eval_negatives": 1, "hard_negatives": 2, "val": 0.2, "test": 0.2},
        "sampler": {"fanouts": [2]},
        "model": {"hidden": 8, "embedding": 4},
    }
    task = prepare(RawRun(values, "run.toml"), tmp_path / "cache").run_task
    assert isinstance(task, LinkTask)
    assert task.hard is not None
    task.before_epoch(0)
    graph = task.split.train
    rows = node_rows(task.model.encoder, graph, graph.features, ["user", "item", "shop"])
    for edge_type in (BUYS, SEES):
        table, known = task.hard.tables[edge_type], ends_of_links(task.split.train_links, edge_type)
        with torch.no_grad():
            scores = task.model.decoder(edge_type).grid(rows["user"], rows[edge_type[2]])
        scores[known[0], known[1]] = -torch.inf
        lowest, others = scores.gather(1, table).min(1).values, scores.scatter(1, table, -torch.inf)
        assert bool((lowest > -torch.inf).all())
        assert bool((lowest >= others.max(1).values - 0.3).all()), "but for rounding"
    links = task.loader().batch(0, 0).links
    assert {t: of.pairs_per_link for t, of in links.items()} == {BUYS: 1 + 1 + 2, SEES: 1 + 1 + 2}


def test_kinds_of_negatives_are_mixed() -> None:
    table = torch.zeros(3, 2, dtype=torch.int64)
    links = LinksTable(negatives="degree", exact=True, shared_negatives=8, negatives_group=16)
    triplet = NegativeMode.TRIPLET
    assert negatives_of(links, triplet, None) == MixedNegatives(
        (DegreeNegatives(8, triplet, group=16), DegreeNegatives(1, triplet, exact=True))
    )
    mixed = negatives_of(LinksTable(negatives_per_positive=3), NegativeMode.BINARY, {BUYS: table})
    assert isinstance(mixed, MixedNegatives)
    assert mixed.parts[0] == UniformNegatives(3)
    assert isinstance(mixed.parts[1], TableNegatives)
    assert negatives_of(LinksTable(), NegativeMode.BINARY, None) == UniformNegatives(1)
