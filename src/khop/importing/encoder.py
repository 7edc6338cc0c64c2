"""Encoders: columns of tables as numbers, by statistics of the training rows alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Where = Callable[[int], str]  # the place of a row in words


@dataclass(frozen=True, eq=False)
class Encoded:
    """Numbers of some rows."""

    values: npt.NDArray[Any]  # float32 (rows, width); of words int32 (rows, 2, longest)
    unknown: int = 0  # rows with a category or word that training lacks


class Encoder(Protocol):
    """A column's encoding with its statistics. Implementers are frozen values; threads may share them."""

    @property
    def width(self) -> int:
        """Numbers per row."""
        ...

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode a pyarrow array; ValueError names the place of a row that cannot be encoded."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return settings and statistics as JSON values, from which an equal encoder is made."""
        ...


class Fitter(Protocol):
    """Statistics under collection. Training rows are added in their order."""

    def add(self, array: Any, where: Where) -> None:
        """Add the values of training rows."""
        ...

    def encoder(self) -> Encoder:
        """Return the encoder of the added rows."""
        ...
