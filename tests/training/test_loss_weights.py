"""A sampler's loss weights train to the same losses on any number of ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
from support.covered import covered
from support.small_graphs import one_type
from support.small_runs import SmallRun
from support.started_ranks import StartedRanks

STEPS = [(epoch, step) for epoch in range(2) for step in range(5)]


class WeightedSeeds(khop.SamplerBase):
    """Neighborhoods of khop, and a loss weight for each seed; the total is that of the step's seeds."""

    def __init__(self, graph: khop.Graph) -> None:
        super().__init__(graph)
        self.inner = khop.NeighborSampler(graph, [3, 3])

    def sample(self, seeds: khop.Seeds, key: khop.DrawKey) -> khop.Sample:
        assert seeds.batch_nodes is not None
        weights = {t: self.weights(ids) for t, ids in seeds.nodes.items()}
        total = sum(float(self.weights(ids).sum()) for ids in seeds.batch_nodes.values())
        return replace(self.inner.sample(seeds, key), loss_weights=khop.LossWeights(weights, total))

    def weights(self, nodes: torch.Tensor) -> torch.Tensor:
        return 0.25 + (nodes % 7).double()


class Weighted(SmallRun):
    """The small run with loss weights, in float64, evaluated as it is."""

    def trainer(self) -> khop.Trainer:
        trainer = super().trainer()
        graph = khop.Graph(self.graph.store, self.graph.features)
        trainer.loader = khop.Loader(
            WeightedSeeds(graph),
            torch.arange(38),
            8,
            shuffle=True,
            seed=1,
            columns=["x"],
            seed_columns=["y"],
        )
        return trainer


def losses(folder: Path) -> list[float]:
    lines = (folder / "steps.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(record["epoch"], record["step"]) for record in records] == STEPS
    return [record["loss"] for record in records]


@covered
def train(rank: int, device: torch.device, out: str, weighted: bool) -> None:
    kind = Weighted if weighted else SmallRun
    run = kind(Path(out), graph=one_type(torch.float64), dropout=0.0)
    run.with_(epochs=2, precision="float64").trainer().fit()


def test_one_process_and_two_ranks_have_the_same_losses(tmp_path: Path, ranks: StartedRanks) -> None:
    """To 1e-12 in float64: the ranks' sums are added in another order."""
    for name, procs, weighted in (("one", 1, True), ("two", 2, True), ("plain", 1, False)):
        ranks.launch(train, procs, (str(tmp_path / name), weighted))
    one, two, plain = (losses(tmp_path / name) for name in ("one", "two", "plain"))
    assert one == pytest.approx(two, rel=1e-12)
    assert all(abs(weighted - even) > 1e-4 for weighted, even in zip(one, plain, strict=True))


def test_the_first_loss_is_the_weighted_mean_over_its_seeds(tmp_path: Path) -> None:
    run = Weighted(tmp_path, graph=one_type(torch.float64), dropout=0.0).with_(epochs=2, precision="float64")
    trainer = run.trainer()
    (first, *_) = trainer.loader.epoch(0)
    with torch.no_grad():
        each = trainer.task.losses(trainer.model(first), first)
    weights = 0.25 + (first.seeds % 7).double()
    trainer.fit()
    assert losses(tmp_path)[0] == pytest.approx(float((each * weights).sum() / weights.sum()), rel=1e-12)
