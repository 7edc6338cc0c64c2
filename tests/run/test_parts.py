"""Objects of a run that every task builds alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from khop.run.parts import columns_of, device_cache_bytes, dtype_of, exclusion_of, in_flight_of, words_of
from khop.run.values import RunConfig
from khop.sampling.links.exclusion import Exclude, SpotTarget
from khop.schema import Schema
from support.typed_runs import prepared, write_tagged_shop


class Reading(nn.Module):
    """A model that names its columns."""

    input_columns = {"user": ("x", "age"), "item": ("x", "kind")}  # noqa: RUF012


def test_columns_are_those_that_the_model_names_and_the_graph_has(tmp_path: Path) -> None:
    run = prepared(write_tagged_shop(tmp_path / "shop"), model={"embedding": 0})
    assert columns_of(run.config, run.graph, nn.Linear(1, 1)) == ["x"]
    assert columns_of(run.config, run.graph, Reading()) == ["x", "kind"]
    assert device_cache_bytes(run.config, run.graph) == 0


def test_limits_and_dtype_are_those_of_the_run() -> None:
    run = RunConfig(graph="g", threads=3, prefetch=5, precision="float64")
    limits = in_flight_of(run)
    assert (limits.threads, limits.prefetch, limits.prefetch_bytes) == (3, 5, 1 << 30)
    assert dtype_of(run) == torch.float64
    assert words_of(("user", "buys", "item")) == "user buys item"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_are_float32_under_autocast(precision: str) -> None:
    assert dtype_of(RunConfig(graph="g", precision=precision)) == torch.float32


def test_spot_target_and_the_schema_decide_which_links_carry_no_message() -> None:
    buys, back, views = ("user", "buys", "item"), ("item", "bought-by", "user"), ("user", "views", "item")
    schema = Schema(("user", "item"), (buys, back, views), reverse_of={back: buys})
    plain, spotted = RunConfig(graph="g"), RunConfig(graph="g", links={"spot_target": 7})  # type: ignore[arg-type]
    kinds = {buys: Exclude.EDGE_AND_REVERSE, back: Exclude.EDGE_AND_REVERSE, views: Exclude.EDGE}
    for edge_type, kind in kinds.items():
        assert exclusion_of(plain, schema, [edge_type]) is kind
        assert exclusion_of(spotted, schema, [edge_type]) == SpotTarget(7, kind)
