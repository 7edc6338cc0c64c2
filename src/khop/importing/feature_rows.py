"""Features of a node type: the numbers of its columns side by side, dense or as sparse rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.encode_category import CategoryEncoder
from khop.importing.encode_words import WordsEncoder
from khop.importing.encoder import Encoded, Encoder, Where

Values = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """The numbers of all columns that have no file of their own, in the order of the spec.

    If a category has encoding "embedding", rows are sparse: an entry for each category, and for each number
    of other columns. They have the same numbers at the same places as dense rows.
    """

    encoders: Mapping[str, Encoder]

    @classmethod
    def of(cls, encoders: Mapping[str, Encoder]) -> FeatureRows:
        """Return the features of a type with these encoders."""
        return cls({name: one for name, one in encoders.items() if not isinstance(one, WordsEncoder)})

    @property
    def width(self) -> int:
        """Numbers of a row, with those that are not stored."""
        return sum(one.width for one in self.encoders.values())

    @property
    def is_sparse(self) -> bool:
        """True if rows are stored as pairs of (index, value)."""
        categories = (one for one in self.encoders.values() if isinstance(one, CategoryEncoder))
        return any(one.encoding == "embedding" for one in categories)

    @property
    def stored(self) -> tuple[str, tuple[int, ...]]:
        """The dtype and the shape of a stored row."""
        if not self.is_sparse:
            return "float32", (self.width,)
        return "int32", (2, sum(1 if self._code(one) else one.width for one in self.encoders.values()))

    def encode(self, name: str, array: Any, where: Where) -> Encoded:
        """Encode a column: numbers (rows, width) or, of a category in sparse rows, codes (rows)."""
        encoder = self.encoders[name]
        code = self._code(encoder)
        return encoder.encode(array, where) if code is None else code.codes(array, where)

    def joined(self, columns: Sequence[Values]) -> Values:
        """Return rows as they are stored, of all columns in their order."""
        if not self.is_sparse:
            return np.concatenate(columns, axis=1)
        indices, values, first = [], [], 0
        for encoder, column in zip(self.encoders.values(), columns, strict=True):
            is_code = column.ndim == 1
            places = column[:, None] if is_code else np.broadcast_to(np.arange(encoder.width), column.shape)
            indices.append((first + places).astype(np.int32))
            values.append(np.ones(places.shape, np.float32) if is_code else column)
            first += encoder.width
        return _packed(np.concatenate(indices, axis=1), np.concatenate(values, axis=1))

    def _code(self, encoder: Encoder) -> CategoryEncoder | None:
        """Return the encoder of a column with one category per row, of which sparse rows have one entry."""
        if self.is_sparse and isinstance(encoder, CategoryEncoder) and encoder.several == "none":
            return encoder
        return None


def _packed(indices: npt.NDArray[np.int32], values: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Return int32 (rows, 2, entries): entries without zeros come first, and unused room is 0."""
    unused = values == 0
    order = np.argsort(unused, axis=1, kind="stable")
    numbers = np.where(unused, np.float32(0), values)
    entries = np.stack([np.where(unused, np.int32(0), indices), numbers.view(np.int32)], axis=1)
    return np.take_along_axis(entries, order[:, None], axis=2)
