"""Recorded steps over links have losses and weights of single launches, with negatives and left-out edges."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
from khop.models.link_predictor import LinkPredictor
from khop.models.sage import SAGE
from khop.sampling.sampler import PlantedSeeds
from khop.training.recorded_steps import RecordedSteps
from khop.training.trainer import Trainer
from support.recorded_runs import SETTINGS, as_device, placed, too_small
from support.small_graphs import one_type

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu trains on a GPU")
SMALL, EDGE = one_type(torch.float64), ("node", "to", "node")


def _no_scores() -> Mapping[str, float]:
    return {"val": 0.5}


def fitted(graph: khop.Graph, loss: str, launches: str, out: Path, epochs: int = 1) -> Trainer:
    """Train on 7 links in steps of 4: two batches in an epoch, the second one smaller."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = LinkPredictor.of(SAGE.for_graph(SMALL.store, 8, 1, ["node"], outputs=4), [EDGE], "dot", 4)
    mode = khop.NegativeMode.BINARY if loss == "bce" else khop.NegativeMode.TRIPLET
    sampler = khop.LinkSampler(graph, [2], negatives=khop.UniformNegatives(2, mode), exclude="edge")
    links = khop.Links({EDGE: torch.stack(SMALL.edges[EDGE])[:, :7]})
    loader = khop.Loader(sampler, links, 4, shuffle=True, seed=1, columns=["x"])
    settings = replace(SETTINGS, launches=launches, epochs=epochs)
    trainer = Trainer(model, khop.LinkPrediction(loss), loader, _no_scores, settings, out)
    trainer.fit()
    return trainer


@pytest.mark.long
@pytest.mark.parametrize("loss", ["bce", pytest.param("bpr", marks=pytest.mark.long)])
def test_losses_and_weights_are_those_of_single_launches(tmp_path: Path, loss: str) -> None:
    wanted = fitted(khop.Graph(SMALL.store, SMALL.features), loss, "single", tmp_path / "cpu")
    with as_device():
        found = fitted(placed(SMALL), loss, "recorded", tmp_path / "recorded")
    assert isinstance(found._steps, RecordedSteps)
    assert found._steps.overflows < 2
    record, of_cpu = found._output.records[0], wanted._output.records[0]
    assert record["loss"] == pytest.approx(of_cpu["loss"], abs=1e-12)
    for a, b in zip(found.model.parameters(), wanted.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.long
def test_shapes_that_batches_of_links_exceed_are_enlarged(tmp_path: Path) -> None:
    """The batches of steps 0 and 1 are known before step 5."""
    wanted = fitted(khop.Graph(SMALL.store, SMALL.features), "bce", "single", tmp_path / "cpu", 4)
    with as_device(), too_small():
        found = fitted(placed(SMALL), "bce", "recorded", tmp_path / "recorded", 4)
    assert [record["overflows"] for record in found._output.records] == [2, 2, 1, 0]
    for a, b in zip(found.model.parameters(), wanted.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.long
def test_a_thread_draws_the_negatives_ahead_and_ends_with_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_by: list[threading.Thread] = []
    draw = khop.LinkSampler.planted

    def noting(sampler: khop.LinkSampler, seeds: khop.Seeds) -> PlantedSeeds:
        drawn_by.append(threading.current_thread())
        return draw(sampler, seeds)

    monkeypatch.setattr(khop.LinkSampler, "planted", noting)
    with as_device():
        found = fitted(placed(SMALL), "bce", "recorded", tmp_path)
    assert isinstance(found._steps, RecordedSteps)
    assert drawn_by[0] is threading.main_thread()  # to measure the shapes
    thread = drawn_by[-1]
    assert drawn_by[-2:] == [thread] * 2  # both batches
    assert thread is not threading.main_thread()
    assert not thread.is_alive()
