from __future__ import annotations

from typing import get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from khop.importing.column_spec import AnyColumn, Category, Kind, Number

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
