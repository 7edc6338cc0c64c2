"""The class of a run has the tables of the components that its values name.

The flat list of fields is what options, errors and the documentation are made from.

Tables composed from declared options: fields, defaults and helps are those of the declaration.

The JSON Schema of a run file accepts what khop accepts, and refuses what a schema can know to be wrong.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

import khop
from khop.components import ANY_NAMED, FAMILIES
from khop.run.check import checked, to_toml
from khop.run.fields import field_at, run_fields
from khop.run.read import RawRun, preset, preset_names
from khop.run.run_type import (
    built,
    component_of,
    composed,
    fields_of,
    options_of,
    run_schema,
    run_type,
    sections,
    value_at,
)
from khop.run.tables import ModelTable, SamplerTable, Section
from khop.run.values import RunConfig


def test_without_kinds_a_run_has_khops_defaults() -> None:
    made = run_type({})
    run = made(graph="g")
    assert isinstance(run, RunConfig)
    assert isinstance(run.model, ModelTable)
    assert component_of(run, "model").declared is khop.models.SAGE
    assert run_type({"model": {"kind": "sage"}}) is made


def test_kinds_change_their_tables_alone() -> None:
    values = {"model": {"kind": "rgcn"}, "sampler": {"rule": {"kind": "weighted"}}}
    run = run_type(values)(graph="g", model={"kind": "rgcn", "bases": 3})
    assert component_of(run, "model").declared is khop.models.RGCN
    assert isinstance(run.sampler, SamplerTable)
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
            f"model.kind is '{__name__}:Missing': {__name__} has no 'Missing'; name a class or object in "
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


def test_every_field_has_an_option_of_its_own_and_a_description() -> None:
    options = [entry.option for entry in run_fields()]
    assert len(set(options)) == len(options)
    assert all(entry.description and entry.allowed for entry in run_fields())


def test_every_leaf_of_every_table_is_listed_once() -> None:
    leaves = [f"{name}.{key}".lstrip(".") for name, table in sections().items() for key in table.model_fields]
    assert sorted(entry.path for entry in run_fields()) == sorted(set(leaves) - set(sections()))


def test_options_carry_the_bare_name_unless_their_table_shares_it() -> None:
    names = {entry.path: entry.option for entry in run_fields()}
    assert names["training.epochs"] == "--epochs"
    assert names["compute_threads"] == "--compute-threads"
    assert (names["model.kind"], names["task.kind"]) == ("--model", "--task")
    assert (names["sampler.fanouts"], names["evaluation.fanouts"]) == ("--fanouts", "--evaluation-fanouts")
    assert field_at("training.epoch") is None


def test_a_default_in_the_list_is_what_an_empty_run_has() -> None:
    run = checked(RawRun({"graph": "g"}, "run.toml"))
    free = [entry for entry in run_fields() if not entry.required]
    differ = [entry.path for entry in free if value_at(run, entry.path) != entry.default]
    assert differ == ["device"]  # "auto" is replaced by the device of this machine


class Table(Section):
    """A table with one field that all components share."""

    kind: str = "sage"
    """Kind"""


@dataclass(frozen=True)
class Declared:
    """Options as a dataclass."""

    heads: int
    """Attention heads"""
    mode: Literal["sum", "mean"] = "sum"
    widths: tuple[int, ...] = ()
    slope: float = field(default=0.2, metadata={"help": "Slope below 0"})

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise ValueError("give one head or more")


class Model(BaseModel):
    """Options as a pydantic model."""

    heads: int = Field(4, ge=1, description="Attention heads")


def test_a_dataclass_declares_fields_of_the_table() -> None:
    made = composed(Table, Declared)
    assert composed(Table, Declared) is made
    assert made.model_fields["heads"].description == "Attention heads"
    assert made.model_fields["slope"].description == "Slope below 0"
    table = made(heads=2, widths=[3, 4])
    assert table.kind == "sage"
    assert options_of(table, Declared) == Declared(2, "sum", (3, 4), 0.2)
    for wrong in ({}, {"heads": "2"}, {"heads": 0}, {"heads": 1, "mode": "max"}, {"heads": 1, "other": 1}):
        with pytest.raises(ValidationError):
            made(**wrong)


def test_a_pydantic_model_declares_them_too() -> None:
    made = composed(Table, Model)
    assert options_of(made(), Model) == Model(heads=4)
    with pytest.raises(ValidationError):
        made(heads=0)


def test_a_declared_table_is_taken_as_it_is() -> None:
    assert composed(Section, Table) is Table
    table = Table()
    assert options_of(table, Table) is table


def test_limits_of_a_type_that_may_be_none_are_kept() -> None:
    @dataclass(frozen=True)
    class Limited:
        heads: Annotated[int, Field(ge=1)] | None = None
        """Heads"""

    made = composed(Table, Limited)
    (entry,) = (each for each in fields_of(made) if each.path == "heads")
    assert (entry.kind, entry.allowed, entry.default) == (int, "a whole number of at least 1", None)
    assert options_of(made(heads=2), Limited) == Limited(2)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        made(heads=0)


def test_a_dataclass_of_pydantic_declares_its_fields() -> None:
    @pydantic_dataclass(frozen=True)
    class Declared:
        heads: int = Field(4, ge=1, description="Attention heads")
        scale: float = field(default=0.5, metadata={"help": "Scale"})

    made = composed(Table, Declared)
    assert made.model_fields["heads"].description == "Attention heads"
    assert made.model_fields["scale"].description == "Scale"
    assert options_of(made(scale=2.0), Declared) == Declared(4, 2.0)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        made(heads=0)


def test_an_option_named_kind_is_refused() -> None:
    @dataclass
    class Clash:
        kind: str = "a"

    with pytest.raises(ValueError, match=r"^Clash\.kind: kind names the component itself; rename"):
        composed(Table, Clash)


def test_options_that_no_file_can_give_are_refused() -> None:
    @dataclass
    class Unreadable:
        graph: Section

    with pytest.raises(ValueError, match=r"Unreadable\.graph is of type .*: options are str, int"):
        composed(Table, Unreadable)
    with pytest.raises(ValueError, match="must be a dataclass or a pydantic model"):
        composed(Table, int)


@pytest.fixture(scope="module")
def validator() -> Any:  # noqa: ANN401
    schema = json.loads(json.dumps(run_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_presets_and_complete_runs_are_valid(validator: Any) -> None:  # noqa: ANN401
    for name in preset_names():
        raw = preset(name)
        validator.validate(dict(raw.values))
        validator.validate(tomllib.loads(to_toml(checked(raw))))


@pytest.mark.core(8)
@pytest.mark.parametrize(("path", "kind"), [(p, k) for p, f in FAMILIES.items() for k in f.kinds()])
def test_each_component_may_have_its_options(validator: Any, path: str, kind: str) -> None:  # noqa: ANN401
    values: dict[str, Any] = {"kind": kind}
    for name in reversed(path.split(".")):
        values = {name: values}
    fields = fields_of(run_type(values))
    run: dict[str, Any] = {"graph": "shop", **values}
    for entry in fields:
        if entry.path.startswith(f"{path}.") and entry.path.count(".") == path.count(".") + 1:
            table = run
            for name in path.split("."):
                table = table[name]
            if entry.default is not None and not entry.path.endswith(".kind"):
                table[entry.path.rpartition(".")[2]] = json.loads(json.dumps(entry.default))
    validator.validate(run)


@pytest.mark.core(4)
@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"graph": 3},
        {"graph": "g", "epochs": 3},
        {"graph": "g", "training": {"epochs": "ten"}},
        {"graph": "g", "training": {"epochs": 0}},
        {"graph": "g", "training": {"epoch": 3}},
        {"graph": "g", "model": {"hiden": 3}},
        {"graph": "g", "model": {"kind": "sagee"}},
        {"graph": "g", "sampler": {"fanouts": ["a"]}},
        {"graph": "g", "gpu": {"topology": "disk"}},
        {"graph": "g", "prefetch_bytes": "many"},
    ],
    ids=str,
)
def test_wrong_runs_are_refused_by_the_schema_and_by_khop(validator: Any, wrong: dict[str, Any]) -> None:  # noqa: ANN401
    assert not validator.is_valid(wrong)
    with pytest.raises(ValueError, match=r"\w"):
        checked(RawRun(wrong, "run.toml"))


@pytest.mark.parametrize(
    "right",
    [
        {"graph": "g", "prefetch_bytes": "2GiB", "gpu": {"cache": "4GB"}},
        {"graph": "g", "prefetch_bytes": 500},
        {"graph": "g", "sampler": {"fanouts": [5, {"user buys item": 5, "*": 2}]}},
        {"graph": "g", "model": {"kind": "gat", "heads": 2}},
    ],
    ids=str,
)
def test_right_runs_are_accepted_by_both(validator: Any, right: dict[str, Any]) -> None:  # noqa: ANN401
    validator.validate(right)
    checked(RawRun(right, "run.toml"))


def test_options_of_components_of_others_are_left_to_them(validator: Any) -> None:  # noqa: ANN401
    validator.validate({"graph": "g", "model": {"kind": "package.module:Net", "width": 3}})


def test_each_field_has_a_description_for_the_editor() -> None:
    schema = run_schema()
    for entry in run_fields():
        found = schema
        for name in entry.path.split("."):
            found = found["properties"][name]
        assert entry.description.partition(":")[0][:20] in found["description"], entry.path
