"""JSON Schema of a run file, with which editors complete and check run.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from khop.config.fields import field_at
from khop.config.kinds import FAMILIES
from khop.config.run_type import run_type

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OF_OTHERS = ":"  # is in the name of a component of another package, whose options only that package knows
_SIZE = {"type": "string", "pattern": r"^\s*[0-9.]+\s*([kKMGTP]i?)?B?\s*$"}

Schema = dict[str, Any]


def run_schema() -> Schema:
    """Return the schema, with the options of all components of khop."""
    schema = _of_run({})
    for path, (family, _) in FAMILIES.items():
        tables = [_at(_of_run(_with_kind(path, kind)), path) for kind in family.kinds()]
        _at(schema, path).update(_joined(tables, family.kinds()))
    return {"$schema": DIALECT, "title": "A run of khop", **schema}


def _of_run(values: Mapping[str, object]) -> Schema:
    """Return the schema of a run with these values, without references to other schemas."""
    written = run_type(values).model_json_schema()
    return _plain(written, written.get("$defs", {}), "")


def _with_kind(path: str, kind: str) -> dict[str, object]:
    values: dict[str, object] = {"kind": kind}
    for name in reversed(path.split(".")):
        values = {name: values}
    return values


def _at(schema: Schema, path: str) -> Schema:
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def _plain(schema: Mapping[str, Any], defs: Mapping[str, Any], path: str) -> Schema:
    """Put definitions in place, and leave out what TOML has no word for, such as null."""
    if "$ref" in schema:
        own = {name: value for name, value in schema.items() if name not in ("$ref", "default")}
        return _plain(defs[schema["$ref"].rpartition("/")[2]], defs, path) | own
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "$defs", "title")}
    if "default" in rest and rest["default"] is None:
        del rest["default"]
    if len(choices) == 1:
        return _plain(choices[0], defs, path) | rest
    if choices:
        rest["anyOf"] = [_plain(each, defs, path) for each in choices]
    if "properties" in rest:
        prefix = f"{path}." if path else ""
        rest["properties"] = {
            name: _plain(each, defs, prefix + name) for name, each in rest["properties"].items()
        }
    return _field(rest, path)


def _field(schema: Schema, path: str) -> Schema:
    """Add the allowed values of a field to its description; sizes may be text."""
    entry = field_at(path)
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if entry is None:
        return schema
    schema["description"] = f"{entry.description}; {entry.allowed}"
    if entry.allowed.startswith("bytes"):
        kept: Schema = {name: schema[name] for name in ("description", "default") if name in schema}
        return {"anyOf": [{"type": "integer", "minimum": 0}, _SIZE], **kept}
    return schema


def _joined(tables: list[Schema], kinds: tuple[str, ...]) -> Schema:
    """Join the tables of all kinds of a component: the options of each, others only for other packages."""
    properties: Schema = {}
    for table in tables:
        for name, found in table["properties"].items():
            before = properties.setdefault(name, found)
            if {**before, "default": None} != {**found, "default": None} and name != "kind":
                same = {"description": found.get("description", "")}
                properties[name] = {"anyOf": [before, found], **same}
    kind = {"type": "string", "anyOf": [{"enum": list(kinds)}, {"pattern": _OF_OTHERS}]}
    kept = {name: value for name, value in properties["kind"].items() if name in ("description", "default")}
    properties["kind"] = kind | kept
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": True,
        "if": {"properties": {"kind": {"pattern": _OF_OTHERS}}, "required": ["kind"]},
        "else": {"properties": dict.fromkeys(properties, True), "additionalProperties": False},
    }
