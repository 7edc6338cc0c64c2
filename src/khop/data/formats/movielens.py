"""Import of MovieLens: `khop import movielens:NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from khop.data.formats.downloads import known_set, root_folder, set_folder
from khop.data.importers import ImportContext, Movielens, NamedImport
from khop.data.tables.packages import pa, pa_csv, reading
from khop.data.tables.pipeline import import_tables
from khop.graph.atomic import ProgressCallback

_RATING, _MOVIE = ("userId", "movieId", "rating", "timestamp"), ("movieId", "title", "genres")
_GENRES = (  # columns of 0 and 1 in u.item
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip


def movielens_tables(folder: Path) -> tuple[Any, Any]:
    """Return the tables (userId, movieId, rating, timestamp) and (movieId, title, genres).

    The layouts are ratings.csv of the newer sets, ratings.dat of ml-1m and ml-10m, and u.data of ml-100k.
    """
    if (folder / "ratings.csv").is_file():
        return _table(folder / "ratings.csv"), _table(folder / "movies.csv")
    if (folder / "ratings.dat").is_file():
        return _table(folder / "ratings.dat", "::", _RATING), _table(folder / "movies.dat", "::", _MOVIE)
    items = _table(folder / "u.item", "|", ("movieId", "title", "date", "video", "url", *_GENRES))
    flags = zip(*(items.column(name).to_pylist() for name in _GENRES), strict=True)
    genres = ["|".join(name for name, flag in zip(_GENRES, of, strict=True) if flag) for of in flags]
    movies = items.select(["movieId", "title"]).append_column("genres", [genres])
    return _table(folder / "u.data", "\t", _RATING), movies


def _table(path: Path, separator: str = ",", names: Sequence[str] = ()) -> Any:
    """Read a CSV file. If `names` are given, it is Latin-1 without a header and quotes."""
    kinds = {"rating": pa.float32(), "title": pa.string(), "genres": pa.string()} if names else {}
    with reading(str(path), "download it again"):
        text = path.read_text("latin-1").replace("::", "\t").encode() if names else path.read_bytes()
        return pa_csv.read_csv(
            pa.BufferReader(text),
            read_options=pa_csv.ReadOptions(column_names=names, use_threads=not names),  # rows have numbers
            parse_options=pa_csv.ParseOptions(
                delimiter=separator.replace("::", "\t"), quote_char=not names and '"',
                newlines_in_values=not names,
            ),
            convert_options=pa_csv.ConvertOptions(column_types=kinds),
        )  # fmt: skip


_ADDRESS = "https://files.grouplens.org/datasets/movielens"
_MD5: Mapping[str, str | None] = {  # as published; the other sets change with each release
    "ml-100k": "0e33842e24a9c977be4e0107933c0723",
    "ml-1m": "c4d9eecfca2ab87c1945afe126590906",
    "ml-20m": "cd245b17a1ae2cc31bb14903e1204af3",
    "ml-25m": "6b51fb2759a8657d3bfcbfc42b592ada",
    "ml-32m": None,
    "ml-latest-small": None,
    "ml-latest": None,
}
_VAL, _TEST = 0.8, 0.9  # of the ratings by time
_FILES = ("ratings.csv", "ratings.dat", "u.data")


def movielens_importer(options: Movielens, context: ImportContext) -> NamedImport:
    """Return the import of one MovieLens set; ValueError for an unknown set."""
    name, md5 = options.name, known_set("movielens", options.name, _MD5)

    def write(out: Path, notice: ProgressCallback | None) -> str:
        root = root_folder(options, context, f"{_ADDRESS}/{name}.zip", notice, md5)
        spec = _spec(name, *movielens_tables(set_folder(root, [name], _FILES, name)))
        return import_tables(
            spec, out, memory=context.memory, threads=context.threads, notice=notice
        ).counts()

    return NamedImport(name, write)


def _spec(name: str, ratings: Any, movies: Any) -> dict[str, Any]:
    """Return the spec. Ratings are split by time: 80, 10, 10 %."""
    times = np.sort(ratings.column("timestamp").to_numpy())
    if len(times) < 10 or times[int(len(times) * _VAL)] == times[int(len(times) * _TEST)]:
        raise ValueError(f"{name}: {len(times)} ratings have too few times for a split by time")
    val, test = (int(times[int(len(times) * share)]) for share in (_VAL, _TEST))
    features = {"title": {"kind": "text"}, "genres": {"kind": "multi", "separator": "|"}}
    return {
        "time_unit": "s",
        "splits": {"time": {"val": val, "test": test}},
        "nodes": {"user": {}, "movie": {"rows": movies, "id": "movieId", "columns": features}},
        "edges": {
            "user rates movie": {
                "rows": ratings, "source": "userId", "destination": "movieId", "time": "timestamp",
                "unit": "s", "reverse": "rated-by", "columns": {"rating": "raw"},
                "orphans": "drop", "nulls": "drop",
            }
        },
    }  # fmt: skip
