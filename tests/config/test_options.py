"""Tables composed from declared options: fields, defaults and helps are those of the declaration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from khop.config.fields import run_fields
from khop.config.options import composed, options_of
from khop.config.section import Section


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
    (entry,) = (each for each in run_fields(made) if each.path == "heads")
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
    with pytest.raises(ValueError, match="neither a dataclass nor a pydantic model"):
        composed(Table, int)
