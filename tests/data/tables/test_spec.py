"""The JSON Schema of a spec accepts specs that khop accepts, and refuses those that a schema can know to be wrong."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from pydantic import TypeAdapter, ValidationError

from khop.data.tables.read_spec import checked_spec
from khop.data.tables.spec import (
    AnyColumn,
    Category,
    Column,
    Kind,
    NodeSpec,
    Number,
    Relation,
    Spec,
    Split,
    spec_schema,
)

NODES: dict[str, Any] = {"user": {"files": ["u.csv"], "id": "u"}, "item": {}}
BUYS: dict[str, Any] = {"files": ["e.csv"], "source": "u", "destination": "i"}
DAY = datetime(2020, 9, 20, tzinfo=UTC)


def spec(**values: Any) -> Spec:  # noqa: ANN401
    return checked_spec({"nodes": NODES, "edges": {"user buys item": BUYS}, **values}, "spec")


def test_edge_types_come_in_the_order_of_the_spec() -> None:
    several = {"files": ["t.csv"], "edges": [{"type": "item like item", "source": "a", "destination": "b"}]}
    found = spec(edges_from=[several])
    assert [edge_type for edge_type, _ in found.edge_types()] == [
        ("user", "buys", "item"),
        ("item", "like", "item"),
    ]


def test_the_split_of_a_type_is_its_own_or_that_of_all() -> None:
    own = {"files": ["i.csv"], "id": "i", "split": {"ratio": [0.5, 0.25, 0.25]}}
    found = spec(nodes={**NODES, "item": own}, splits={"ratio": [0.8, 0.1, 0.1]})
    assert found.node_split("item").ratio == (0.5, 0.25, 0.25)  # type: ignore[union-attr]
    assert found.node_split("user").ratio == (0.8, 0.1, 0.1)  # type: ignore[union-attr]
    assert spec().node_split("user") is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"edges": {"user buys items": BUYS}}, r"no node type 'items'; did you mean item\?"),
        ({"edges": {"user buys": BUYS}}, "give source type, relation and destination type"),
        ({"edges": {"user buys user": {**BUYS, "reverse": "buys"}}}, "'user buys user' is given twice"),
        ({"splits": {"time": {"val": DAY, "test": DAY}}}, "must be before test"),
        ({"splits": {"time": {"val": 2, "test": 3}}}, "time_unit is missing"),
        ({"splits": {"time": {"val": DAY, "test": 3}}}, "must both be times"),
        ({"splits": {}}, "give one of time, ratio and column"),
        (
            {"edges": {"user buys item": {**BUYS, "split": {"time": {"val": 2, "test": 3}}}}},
            "time_unit is missing",
        ),
        ({"splits": {"ratio": [0.5, 0.1, 0.1]}}, "three shares of 0 or more with sum 1"),
        ({"nodes": {**NODES, "item": {"id": "i"}}}, "files are missing"),
        ({"nodes": {**NODES, "item": {"files": ["i"], "id": "i", "unit": "s"}}}, "describe time = ..."),
        (
            {"nodes": {**NODES, "item": {"files": ["i"], "database": "d", "id": "i"}}},
            "files and database are given",
        ),
        ({"nodes": {**NODES, "item": {"database": "d", "id": "i"}}}, "needs table = ... and order_by"),
        ({"nodes": {}, "edges": {}}, "nodes"),
    ],
)
def test_contradictions_are_one_sentence(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        spec(**values)
    assert str(caught.value).endswith("(spec)")
    assert "\n" not in str(caught.value)


def test_ends_of_edges_that_are_not_in_the_spec_are_node_types_and_a_note_says_so() -> None:
    with pytest.warns(
        UserWarning, match=r"nodes.thing is not in the spec: its nodes are the ids of the edges"
    ):
        found = spec(edges={"user buys thing": BUYS})
    assert list(found.nodes) == ["user", "item", "thing"]
    assert not found.nodes["thing"].has_rows


def test_ids_are_in_the_column_id_by_default() -> None:
    assert spec(nodes={**NODES, "user": {"files": ["u.csv"]}}).nodes["user"].id == "id"


def test_labels_name_each_class_once() -> None:
    label = {"column": "y", "classes": ["a", "a"]}
    with pytest.raises(ValueError, match="a name is given twice"):
        spec(nodes={**NODES, "user": {**NODES["user"], "label": label}})


def test_a_cut_off_without_a_zone_is_taken_as_utc_and_a_note_says_so() -> None:
    cut_offs = {"val": DAY.date(), "test": (DAY + timedelta(days=1)).replace(tzinfo=None)}
    with pytest.warns(UserWarning, match="without a zone is taken as UTC"):
        split = Split.model_validate({"time": cut_offs})
    assert split.time is not None
    assert split.time.val == DAY


ADAPTER: TypeAdapter[object] = TypeAdapter(AnyColumn)


def test_a_kind_alone_has_the_defaults() -> None:
    assert ADAPTER.validate_python("number") == Number(kind="number")
    assert ADAPTER.validate_python({"kind": "category", "limit": 3}) == Category(kind="category", limit=3)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_takes_the_name_of_its_column(kind: str) -> None:
    column = ADAPTER.validate_python({"kind": kind, "column": "Unit Price"})
    assert column.column == "Unit Price"  # type: ignore[attr-defined]


def test_values_are_not_converted() -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python({"kind": "category", "limit": "3"})


EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "import").glob("*.toml"))


_OF_NODES = [kind for kind in Column.__subclasses__() if kind is not Relation]


@pytest.fixture(scope="module")
def validator() -> Any:  # noqa: ANN401
    schema = json.loads(json.dumps(spec_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def spec_schema_spec(columns: object = None, **node: object) -> dict[str, Any]:
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
    validator.validate(spec_schema_spec(right))
    checked_spec(spec_schema_spec(right), "spec.toml")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"nodes": {}},
        spec_schema_spec() | {"node": {}},
        spec_schema_spec(idd="id"),
        spec_schema_spec(files=7),
        spec_schema_spec(files=""),
        spec_schema_spec(files=[]),
        spec_schema_spec({"x": "numbr"}),
        spec_schema_spec({"x": {"kind": "number", "missing": "median"}}),
        spec_schema_spec({"x": {"kind": "number", "words": 3}}),
        spec_schema_spec({"x": {"kind": "category", "limit": 0}}),
        spec_schema_spec(label={"kind": "class"}),
        spec_schema_spec(split={"ratio": [0.5, 0.5]}),
        spec_schema_spec() | {"edges": {"item like item": {"files": ["a.csv"], "source": "a"}}},
    ],
    ids=str,
)
def test_wrong_specs_are_refused_by_the_schema_and_by_khop(validator: Any, wrong: dict[str, Any]) -> None:  # noqa: ANN401
    assert not validator.is_valid(wrong)
    with pytest.raises(ValueError, match=r"\w"):
        checked_spec(wrong, "spec.toml")


def test_a_label_may_be_a_name_or_a_table(validator: Any) -> None:  # noqa: ANN401
    validator.validate(spec_schema_spec(label="kind"))
    validator.validate(spec_schema_spec(label={"column": "kind", "kind": "multi", "separator": "|"}))


def test_files_may_be_a_path_or_a_list(validator: Any) -> None:  # noqa: ANN401
    one = spec_schema_spec(files="items.csv")
    validator.validate(one)
    assert checked_spec(one, "spec.toml") == checked_spec(spec_schema_spec(files=["items.csv"]), "spec.toml")
    split = {"train": "e.csv", "val": "v.csv", "test": "t.csv"}
    found = spec(edges={"user buys item": {**BUYS, "files": "*.csv"}}, splits=split)
    assert found.edges["user buys item"].split == found.splits


def test_it_has_the_descriptions_of_the_fields_and_no_null() -> None:
    schema = spec_schema()
    node = schema["$defs"]["NodeSpec"]["properties"]
    assert set(schema["properties"]) == set(Spec.model_fields)
    assert set(node) == set(NodeSpec.model_fields) - {"rows"}
    assert node["id"]["description"].startswith("Column with the unique id")
    assert '"null"' not in json.dumps(schema)
    assert '"default": null' not in json.dumps(schema)
