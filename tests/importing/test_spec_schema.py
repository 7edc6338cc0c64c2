"""The JSON Schema of a spec accepts specs that khop accepts, and refuses those that a schema can know to be wrong."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from khop.importing.column_spec import Column, Relation
from khop.importing.read_spec import checked_spec
from khop.importing.spec import NodeSpec, Spec
from khop.importing.spec_schema import spec_schema

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "import").glob("*.toml"))


_OF_NODES = [kind for kind in Column.__subclasses__() if kind is not Relation]


@pytest.fixture(scope="module")
def validator() -> Any:  # noqa: ANN401
    schema = json.loads(json.dumps(spec_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def spec(columns: object = None, **node: object) -> dict[str, Any]:
    given = {} if columns is None else {"columns": columns}
    return {"nodes": {"item": {"files": ["items.csv"], "id": "id", **given, **node}}}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_valid(validator: Any, path: Path) -> None:  # noqa: ANN401
    # Editors hand times of TOML to a schema as text.
    validator.validate(json.loads(json.dumps(tomllib.loads(path.read_text()), default=str)))


@pytest.mark.parametrize(
    "right",
    [
        *({"x": kind.model_fields["kind"].annotation.__args__[0]} for kind in _OF_NODES),
        {"x": {"kind": "number", "missing": "zero", "column": "Unit Price"}},
        {"x": {"kind": "words", "values": "one"}},
    ],
    ids=str,
)
def test_columns_have_a_kind_or_a_table(validator: Any, right: dict[str, Any]) -> None:  # noqa: ANN401
    validator.validate(spec(right))
    checked_spec(spec(right), "spec.toml")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"nodes": {}},
        spec() | {"node": {}},
        spec(idd="id"),
        spec(files="items.csv"),
        spec({"x": "numbr"}),
        spec({"x": {"kind": "number", "missing": "median"}}),
        spec({"x": {"kind": "number", "words": 3}}),
        spec({"x": {"kind": "category", "limit": 0}}),
        spec(label={"kind": "class"}),
        spec(split={"ratio": [0.5, 0.5]}),
        spec() | {"edges": {"item like item": {"files": ["a.csv"], "source": "a"}}},
    ],
    ids=str,
)
def test_wrong_specs_are_refused_by_the_schema_and_by_khop(validator: Any, wrong: dict[str, Any]) -> None:  # noqa: ANN401
    assert not validator.is_valid(wrong)
    with pytest.raises(ValueError, match=r"\w"):
        checked_spec(wrong, "spec.toml")


def test_a_label_may_be_a_name_or_a_table(validator: Any) -> None:  # noqa: ANN401
    validator.validate(spec(label="kind"))
    validator.validate(spec(label={"column": "kind", "kind": "multi", "separator": "|"}))


def test_it_has_the_descriptions_of_the_fields_and_no_null() -> None:
    schema = spec_schema()
    node = schema["$defs"]["NodeSpec"]["properties"]
    assert set(schema["properties"]) == set(Spec.model_fields)
    assert set(node) == set(NodeSpec.model_fields) - {"rows"}
    assert node["id"]["description"].startswith("Column with the unique id")
    assert '"null"' not in json.dumps(schema)
    assert '"default": null' not in json.dumps(schema)
