"""Labels of nodes: a class, several classes, or a number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from khop.importing.arrow_values import numpy_of
from khop.importing.encode_category import texts_of
from khop.importing.encode_number import as_float32, as_lists, scaled
from khop.importing.encoder import Where
from khop.importing.packages import pc
from khop.importing.read_spec import nearest
from khop.importing.spec import Label

UNKNOWN = -1
Others = Literal["refuse", "unknown"]
_LONG = 1000  # digits: longer numbers are sorted as text
UNKNOWN_BYTE = 255  # in the row of a node whose classes are unknown


@dataclass(frozen=True, eq=False)
class Labeled:
    """Labels of some rows."""

    values: npt.NDArray[Any]
    known: npt.NDArray[np.bool_]
    outside: int  # rows with a class that training lacks


@dataclass
class LabelReader:
    """A label column. Classes that the spec does not name are those of training, in ascending order."""

    spec: Label
    key: str
    others: Others = "refuse"  # classes that the spec does not name
    _seen: set[str] = field(default_factory=set)

    def add(self, array: Any, where: Where) -> None:
        """Collect the classes of training rows."""
        if self.spec.classes is None and self.spec.kind != "number":
            self._seen.update(
                text for text in self._texts(array, where).unique().to_pylist() if text is not None
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in their order."""
        return self.spec.classes if self.spec.classes is not None else tuple(sorted(self._seen, key=_natural))

    @property
    def is_closed(self) -> bool:
        """True if a class that the spec does not name is an error."""
        return self.spec.classes is not None and self.others == "refuse"

    def read(self, array: Any, where: Where) -> Labeled:
        """Return the labels of rows: int64, (rows, classes) uint8, or float32 with NaN for unknown."""
        if self.spec.kind == "number":
            numbers = scaled(array, "none", self.key, where)
            return Labeled(as_float32(numbers, self.key, where), ~np.isnan(numbers), 0)
        place = {name: number for number, name in enumerate(self.classes)}
        return (
            self._class(array, place, where)
            if self.spec.kind == "class"
            else self._multi(array, place, where)
        )

    def _class(self, array: Any, place: dict[str, int], where: Where) -> Labeled:
        encoded = self._texts(array, where).dictionary_encode()
        codes = numpy_of(pc.fill_null(encoded.indices, UNKNOWN)).astype(np.int64)
        names = encoded.dictionary.to_pylist()
        places = np.array([place.get(name, UNKNOWN) for name in names] + [UNKNOWN], np.int64)
        values = places[codes]
        outside = (codes != UNKNOWN) & (values == UNKNOWN)
        if outside.any() and self.is_closed:
            row = int(np.argmax(outside))
            raise ValueError(self._outside(names[codes[row]], where(row)))
        return Labeled(values, values != UNKNOWN, int(outside.sum()))

    def _multi(self, array: Any, place: dict[str, int], where: Where) -> Labeled:
        lists = as_lists(array, self.spec.separator, self.key, where)
        known = numpy_of(lists.is_valid())
        values = np.zeros((len(lists), len(place)), np.uint8)
        values[~known] = UNKNOWN_BYTE
        rows = numpy_of(pc.list_parent_indices(lists))
        outside = set()
        for row, name in zip(rows.tolist(), self._texts(array, where).to_pylist(), strict=True):
            if name in place:
                values[row, place[name]] = 1
            elif self.is_closed:
                raise ValueError(self._outside(name, where(row)))
            else:
                outside.add(row)
        return Labeled(values, known, len(outside))

    def _texts(self, array: Any, where: Where) -> Any:
        if self.spec.kind == "multi":
            lists = as_lists(array, self.spec.separator, self.key, where)
            rows = numpy_of(pc.list_parent_indices(lists))
            return texts_of(pc.list_flatten(lists), self.key, lambda at: where(int(rows[at])))
        return texts_of(array, self.key, where)

    def _outside(self, name: str | None, place: str) -> str:
        hint = nearest(str(name), list(self.classes))
        return f"{place}: {self.key} is {name!r}, which is not among the classes; {hint}"


def _natural(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts integers by value, before text."""
    is_integer = name.removeprefix("-").isdecimal() and len(name) < _LONG
    return (not is_integer, int(name) if is_integer else 0, name)
