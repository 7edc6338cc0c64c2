"""Any optimizer of torch without closures trains, resumes exactly, and clips the norm of all gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from khop.training.optimizer_settings import OptimizerSettings, clip_gradients, square_sum
from khop.training.settings import TrainerSettings
from support.small_runs import Interrupting, SmallRun, without_seconds

KINDS = {
    "AdamW": {"betas": (0.8, 0.9)},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"centered": True},
    "Adagrad": {},
    "Adamax": {},
    "NAdam": {},
    "Rprop": {},
    "Adafactor": {},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_run_that_was_stopped_continues_with_the_same_losses(tmp_path: Path, name: str) -> None:
    settings = OptimizerSettings(getattr(torch.optim, name), KINDS[name], clip_norm=0.5)
    whole = SmallRun(tmp_path / "a").with_(optimizer=settings, epochs=2)
    expected = whole.trainer().fit().records
    stopped = SmallRun(tmp_path / "b", observer=Interrupting(1, 1)).with_(optimizer=settings, epochs=2)
    with pytest.raises(KeyboardInterrupt):
        stopped.trainer().fit()
    again = SmallRun(tmp_path / "b").with_(optimizer=settings, epochs=2).trainer()
    again.resume()
    assert without_seconds(again.fit().records) == without_seconds(expected)


def test_the_optimizer_is_torchs_with_the_settings_of_the_run() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2))]
    made = OptimizerSettings(torch.optim.AdamW, {"betas": (0.5, 0.6)}).over(parameters, 0.1, 0.2)
    assert isinstance(made, torch.optim.AdamW)
    (group,) = made.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.1, 0.2, (0.5, 0.6))


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        (torch.optim.LBFGS, {}, "optimizer LBFGS: evaluates the loss several times per step"),
        (torch.optim.SparseAdam, {}, "optimizer SparseAdam: weights have dense gradients"),
        (torch.nn.Linear, {}, "must be a class of torch.optim"),
        ("Adam", {}, "optimizer 'Adam': must be a class of torch.optim"),
        (
            torch.optim.SGD,
            {"options": {"lr": 1.0}},
            "optimizer option 'lr': set the learning rate of the run",
        ),
        (torch.optim.SGD, {"options": {"speed": 1.0}}, "optimizer SGD with options .*speed"),
        (torch.optim.SGD, {"options": {"momentum": -1.0}}, "optimizer SGD with options .*: Invalid momentum"),
        (torch.optim.SGD, {"clip_norm": 0}, "clip_norm 0: must be above 0"),
    ],
)
def test_what_cannot_train_is_named(kind: Any, given: dict[str, Any], sentence: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=sentence):
        OptimizerSettings(kind, **given)


def test_weight_decay_needs_an_optimizer_that_has_it() -> None:
    with pytest.raises(ValueError, match=r"weight_decay 0.1: Rprop has none; set it to 0"):
        TrainerSettings(epochs=1, weight_decay=0.1, optimizer=OptimizerSettings(torch.optim.Rprop))


def test_clipped_gradients_have_the_norm_of_the_limit_and_smaller_ones_stay() -> None:
    dense = torch.tensor([3.0, 0.0])
    at, values = torch.tensor([[1]]), torch.tensor([[4.0]])
    rows = torch.sparse_coo_tensor(at, values, (3, 1), is_coalesced=True, check_invariants=True)
    square = square_sum([dense, rows])
    assert square == 25.0
    clip_gradients([dense, rows], square, 6.0)
    assert dense.tolist() == [3.0, 0.0]
    clip_gradients([dense, rows], square, 2.5)
    assert dense.tolist() == [1.5, 0.0]
    assert rows.to_dense()[1].tolist() == [2.0]


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    device = torch.device("cuda", 0)


def test_weights_on_a_gpu_are_updated_by_one_kernel_unless_told_otherwise() -> None:
    on_gpu, on_cpu = [OnGpu([1.0])], [torch.ones(1)]
    assert OptimizerSettings()._fused(on_gpu) == {"fused": True}
    assert OptimizerSettings()._fused(on_cpu) == OptimizerSettings()._fused([]) == {}
    assert OptimizerSettings(options={"foreach": True})._fused(on_gpu) == {}
    assert OptimizerSettings(torch.optim.Adadelta)._fused(on_gpu) == {}
