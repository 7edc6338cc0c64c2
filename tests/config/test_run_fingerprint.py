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


def test_options_of_sums_that_earlier_versions_lack_are_no_facts_at_their_defaults(shop: Path) -> None:
    def names(**rule: object) -> set[str]:
        sampler = {"fanouts": [3, 2], "rule": rule}
        run = prepared(shop, model={"hidden": 8, "embedding": 0, "encoder": "linear"}, sampler=sampler)
        facts = facts_of(run.config, run.fingerprint)
        return {name.removeprefix("sampler.rule.") for name in facts if name.startswith("sampler.rule.")}

    assert names(kind="sum") == {"kind", "column", "replacement"}
    assert names(kind="sum", inner="labor", kappa=2) == {"kind", "column", "replacement", "inner", "kappa"}
    assert names(kind="labor") == {"kind", "layer_dependent", "kappa"}  # as before
