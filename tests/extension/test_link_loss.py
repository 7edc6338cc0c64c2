"""A loss of links written outside khop, named by a run file with its option."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import khop
from khop.components import ANY_NAMED
from khop.models.link_predictor import LinkScores
from khop.run.build import prepare
from khop.run.read import RawRun
from khop.schema import EdgeType
from support.small_link_folders import BUYS, write_shop


@dataclass(frozen=True)
class SquaredHinge(khop.LinkLoss):
    """The square of what a link's score lacks to be `gap` above that of a negative."""

    gap: float = 1.0
    """Difference of scores from which there is no loss"""

    def of_scores(self, edge_type: EdgeType, scores: LinkScores, labels: Tensor | None) -> Tensor:
        assert scores.negatives is not None
        return F.relu(self.gap - scores.pairs[:, None] + scores.negatives).square().mean(1)


def raw(folder: Path, **loss: object) -> RawRun:
    values = {
        "graph": str(write_shop(folder / "shop")),
        "task": {"kind": "link-prediction", "target": "user buys item"},
        "links": {"eval_negatives": 4, "loss": {"kind": f"{__name__}:SquaredHinge", **loss}},
        "sampler": {"fanouts": [3]},
        "model": {"hidden": 8, "embedding": 8},
        "training": {"batch_size": 64, "epochs": 1},
    }
    return RawRun(values, "run.toml", permission=ANY_NAMED)


def test_a_run_names_it_with_its_option(tmp_path: Path) -> None:
    run = prepare(raw(tmp_path, gap=0.5), tmp_path / "cache")
    assert run.task == khop.LinkPrediction(SquaredHinge(0.5))
    batch = run.loader().batch(0, 0)
    assert batch.links[BUYS].negatives is not None  # triplets, as the loss takes them
    output = run.model(batch)
    missing = (0.5 - output[BUYS].pairs[:, None] + output[BUYS].negatives).clamp(min=0)
    torch.testing.assert_close(run.task.losses(output, batch), missing.square().mean(1))


def test_an_option_that_it_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"links\.loss\.margin: no such field"):
        prepare(raw(tmp_path, margin=0.5), tmp_path / "cache")


def test_a_run_folder_imports_it_with_permission_alone(tmp_path: Path) -> None:
    given = raw(tmp_path)
    with pytest.raises(
        ValueError, match=r"links\.loss\.kind is .*SquaredHinge.*is not imported without permission"
    ):
        prepare(RawRun(given.values, given.source), tmp_path / "cache")
