"""JSON Schema of an import spec, with which editors complete and check SPEC.toml."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import NullableSchema, WithDefaultSchema

from khop.importing.spec import Spec


class _ForToml(GenerateJsonSchema):
    """Schemas without null, for which TOML has no word."""

    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        """Return the schema of the values beside null."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        """Leave a default of null out."""
        found = super().default_schema(schema)
        return {name: value for name, value in found.items() if name != "default" or value is not None}


def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec, with all kinds of columns and their options."""
    schema = Spec.model_json_schema(schema_generator=_ForToml)
    return {"$schema": _ForToml.schema_dialect, **schema, "title": "Tables that khop import reads"}
