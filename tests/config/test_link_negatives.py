"""Negatives of a link-prediction run: mixed kinds, and hard ones that the model scores high."""

from __future__ import annotations

import pytest
import torch

from khop.config.build import Run, prepare
from khop.config.link_negatives import negatives_of
from khop.config.link_run_task import LinkTask
from khop.config.read import RawRun
from khop.config.values import Links
from khop.draw import DegreeNegatives, MixedNegatives, NegativeMode, TableNegatives, UniformNegatives
from khop.inference.edge_outputs import ends_of_links
from khop.inference.link_evaluation import node_rows
from support.small_link_folders import BUYS, write_shop


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
    assert task.hard is not None
    task.before_epoch(1)
    assert not task.hard.rows.any(), "not due"
    task.before_epoch(2)
    graph = task.split.train
    rows = node_rows(task.model.encoder, graph, graph.features, ["user", "item"])
    scores = (rows["user"].double() * 64).round() @ (rows["item"].double() * 64).round().T
    users, items = ends_of_links(task.split.train_links, BUYS)
    scores[users, items] = -torch.inf
    expected = scores.argsort(dim=1, descending=True, stable=True)[:, :2]
    assert torch.equal(task.hard.rows, expected)
    assert "hard_negatives" in task.model.state_dict(), "checkpoints have the table"
    batch = task.loader().batch(0, 0)
    links = batch.links[BUYS]
    assert links.pairs_per_link == 1 + 1 + 2
    count = links.num_links
    sources = batch.sample.nodes["user"][links.source[:count]]
    drawn = batch.sample.nodes["item"][links.destination[count:]].view(count, 3)
    assert torch.equal(drawn[:, 1:], expected[sources])


def test_kinds_of_negatives_are_mixed() -> None:
    table = torch.zeros(3, 2, dtype=torch.int64)
    links = Links(negatives="degree", exact=True, shared_negatives=8, negatives_group=16, loss="bpr")
    triplet = NegativeMode.TRIPLET
    assert negatives_of(links, None) == MixedNegatives(
        (DegreeNegatives(8, triplet, group=16), DegreeNegatives(1, triplet, exact=True))
    )
    mixed = negatives_of(Links(negatives_per_positive=3), table)
    assert isinstance(mixed, MixedNegatives)
    assert mixed.parts[0] == UniformNegatives(3)
    assert isinstance(mixed.parts[1], TableNegatives)
    assert negatives_of(Links(), None) == UniformNegatives(1)
