"""The split of each row: by its time, by the hash of its id, or by a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.importing.encode_category import texts_of
from khop.importing.encoder import Where
from khop.importing.packages import duckdb, pa
from khop.importing.spec import Split, Unit
from khop.importing.times import instant

NAMES = ("train", "val", "test")
TRAIN, VAL, TEST, NONE = 0, 1, 2, -1
Parts = npt.NDArray[np.int8]
_HASHES = 2.0**64


@dataclass(frozen=True)
class CutOffs:
    """The first times of validation and of test, in the unit of the graph."""

    val: int
    test: int

    @classmethod
    def of(cls, split: Split, unit: Unit, key: str) -> CutOffs | None:
        """Return the cut-offs of a split by time; None for other splits."""
        if split.time is None:
            return None
        return cls(instant(split.time.val, unit, f"{key}.val"), instant(split.time.test, unit, f"{key}.test"))

    def parts(self, times: npt.NDArray[np.int64]) -> Parts:
        """Return the part of each time: training < val <= validation < test <= test."""
        parts: Parts = (times >= self.val).astype(np.int8)
        parts += times >= self.test
        return parts


def parts_by_hash(texts: Any, split: Split) -> Parts:
    """Return the part of each id, by the first 8 bytes (little-endian) of the MD5 of "seed:id"."""
    assert split.ratio is not None
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("ids", pa.table({"id": texts}))
        query = f"SELECT md5_number_upper('{split.seed}:' || id) FROM ids"
        hashes = connection.sql(query).to_arrow_table().column(0).to_numpy()
    shares = hashes.astype(np.float64) / _HASHES
    val, test = split.ratio[0], split.ratio[0] + split.ratio[1]
    parts: Parts = (shares >= val).astype(np.int8)
    parts += (shares >= test) & (split.ratio[2] > 0)
    return parts


def parts_by_column(array: Any, split: Split, key: str, where: Where) -> Parts:
    """Return the part that each row names; null is in none."""
    names = {_text(split.train): TRAIN, _text(split.val): VAL, _text(split.test): TEST}
    parts = np.full(len(array), NONE, np.int8)
    for row, text in enumerate(texts_of(array, key, where).to_pylist()):
        if text is None:
            continue
        if text not in names:
            raise ValueError(
                f"{where(row)}: {key} is {text!r}: must be {', '.join(names)} or null; name other values by "
                "train, val and test"
            )
        parts[row] = names[text]
    return parts


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
