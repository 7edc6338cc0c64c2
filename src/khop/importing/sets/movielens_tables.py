"""Tables of a MovieLens folder, as Arrow: ratings and movies of each of its layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from khop.importing.packages import pa, pa_csv

_GENRES_100K = 19  # columns of 0 and 1 in u.item
_NAMES_100K = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip


def movielens_tables(folder: Path) -> tuple[Any, Any]:
    """Return the tables (userId, movieId, rating, timestamp) and (movieId, title, genres).

    The layouts are ratings.csv of the newer sets, ratings.dat of ml-1m and ml-10m, and u.data of ml-100k.
    """
    if (folder / "ratings.csv").is_file():
        return _csv(folder / "ratings.csv"), _csv(folder / "movies.csv")
    if (folder / "ratings.dat").is_file():
        ratings = _lines(folder / "ratings.dat", "::", ("userId", "movieId", "rating", "timestamp"))
        return ratings, _lines(folder / "movies.dat", "::", ("movieId", "title", "genres"))
    if (folder / "u.data").is_file():
        ratings = _lines(folder / "u.data", "\t", ("userId", "movieId", "rating", "timestamp"))
        return ratings, _items(folder / "u.item")
    raise ValueError(f"{folder}: has none of ratings.csv, ratings.dat and u.data; give the folder of a set")


def _csv(path: Path) -> Any:
    try:
        return pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(newlines_in_values=True))
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{path}: cannot be read ({str(error).splitlines()[0]}); download it again"
        ) from None


def _rows(path: Path, separator: str, fields: int) -> list[list[str]]:
    try:
        lines = path.read_text(encoding="latin-1").splitlines()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error}); download it again") from None
    rows = [line.split(separator) for line in lines]
    for number, row in enumerate(rows, start=1):
        if len(row) != fields:
            raise ValueError(f"{path}, line {number}: has {len(row)} fields, and {fields} are expected")
    return rows


def _lines(path: Path, separator: str, names: Sequence[str]) -> Any:
    rows = _rows(path, separator, len(names))
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    kinds = {"rating": pa.float32(), "title": pa.string(), "genres": pa.string()}
    return pa.table({name: pa.array(of).cast(kinds.get(name, pa.int64())) for name, of in columns.items()})


def _items(path: Path) -> Any:
    rows = _rows(path, "|", 5 + _GENRES_100K)
    genres = [
        "|".join(name for name, flag in zip(_NAMES_100K, row[5:], strict=True) if flag == "1") for row in rows
    ]
    return pa.table(
        {"movieId": [int(row[0]) for row in rows], "title": [row[1] for row in rows], "genres": genres}
    )
