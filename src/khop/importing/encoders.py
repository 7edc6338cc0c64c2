"""Encoders of the kinds of columns, from their specs and from stored states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from khop.importing.column_spec import (
    Boolean,
    Category,
    Column,
    Date,
    Multi,
    Number,
    Relation,
    Text,
    Vector,
    Words,
)
from khop.importing.encode_category import CategoryEncoder, CategoryFitter, RelationEncoder, RelationFitter
from khop.importing.encode_date import DateEncoder, DateFitter
from khop.importing.encode_number import (
    BooleanEncoder,
    NumberEncoder,
    NumberFitter,
    VectorEncoder,
    as_lists,
)
from khop.importing.encode_text import TextEncoder, TextFitter
from khop.importing.encode_words import Bags, WordsEncoder, WordsFitter
from khop.importing.encoder import Encoder, Fitter, Where
from khop.importing.packages import pc


class _Fixed:
    """A fitter of an encoder without statistics."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def add(self, array: Any, where: Where) -> None:
        """Ignore the values."""

    def encoder(self) -> Encoder:
        """Return the encoder."""
        return self._encoder


class VectorFitter:
    """The length of the first vector."""

    def __init__(self, spec: Vector, key: str) -> None:
        self._spec, self._key, self._width = spec, key, 0

    def add(self, array: Any, where: Where) -> None:
        """Take the length of the first vector."""
        if not self._width and len(array) > array.null_count:
            lists = as_lists(array, self._spec.separator, self._key, where)
            self._width = pc.max(pc.list_value_length(lists.drop_null().slice(0, 1))).as_py()

    def encoder(self) -> Encoder:
        """Return the encoder; ValueError if no row has numbers."""
        if not self._width:
            raise ValueError(f"{self._key}: no training row has a number; remove the column")
        return VectorEncoder(self._key, self._spec.separator, self._spec.missing, self._width)


def fitter(spec: Column, key: str) -> Fitter:
    """Return an empty fitter of a column; `key` names it in errors."""
    match spec:
        case Number():
            return NumberFitter(key, spec.scale, spec.missing, spec.flag)
        case Category():
            return CategoryFitter(key, "none", None, spec.most, spec.min_count, spec.encoding)
        case Multi():
            return CategoryFitter(key, "lists", spec.separator, spec.limit, spec.min_count)
        case Text():
            return TextFitter(key, spec.words, spec.width, spec.bigrams)
        case Words():
            bags = Bags(key, spec.words, spec.separator, spec.bigrams)
            return WordsFitter(bags, spec.values, spec.most)
        case Date():
            return DateFitter(key, spec.parts, spec.unit, spec.timezone, spec.format, spec.missing)
        case Vector():
            return VectorFitter(spec, key)
        case Boolean():
            return _Fixed(BooleanEncoder(key, spec.true, spec.false))
        case Relation():
            return RelationFitter(key)
    raise AssertionError(spec)


def _plain(made: Callable[..., Encoder]) -> Callable[[Mapping[str, Any]], Encoder]:
    def of_state(state: Mapping[str, Any]) -> Encoder:
        return made(**{name: tuple(v) if isinstance(v, list) else v for name, v in state.items()})

    return of_state


_OF_STATE: Mapping[str, Callable[[Mapping[str, Any]], Encoder]] = {
    "BooleanEncoder": _plain(BooleanEncoder),
    "CategoryEncoder": _plain(CategoryEncoder),
    "DateEncoder": _plain(DateEncoder),
    "NumberEncoder": _plain(NumberEncoder),
    "RelationEncoder": _plain(RelationEncoder),
    "TextEncoder": TextEncoder.of_state,
    "VectorEncoder": _plain(VectorEncoder),
    "WordsEncoder": WordsEncoder.of_state,
}


def stored(encoder: Encoder) -> dict[str, Any]:
    """Return an encoder as JSON values."""
    return {"encoder": type(encoder).__name__, **encoder.state()}


def restored(state: Mapping[str, Any]) -> Encoder:
    """Return the encoder of stored JSON values."""
    values = {name: value for name, value in state.items() if name != "encoder"}
    return _OF_STATE[state["encoder"]](values)
