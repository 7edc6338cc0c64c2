"""khop import movielens:NAME: three layouts, one graph."""

from __future__ import annotations

from pathlib import Path

import pytest

import khop
from data.formats.layouts import movielens
from khop.data.formats.movielens import movielens_importer, movielens_tables
from khop.data.importers import ImportContext, Movielens
from khop.run.proposed_run import proposed_run

RATES = ("user", "rates", "movie")


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("name", "layout"), [("ml-latest-small", "csv"), ("ml-1m", "dat"), ("ml-100k", "tab")]
)
def test_ratings_are_split_by_time(name: str, layout: str, tmp_path: Path) -> None:
    movielens(tmp_path / name, layout)
    importer = movielens_importer(Movielens(name, root="."), ImportContext(tmp_path))
    assert importer.write(tmp_path / "out") == "4 user, 5 movie; 20 user rates movie, 20 movie rated-by user"
    graph = khop.open_graph(tmp_path / "out")
    assert graph.num_edges(RATES) == 20
    assert sorted(set(graph.columns[RATES]["rating"].tolist())) == [1, 2, 3, 4, 5]
    assert "16 training, 2 validation and 2 test links" in proposed_run(tmp_path / "out")


def test_wrong_names_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="movielens:ml-2m: no such set; did you mean"):
        movielens_importer(Movielens("ml-2m"), ImportContext(tmp_path))
    importer = movielens_importer(Movielens("ml-1m", root="."), ImportContext(tmp_path))
    with pytest.raises(
        ValueError, match=r"has none of ratings.csv, ratings.dat, u.data, .*; give the folder of ml-1m"
    ):
        importer.write(tmp_path / "out")


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
    with pytest.raises(
        ValueError, match=r"ratings.dat: row 2 has 2 fields, and the first row has 4; download it again"
    ):
        movielens_tables(tmp_path / "a")


def test_ratings_that_are_left_out_are_counted(tmp_path: Path) -> None:
    movielens(tmp_path / "ml-latest-small", "csv")
    with (tmp_path / "ml-latest-small" / "ratings.csv").open("a") as ratings:
        ratings.write("1,77,3.0,1030\n,2,3.0,1031\n")  # no such movie; no user
    importer = movielens_importer(Movielens("ml-latest-small", root="."), ImportContext(tmp_path))
    said = importer.write(tmp_path / "out").splitlines()
    assert said == [
        "4 user, 5 movie; 20 user rates movie, 20 movie rated-by user",
        "user rates movie: left out 1 edge with an unknown source or destination",
        "user rates movie: left out 1 edge with a null source or destination",
    ]
