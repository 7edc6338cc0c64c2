"""The class of a run has the tables of the components that its values name."""

from __future__ import annotations

import pytest

from khop.config.run_type import component_of, run_type
from khop.config.tables import RgcnTable, SageTable, SamplerTable
from khop.config.values import RunConfig


def test_without_kinds_a_run_has_khops_defaults() -> None:
    made = run_type({})
    run = made(graph="g")
    assert isinstance(run, RunConfig)
    assert isinstance(run.model, SageTable)
    assert component_of(run, "model").options is SageTable
    assert run_type({"model": {"kind": "sage"}}) is made


def test_kinds_change_their_tables_alone() -> None:
    values = {"model": {"kind": "rgcn"}, "sampler": {"rule": {"kind": "weighted"}}}
    run = run_type(values)(graph="g", model={"kind": "rgcn", "bases": 3})
    assert component_of(run, "model").options is RgcnTable
    assert component_of(run, "sampler").options is SamplerTable
    fields = type(run).model_fields["sampler"].annotation.model_fields  # type: ignore[union-attr]
    assert "rule" in fields


def test_a_kind_that_is_none_or_not_allowed_is_named_with_its_place() -> None:
    with pytest.raises(
        ValueError, match=r"^model\.kind is 'gnn': must be one of sage, rgcn, .* \(run\.toml\)$"
    ):
        run_type({"model": {"kind": "gnn"}}, where=lambda path: "run.toml")
    with pytest.raises(ValueError, match=r"^model\.kind is 'mine:Model': .* give --allow-code mine$"):
        run_type({"model": {"kind": "mine:Model"}})
