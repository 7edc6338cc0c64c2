"""The JSON Schema of a run file accepts what khop accepts, and refuses what a schema can know to be wrong."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import jsonschema
import pytest

from khop.config.fields import run_fields
from khop.config.kinds import FAMILIES
from khop.config.presets import preset, preset_names
from khop.config.read import RawRun, checked, to_toml
from khop.config.run_schema import run_schema
from khop.config.run_type import run_type


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


@pytest.mark.parametrize(("path", "kind"), [(p, k) for p, (f, _) in FAMILIES.items() for k in f.kinds()])
def test_each_component_may_have_its_options(validator: Any, path: str, kind: str) -> None:  # noqa: ANN401
    values: dict[str, Any] = {"kind": kind}
    for name in reversed(path.split(".")):
        values = {name: values}
    fields = run_fields(run_type(values))
    run: dict[str, Any] = {"graph": "shop", **values}
    for entry in fields:
        if entry.path.startswith(f"{path}.") and entry.path.count(".") == path.count(".") + 1:
            table = run
            for name in path.split("."):
                table = table[name]
            if entry.default is not None and not entry.path.endswith(".kind"):
                table[entry.path.rpartition(".")[2]] = json.loads(json.dumps(entry.default))
    validator.validate(run)


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
