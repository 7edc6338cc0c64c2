"""Write small tables for the specs beside this file: python examples/import/make_tables.py shop FOLDER."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

Generator = np.random.Generator


def shop(folder: Path, draws: Generator) -> None:
    """Write users, items and events; people of one taste buy the same kind of item."""
    users, items, events = 300, 80, 6000
    (folder / "items").mkdir()
    (folder / "events").mkdir()
    age = draws.integers(18, 80, users).astype(float)
    age[3] = np.nan
    signup = np.datetime64("2019-01-01") + draws.integers(0, 500, users)
    names = [f"u{number:05d}" for number in range(users)]
    pd.DataFrame({"user_id": names, "age": age, "signup": signup}).to_parquet(folder / "users.parquet")
    kinds = ["shoe", "hat", "coat", "scarf"]
    table = pd.DataFrame(
        {
            "item_id": [f"A-{number}" for number in range(items)],
            "title": [f"{kinds[number % 4]} number {number}" for number in range(items)],
            "Unit Price": np.round(draws.lognormal(3, 1, items), 2),
            "tags": ["wool|warm" if number % 3 else "" for number in range(items)],
        }
    )
    for part in range(2):
        table[part::2].to_csv(folder / "items" / f"{part}.csv.gz", index=False)
    user = draws.integers(0, users, events)
    item = (
        draws.integers(0, items // 4, events) * 4 + np.where(draws.random(events) < 0.9, user % 4, user % 3)
    ) % items
    seconds = draws.integers(0, 30 * 86_400, events)
    happened = pd.DataFrame(
        {
            "user_id": np.where(draws.random(events) < 0.001, "deleted", np.array(names)[user]),
            "item_id": table["item_id"].to_numpy()[item],
            "kind": np.where(draws.random(events) < 0.7, "buy", "view"),
            "ts": pd.to_datetime("2020-09-01", utc=True) + pd.to_timedelta(seconds, unit="s"),
        }
    )
    for part, first in enumerate(range(0, events, 2000)):
        happened[first : first + 2000].to_parquet(folder / "events" / f"{part}.parquet", index=False)


def citations(folder: Path, draws: Generator) -> None:
    """Write papers with abstracts of their field's words, and citations mostly within a field."""
    papers, cites = 400, 2000
    fields = {"biology": "cell gene protein", "physics": "quark field energy", "history": "king war archive"}
    field = draws.integers(0, 3, papers)
    words = [text.split() for text in fields.values()]
    dois = [f"10.1000/{number}" for number in range(papers)]
    parts = np.array(["train", "valid", "test"])[draws.choice(3, papers, p=[0.6, 0.2, 0.2])]
    pd.DataFrame(
        {
            "doi": dois,
            "abstract": [" ".join(["the", *draws.choice(words[of], 5)]) for of in field],
            "year": draws.integers(1990, 2020, papers),
            "field": np.array(list(fields))[field],
            "part": parts,
        }
    ).to_parquet(folder / "papers.parquet")
    left = draws.integers(0, papers, cites)
    same = [draws.choice(np.flatnonzero(field == field[one])) for one in left]
    right = np.where(draws.random(cites) < 0.8, same, draws.integers(0, papers, cites))
    text = "".join(f"{dois[one]},{dois[other]}\n" for one, other in zip(left, right, strict=True))
    (folder / "cites.csv.zst").write_bytes(pa.Codec("zstd").compress(text.encode(), asbytes=True))


def fraud(folder: Path, draws: Generator) -> None:
    """Write a DuckDB file of transactions; some merchants see more fraud."""
    count = 3000
    start = int(pd.Timestamp("2024-01-01", tz="UTC").timestamp() * 1000)
    merchant = draws.integers(0, 40, count)
    bad = draws.random(count) < np.where(merchant < 4, 0.4, 0.02)
    tx = pd.DataFrame(
        {
            "tx_id": np.arange(count) + 10**9,
            "from_account": [f"acc-{number}" for number in draws.integers(0, 200, count)],
            "to_account": [f"acc-{number}" for number in draws.integers(0, 200, count)],
            "merchant": [None if number == 39 else f"m{number}" for number in merchant],
            "amount": np.round(draws.lognormal(4, 1, count) * np.where(bad, 3, 1), 2),
            "currency": draws.choice(["EUR", "USD"], count),
            "at": start + np.sort(draws.integers(0, 180 * 86_400_000, count)),
            "is_fraud": bad,
        }
    )
    with duckdb.connect(str(folder / "bank.duckdb")) as connection:
        connection.register("given", pa.Table.from_pandas(tx))
        connection.execute("CREATE TABLE tx AS SELECT * FROM given")


MAKERS: dict[str, Callable[[Path, Generator], None]] = {"shop": shop, "citations": citations, "fraud": fraud}


def main(name: str, folder: str) -> None:
    """Write the tables of one example into a folder that exists."""
    MAKERS[name](Path(folder), np.random.default_rng(0))


if __name__ == "__main__":
    main(*sys.argv[1:])
