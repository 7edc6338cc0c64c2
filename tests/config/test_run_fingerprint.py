"""Settings that decide the course of a run, and those that do not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from khop.config.run_fingerprint import facts_of
from support.typed_runs import prepared, write_tagged_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagged_shop(tmp_path_factory.mktemp("graphs") / "shop")


def test_more_epochs_are_another_run_where_the_learning_rate_falls_to_the_last(shop: Path) -> None:
    def facts(**training: object) -> Mapping[str, str]:
        run = prepared(shop, model={"hidden": 8, "embedding": 0, "encoder": "linear"}, training=training)
        return facts_of(run.config, run.fingerprint)

    assert facts(epochs=3) == facts(epochs=4)
    falling = facts(epochs=3, schedule="linear")
    assert falling["training.epochs"] == "3"
    assert falling != facts(epochs=4, schedule="linear")
