"""Tables of components: options that exclude each other are refused together.

Kinds that khop names are components that can be loaded, each in its table.

Tables of a run: values are taken as they are, never converted, and limits are in bytes or counts.
"""

from __future__ import annotations

import pytest
from pydantic import ValidationError

import khop
from khop.components import FAMILIES, Count
from khop.run.run_type import composed
from khop.run.tables import Bytes, BytesOrNone, CacheText, Fanouts, RuleTable, SamplerTable, Section, Window


@pytest.mark.parametrize("beside", [{"weight": "price"}, {"replacement": True}], ids=str)
def test_a_rule_of_its_own_stands_alone(beside: dict[str, object]) -> None:
    rule = RuleTable(kind="uniform")
    assert SamplerTable(rule=rule).rule == rule
    with pytest.raises(ValidationError, match=r"sampler\.rule is 'uniform': it replaces sampler\.weight"):
        SamplerTable(rule=rule, **beside)  # type: ignore[arg-type]


def test_bases_are_of_rgcn_alone() -> None:
    assert khop.models.RGCN.Options(bases=2).bases == 2
    with pytest.raises(ValueError, match="bases is 2: only rgcn has bases"):
        khop.models.SAGE.Options(bases=2)


KINDS = [(path, kind) for path, family in FAMILIES.items() for kind in family.builtin]


@pytest.mark.core(13)
@pytest.mark.parametrize(("path", "kind"), KINDS)
def test_every_kind_is_loaded_with_options_for_its_table(path: str, kind: str) -> None:
    family = FAMILIES[path]
    component = family.load(kind)
    assert callable(component.build)
    assert issubclass(composed(Section, component.options), Section)
    assert family.default in ("", *family.builtin)


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
