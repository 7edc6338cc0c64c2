"""Tables of a run: values are taken as they are, never converted, and limits are in bytes or counts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from khop.config.section import Bytes, BytesOrNone, CacheText, Count, Fanouts, Section, Window


class Table(Section):
    """Fields of every kind."""

    count: Count = 1
    """A count"""
    bytes: Bytes = 1
    """Bytes"""
    cache: BytesOrNone = 0
    """Bytes or none"""
    share: CacheText = "0"
    """Bytes or a share"""
    fanouts: Fanouts = (2,)
    """Fanouts"""
    window: Window = None
    """A window"""


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"bytes": "2GiB"}, 2 << 30),
        ({"bytes": "500MB"}, 500_000_000),
        ({"cache": 0}, 0),
        ({"share": "20%"}, "20%"),
        ({"fanouts": [15, {"user buys item": 5, "*": -1}]}, (15, {"user buys item": 5, "*": -1})),
        ({"window": [86400, 0]}, (86400, 0)),
    ],
    ids=str,
)
def test_values_are_read(values: dict[str, object], found: object) -> None:
    (name,) = values
    assert getattr(Table(**values), name) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"count": "3"},
        {"count": 3.0},
        {"count": True},
        {"count": 0},
        {"count": 1 << 31},
        {"bytes": 0},
        {"bytes": "many"},
        {"cache": -1},
        {"share": "120%"},
        {"fanouts": [-2]},
        {"fanouts": [{"*": 1 << 31}]},
        {"window": [1]},
        {"other": 1},
    ],
    ids=str,
)
def test_other_values_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Table(**values)  # type: ignore[arg-type]


def test_the_text_below_a_field_is_its_help() -> None:
    assert Table.model_fields["count"].description == "A count"
