from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.importing.row_splits import CutOffs, parts_by_column, parts_by_hash
from khop.importing.spec import Split


def where(row: int) -> str:
    return f"row {row + 1}"


def test_training_ends_before_val_and_validation_before_test() -> None:
    assert CutOffs(10, 20).parts(np.array([9, 10, 19, 20])).tolist() == [0, 1, 1, 2]


@given(st.lists(st.text(max_size=8), max_size=20), st.integers(0, 5))
def test_the_hash_is_md5_of_seed_and_id(ids: list[str], seed: int) -> None:
    split = Split(ratio=(0.5, 0.25, 0.25), seed=seed)
    expected = []
    for one in ids:
        digest = hashlib.md5(f"{seed}:{one}".encode()).digest()
        share = int.from_bytes(digest[:8], "little") / 2**64
        expected.append(int(share >= 0.5) + int(share >= 0.75))
    assert parts_by_hash(pa.array(ids, pa.string()), split).tolist() == expected


def test_no_share_of_zero_gets_a_row() -> None:
    ids = pa.array([str(n) for n in range(1000)])
    assert set(parts_by_hash(ids, Split(ratio=(1.0, 0.0, 0.0))).tolist()) == {0}
    assert set(parts_by_hash(ids, Split(ratio=(0.5, 0.5, 0.0))).tolist()) == {0, 1}


def test_a_column_names_the_part() -> None:
    split = Split(column="s", train=0, val="v", test=True)
    assert parts_by_column(pa.array(["0", "v", "true", None]), split, "s", where).tolist() == [0, 1, 2, -1]
    with pytest.raises(ValueError, match="row 2: s is 'x': must be 0, v, true or null"):
        parts_by_column(pa.array(["0", "x"]), split, "s", where)
