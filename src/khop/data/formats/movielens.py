"""Import of MovieLens: `khop import movielens:NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from khop.data.formats.downloads import fetched, mirrored, set_folder
from khop.data.formats.set_graph import memory_budget
from khop.data.importers import ImportContext, MovielensOptions
from khop.data.tables.packages import pa, pa_csv, reading
from khop.data.tables.pipeline import import_tables
from khop.data.tables.read_spec import nearest
from khop.graph.atomic import ProgressCallback, refuse_existing

_RATING = ("userId", "movieId", "rating", "timestamp")
_GENRES = (  # columns of 0 and 1 in u.item
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip


def movielens_tables(folder: Path) -> tuple[Any, Any]:
    """Return the tables (userId, movieId, rating, timestamp) and (movieId, title, genres).

    The layouts are ratings.csv of the newer sets, ratings.dat of ml-1m and ml-10m, and u.data of ml-100k.
    """
    if (folder / "ratings.csv").is_file():
        options = pa_csv.ParseOptions(newlines_in_values=True)
        tables = []
        for name in ("ratings.csv", "movies.csv"):
            with reading(str(folder / name), "download it again"):
                tables.append(pa_csv.read_csv(folder / name, parse_options=options))
        return tables[0], tables[1]
    if (folder / "ratings.dat").is_file():
        movies = _lines(folder / "movies.dat", "::", ("movieId", "title", "genres"))
        return _lines(folder / "ratings.dat", "::", _RATING), movies
    items = _lines(folder / "u.item", "|", ("movieId", "title", "date", "video", "url", *_GENRES))
    flags = [items.column(name).to_pylist() for name in _GENRES]
    genres = [
        "|".join(n for n, flag in zip(_GENRES, of, strict=True) if flag) for of in zip(*flags, strict=True)
    ]
    movies = items.select(["movieId", "title"]).append_column("genres", [genres])
    return _lines(folder / "u.data", "\t", _RATING), movies


def _lines(path: Path, separator: str, names: Sequence[str]) -> Any:
    """Read a file in Latin-1, without a header and without quotes."""
    with reading(str(path), "download it again"):
        text = path.read_text(encoding="latin-1")
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.count(separator) + 1
        if fields != len(names):
            raise ValueError(f"{path}, line {number}: has {fields} fields, and {len(names)} are expected")
    kinds = {"rating": pa.float32(), "title": pa.string(), "genres": pa.string()}
    with reading(str(path), "download it again"):
        return pa_csv.read_csv(
            pa.BufferReader(text.replace("::", "\t").encode()),
            read_options=pa_csv.ReadOptions(column_names=names),
            parse_options=pa_csv.ParseOptions(delimiter=separator.replace("::", "\t"), quote_char=False),
            convert_options=pa_csv.ConvertOptions(column_types=kinds),
        )


_ADDRESS = "https://files.grouplens.org/datasets/movielens"
_MD5: Mapping[str, str | None] = {  # as the publisher gives them; the others change with each release
    "ml-100k": "0e33842e24a9c977be4e0107933c0723",
    "ml-1m": "c4d9eecfca2ab87c1945afe126590906",
    "ml-20m": "cd245b17a1ae2cc31bb14903e1204af3",
    "ml-25m": "6b51fb2759a8657d3bfcbfc42b592ada",
    "ml-32m": None,
    "ml-latest-small": None,
    "ml-latest": None,
}
_VAL, _TEST = 0.8, 0.9  # of the ratings in time
_FILES = ("ratings.csv", "ratings.dat", "u.data")


@dataclass(frozen=True)
class MovielensImporter:
    """An import of one MovieLens set."""

    name: str
    root: Path | None
    mirror: str | None
    context: ImportContext

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its counts and notes. Ratings are split by time: 80, 10, 10 %."""
        refuse_existing(out)
        ratings, movies = movielens_tables(self._folder(notice))
        times = np.sort(ratings.column("timestamp").to_numpy())
        if len(times) < 10 or times[int(len(times) * _VAL)] == times[int(len(times) * _TEST)]:
            raise ValueError(f"{self.name}: {len(times)} ratings have too few times for a split by time")
        val, test = (int(times[int(len(times) * share)]) for share in (_VAL, _TEST))
        spec = {
            "time_unit": "s",
            "splits": {"time": {"val": val, "test": test}},
            "nodes": {
                "user": {},
                "movie": {
                    "rows": movies,
                    "id": "movieId",
                    "columns": {"title": {"kind": "text"}, "genres": {"kind": "multi", "separator": "|"}},
                },
            },
            "edges": {
                "user rates movie": {
                    "rows": ratings, "source": "userId", "destination": "movieId", "time": "timestamp",
                    "unit": "s", "reverse": "rated-by", "columns": {"rating": "raw"},
                    "orphans": "drop", "nulls": "drop",
                }
            },
        }  # fmt: skip
        done = import_tables(
            spec, out, memory=memory_budget(self.context), threads=self.context.threads, notice=notice
        )
        return done.counts()

    def _folder(self, notice: ProgressCallback | None) -> Path:
        root = self.root
        if root is None:
            url = mirrored(f"{_ADDRESS}/{self.name}.zip", self.mirror)
            root = fetched(url, self.context, notice, _MD5[self.name])
        return set_folder(root, [self.name], _FILES, self.name)


def movielens_importer(options: MovielensOptions, context: ImportContext) -> MovielensImporter:
    """Make the importer; ValueError for a set that does not exist."""
    if options.name not in _MD5:
        raise ValueError(f"movielens:{options.name}: no such set; {nearest(options.name, list(_MD5))}")
    root = None if options.root is None else context.folder / options.root
    return MovielensImporter(options.name, root, options.mirror, context)
