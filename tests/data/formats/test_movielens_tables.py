"""Tables of MovieLens."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.formats.layouts import movielens
from khop.data.formats.movielens import movielens_tables


@pytest.mark.parametrize("layout", ["csv", "dat", "tab"])
def test_all_layouts_hold_the_same(layout: str, tmp_path: Path) -> None:
    movielens(tmp_path / "a", layout)
    ratings, movies = movielens_tables(tmp_path / "a")
    assert ratings.num_rows == 20
    assert ratings.column("timestamp").to_pylist()[:2] == [1000, 1001]
    assert movies.to_pylist()[0] == {"movieId": 1, "title": "Café, the (1995)", "genres": "Action|Comedy"}


def test_a_cut_line_is_named(tmp_path: Path) -> None:
    movielens(tmp_path / "a", "dat")
    (tmp_path / "a" / "ratings.dat").write_text("1::2::3::4\n1::2\n")
    with pytest.raises(ValueError, match=r"ratings.dat, line 2: has 2 fields, and 4 are expected"):
        movielens_tables(tmp_path / "a")
