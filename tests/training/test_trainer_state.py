"""The state of a run: what an epoch's end makes of it, and states that contradict themselves.

A model whose outputs are NaN has no score, and a run whose model becomes NaN keeps its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from khop.inference.full_ranking import full_ranking
from khop.inference.link_evaluation import mean_metrics
from khop.training.metrics import METRICS, NodeMetric
from khop.training.settings import CheckpointPolicy
from khop.training.step_clock import Unwatched
from khop.training.tasks import NodeClassification
from khop.training.trainer import Trainer
from khop.training.trainer_state import TrainerState, trainer_state_of
from support.small_runs import STEPS, SmallRun, without_seconds

FOLDER = Path("checkpoint")


@given(scores=st.lists(st.none() | st.sampled_from([0.1, 0.2, 0.3]), max_size=12))
def test_the_best_score_is_the_first_of_the_highest(scores: list[float | None]) -> None:
    state = TrainerState(loss_sum=3.0, seeds=4, step=2, traffic={"rows": 1.0})
    for score in scores:
        state = state if score is None else state.scored(score)
        state = state.ended()
    known = [(score, -epoch) for epoch, score in enumerate(scores) if score is not None]
    assert (state.epoch, state.step) == (len(scores), 0 if scores else 2)
    assert state.seeds == (0 if scores else 4)
    if known:
        best, epoch = max(known)
        assert (state.best_score, state.best_epoch) == (best, -epoch)
        assert state.stale == sum(score is not None for score in scores[-epoch + 1 :])
    else:
        assert (state.best_score, state.stale) == (None, 0)


SOUND = TrainerState(epoch=2, step=3, best_epoch=1, loader={"epoch": 2, "step": 3})


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 9},
        {"epoch": -1},
        {"best_epoch": 4},
        {"epoch": 3},
        {"seeds": 1.5},
        {"schedule": [1]},
        {"loader": {"epoch": 2, "step": 4}},
    ],
    ids=str,
)
def test_a_state_that_contradicts_itself_or_the_run_is_refused(changes: dict[str, object]) -> None:
    SOUND.check(5, 2, FOLDER)
    with pytest.raises(ValueError, match="contradict the rest of the state"):
        replace(SOUND, **changes).check(5, 9, FOLDER)  # type: ignore[arg-type]


def test_lost_records_of_epochs_are_named() -> None:
    with pytest.raises(ValueError, match=r"has 2 epochs, but metrics\.jsonl has 1"):
        SOUND.check(5, 1, FOLDER)


def test_a_saved_state_is_read_for_the_same_settings_alone() -> None:
    saved = asdict(replace(SOUND, facts={"seed": "1"}))
    assert trainer_state_of(saved, {"seed": "1"}, {"clip_norm": "1.0"}, FOLDER) == replace(
        SOUND, facts={"seed": "1"}, settings={"clip_norm": "1.0"}
    )
    # Of earlier versions.
    before = {name: value for name, value in saved.items() if name not in ("linear", "settings")}
    assert trainer_state_of(before, {"seed": "1"}, {"clip_norm": "1.0"}, FOLDER).linear == {}
    changed = {**saved, "settings": {"clip_norm": "1.0"}}
    with pytest.raises(ValueError, match=r"started with other settings: clip_norm was 1\.0 and is 2\.0\. "):
        trainer_state_of(changed, {"seed": "1"}, {"clip_norm": "2.0", "precision": "float32"}, FOLDER)
    with pytest.raises(ValueError, match="seed was 1 and is 2"):
        trainer_state_of(saved, {"seed": "2"}, {}, FOLDER)
    with pytest.raises(ValueError, match=r"it is not from a khop\.Trainer"):
        trainer_state_of({"epoch": 1}, {}, {}, FOLDER)


NAN = float("nan")


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("metric", METRICS)
def test_no_metric_of_nodes_scores_nan(metric: NodeMetric, classes: int) -> None:
    output, labels, nodes = torch.randn(9, classes), torch.arange(9) % classes, torch.arange(20, 29)
    task = NodeClassification("user", "y", metric)
    assert 0 <= task.score(output, labels, nodes) <= 1
    output[4, 1] = NAN
    output[7, 0] = NAN
    message = f"{metric}: the model's output for node 24 of 'user' is NaN, and so for 2 of 9 nodes"
    with pytest.raises(ValueError, match=message):
        task.score(output, labels, nodes)


@pytest.mark.parametrize("metric", ["roc-auc", "average-precision"])
@pytest.mark.parametrize("classes", [2, 3])
def test_metrics_of_an_order_refuse_infinity_too(metric: NodeMetric, classes: int) -> None:
    output = torch.zeros(6, classes)
    output[2] = float("inf")
    with pytest.raises(ValueError, match="which cannot be ranked"):
        NodeClassification("user", "y", metric).score(output, torch.arange(6) % classes, torch.arange(6))


@pytest.mark.parametrize("metric", ["mrr", "roc-auc", "average-precision", "hits@3", "recall@20", "ndcg@1"])
@pytest.mark.parametrize("is_negative", [False, True])
def test_no_metric_of_links_scores_nan(metric: str, is_negative: bool) -> None:
    links, negatives = torch.randn(4), torch.randn(4, 3)
    (negatives.view(-1) if is_negative else links)[2] = NAN
    with pytest.raises(ValueError, match="is nan, which cannot be ranked; look for NaN"):
        mean_metrics({("u", "buys", "i"): (links, negatives)}, [metric])


def test_no_full_ranking_of_nan() -> None:
    pairs = torch.tensor([[0, 1], [2, 3]])
    with pytest.raises(ValueError, match=r"full ranking: the score at .* is nan"):
        full_ranking(lambda queries: torch.full((queries.numel(), 5), NAN), pairs, pairs[:, :0], 5)


@dataclass
class Spoiling(Unwatched):
    """Makes one weight NaN after an update, as an update of endless gradients does."""

    epoch: int
    step: int
    models: list[nn.Module] = field(default_factory=list)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        if (epoch, step) == (self.epoch, self.step):
            with torch.no_grad():
                next(self.models[0].parameters()).view(-1)[0] = NAN


def spoiled(run: SmallRun, epoch: int, step: int) -> Trainer:
    observer = Spoiling(epoch, step)
    trainer = replace(run, observer=observer).trainer()
    observer.models.append(trainer.model)
    return trainer


def one_score() -> Mapping[str, float]:
    """An evaluation that does not look at the model."""
    return {"val": 0.5}


@pytest.mark.core(1)
@pytest.mark.parametrize("evaluate", [None, one_score])
def test_weights_that_become_nan_end_the_run_and_are_not_kept(
    tmp_path: Path, evaluate: Callable[[], Mapping[str, float]] | None
) -> None:
    run = SmallRun(tmp_path / "spoiled", evaluate=evaluate)
    wanted = replace(run, out=tmp_path / "sound").trainer().fit()
    place = f"epoch 1, step {STEPS}" if evaluate is None else "epoch 2, step 0"
    message = rf"the weights '.*' are not finite .* before {place}: lower .*last is intact"
    with pytest.raises(ValueError, match=message):
        spoiled(run, 1, STEPS - 1).fit()
    again = run.trainer()
    again.resume()
    assert without_seconds(again.fit().records) == without_seconds(wanted.records)


def test_a_checkpoint_within_an_epoch_holds_no_nan(tmp_path: Path) -> None:
    run = SmallRun(tmp_path).with_(checkpoints=CheckpointPolicy(steps=1))
    with pytest.raises(ValueError, match=r"(the loss is nan in|are not finite .*) epoch 1, step [23]"):
        spoiled(run, 1, 1).fit()
    again = run.trainer()
    again.resume()
    assert (
        (1, 0) <= (again.state.epoch, again.state.step) <= (1, 2)
    )  # one is skipped while another is written
    assert all(weights.isfinite().all() for weights in again.model.parameters())


@pytest.mark.long
def test_nan_from_finite_weights_is_reported_with_its_place(tmp_path: Path) -> None:
    task = NodeClassification("node", "y")

    def evaluate() -> Mapping[str, float]:
        return {"val": task.score(torch.full((2, 3), NAN), torch.tensor([0, 1]), torch.tensor([5, 6]))}

    with pytest.raises(ValueError, match=f"the evaluation at epoch 0, step {STEPS}: accuracy: .* node 5 of"):
        SmallRun(tmp_path, evaluate=evaluate).trainer().fit()
