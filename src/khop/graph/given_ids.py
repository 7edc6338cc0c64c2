"""The users' ids of nodes, as they are given in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from khop.kernels.id_table import Keys, Kind, StringKeys, id_table

GivenIds = Sequence[str] | npt.NDArray[Any] | Tensor | StringKeys
_INDEX_BYTES = 12  # per key: its row, its tag, its share of the buckets


def given_ids(ids: GivenIds, where: str) -> Keys:
    """Return ids as keys; ValueError unless they are text or integers of 64 bits."""
    if isinstance(ids, StringKeys):
        return ids
    values = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else _array(ids)
    if values.ndim != 1:
        raise ValueError(f"{where}: ids have shape {values.shape}: give one per node")
    if np.issubdtype(values.dtype, np.integer) and np.can_cast(values.dtype, np.int64):
        return np.ascontiguousarray(values, np.int64)
    texts = values.tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{where}: ids[{row}] is {text!r}: ids are text or integers of 64 bits")
    return StringKeys.of(texts)


def _array(ids: Any) -> npt.NDArray[Any]:  # noqa: ANN401
    """Return ids as an array. NumPy's own arrays of text would drop NULs at the end of an id."""
    is_text = isinstance(ids, list | tuple) and len(ids) > 0 and isinstance(ids[0], str)
    return np.array(ids, object) if is_text else np.asarray(ids)


def kind_of(keys: Keys) -> Kind:
    """Return the kind of keys, as graph.json names it."""
    return "string" if isinstance(keys, StringKeys) else "int64"


def check_distinct(keys: Keys, count: int, where: str) -> None:
    """Raise ValueError unless there is one key per node, and no key twice."""
    if len(keys) != count:
        raise ValueError(f"{where} has {count:,} nodes and {len(keys):,} ids; give one id per node")
    table = id_table(kind_of(keys), count)
    second = table.append(keys)
    if second >= 0:
        first = int(table.find(keys[second : second + 1])[0])
        shown = keys[second : second + 1].strings()[0] if isinstance(keys, StringKeys) else int(keys[second])
        raise ValueError(
            f"{where}: ids[{second}] is {shown!r}, and so is ids[{first}]: an id names one node; remove one"
        )


def index_bytes(keys: Keys) -> int:
    """Return the bytes of the keys and their index on disk, about."""
    return keys.nbytes + _INDEX_BYTES * len(keys)
