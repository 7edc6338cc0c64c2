"""Optimizers of runs: by name with options, any class of torch.optim, and one of another package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.run.build import Run
from khop.training.step_clock import Unwatched
from support.typed_runs import prepared, write_tagged_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagged_shop(tmp_path_factory.mktemp("graphs") / "shop")


def run_of(shop: Path, **optimizer: object) -> Run:
    return prepared(shop, model={"hidden": 8, "embedding": 4}, optimizer=optimizer)


@pytest.mark.core(3)
@pytest.mark.parametrize(
    ("table", "kind", "setting"),
    [
        ({}, torch.optim.Adam, ("betas", (0.9, 0.999))),
        ({"kind": "adamw", "beta2": 0.99}, torch.optim.AdamW, ("betas", (0.9, 0.99))),
        ({"kind": "nadam", "beta1": 0.5}, torch.optim.NAdam, ("betas", (0.5, 0.999))),
        ({"kind": "radam", "eps": 1e-6}, torch.optim.RAdam, ("eps", 1e-6)),
        ({"kind": "sgd", "momentum": 0.9}, torch.optim.SGD, ("momentum", 0.9)),
        ({"kind": "rmsprop", "alpha": 0.5}, torch.optim.RMSprop, ("alpha", 0.5)),
        ({"kind": "adagrad", "lr_decay": 0.1}, torch.optim.Adagrad, ("lr_decay", 0.1)),
    ],
    ids=str,
)
def test_a_name_and_its_options_make_the_optimizer(
    shop: Path, tmp_path: Path, table: dict[str, object], kind: type, setting: tuple[str, object]
) -> None:
    trainer = run_of(shop, **table).trainer(tmp_path, Unwatched())
    weights = trainer.optimizer.parts[0]
    assert type(weights) is kind
    assert weights.param_groups[0][setting[0]] == setting[1]


def test_options_that_do_not_fit_are_named(shop: Path) -> None:
    with pytest.raises(ValueError, match=r"optimizer.momentum: no such field"):
        run_of(shop, momentum=0.9)
    with pytest.raises(ValueError, match=r"optimizer.kind is 'lion': must be one of adam, adamw"):
        run_of(shop, kind="lion")
    with pytest.raises(ValueError, match=r"optimizer.beta1 is 1.0: must be"):
        run_of(shop, kind="adamw", beta1=1.0)
