"""The class of a run has the tables of the components that its values name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from khop.components import ANY_NAMED
from khop.config.read import RawRun, checked
from khop.config.run_type import built, component_of, run_type
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


class NoComponent:
    """A class that declares nothing."""


class Wide:
    """A component that builds its options, which are no model, sampler or rule."""

    @dataclass(frozen=True)
    class Options:
        """Settings."""

        wideness: int

    @staticmethod
    def build(options: Options, context: object) -> object:
        return options


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"kind": "no_such_package:Net"},
            "model.kind is 'no_such_package:Net': there is no module 'no_such_package'; install its package, "
            "or start khop in the folder that contains it (run.toml)",
        ),
        (
            {"kind": f"{__name__}:Missing"},
            f"model.kind is '{__name__}:Missing': {__name__} has no 'Missing'; name a class or object of "
            "that module (run.toml)",
        ),
        (
            {"kind": f"{__name__}:NoComponent"},
            f"model.kind is '{__name__}:NoComponent': a component is a class with build(options, context), "
            "and with Options, a dataclass or pydantic model; or it is a dataclass without both (run.toml)",
        ),
        (
            {"kind": f"{__name__}:Wide"},
            "model.wideness is missing: give --wideness, or model.wideness = ... in the file (run.toml)",
        ),
        (
            {"kind": f"{__name__}:Wide", "wideness": 3, "widenes": 2},
            "model.widenes: no such field; did you mean model.wideness? (run.toml)",
        ),
        (
            {"kind": f"{__name__}:Wide", "wideness": "much"},
            "model.wideness is 'much': must be a whole number (run.toml)",
        ),
    ],
)
def test_components_and_options_that_do_not_fit_are_one_sentence(
    table: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=r"run\.toml") as caught:
        checked(RawRun({"graph": "g", "model": table}, "run.toml", permission=ANY_NAMED))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("path", "missing"),
    [("model", "forward"), ("sampler", "sample"), ("sampler.rule", "plan"), ("task", "loader")],
)
def test_a_component_that_builds_something_else_is_one_sentence(path: str, missing: str) -> None:
    values: dict[str, object] = {"kind": f"{__name__}:Wide", "wideness": 3}
    for name in reversed(path.split(".")):
        values = {name: values}
    config = checked(RawRun({"graph": "g", **values}, "run.toml", permission=ANY_NAMED))
    with pytest.raises(
        ValueError, match=f"its build returned Options, which has no method {missing}; it must"
    ):
        built(config, path, None)
