"""Settings that cannot train are refused by name and value."""

from __future__ import annotations

import pytest

from khop.training.settings import TrainerSettings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs 0: must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every 0: must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate 0.0: must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate nan: must be positive"),
        ({"weight_decay": -1.0}, "weight_decay -1.0: must not be negative"),
        ({"patience": 0}, "patience 0: must be at least 1, or None"),
        (
            {"precision": "float16"},
            r"precision 'float16': must be one of float32, tf32, float64, bfloat16",
        ),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerSettings(**({"epochs": 1} | settings))  # type: ignore[arg-type]


def test_right_settings_are_kept() -> None:
    settings = TrainerSettings(3, learning_rate=0.1, patience=2, precision="bfloat16")
    assert (settings.epochs, settings.patience, settings.evaluate_every) == (3, 2, 1)
