"""A shop, and what came later: tables for a graph of the first, of the later alone, and of all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from data.tables.shop import TEST, TYPE, VAL, at

USERS, ITEMS, EVENTS = 30, 40, 240
LATER_USERS, LATER_ITEMS = 3, 5
Tables = Mapping[str, pa.Table]


def shop_tables() -> dict[str, pa.Table]:
    """Users, items of two kinds, and events before 2020-09-29, some at equal times."""
    random = np.random.default_rng(3)
    items = np.arange(ITEMS)
    parts = np.where(items < 28, "train", np.where(items < 34, "val", "test"))
    return {
        "user": pa.table({"user_id": [f"u{i}" for i in range(USERS)], "age": random.normal(40, 9, USERS)}),
        "item": pa.table(
            {
                "item_id": [f"i{i}" for i in items],
                "price": random.normal(3, 1, ITEMS) + items % 2,
                "brand": [f"b{i % 3}" for i in items],
                "kind": [("hat", "shoe")[i % 2] for i in items],
                "part": parts.tolist(),
                "since": _times((1 + items % 5).tolist()),
            }
        ),
        "event": _events(
            [f"u{i}" for i in random.integers(USERS, size=EVENTS)],
            [f"i{i}" for i in random.integers(ITEMS, size=EVENTS)],
            random.integers(1, 29, EVENTS).tolist(),
        ),
    }


def later_tables() -> dict[str, pa.Table]:
    """New users and items, and events among them and with the shop's, from 2020-09-26 on."""
    random = np.random.default_rng(4)
    users = [f"u{USERS + i}" for i in range(LATER_USERS)]
    items = [f"i{ITEMS + i}" for i in range(LATER_ITEMS)]
    buyers = users + [f"u{i}" for i in range(10)]
    return {
        "user": pa.table({"user_id": users, "age": [20.0, None, 1000.0]}),
        "item": pa.table(
            {
                "item_id": items,
                "price": [1.0, 2.0, 3.0, 4.0, 1e6],
                "brand": ["b0", "unseen", None, "b1", "b2"],
                "kind": pa.array([None] * LATER_ITEMS, pa.string()),
                "part": pa.array([None] * LATER_ITEMS, pa.string()),
                "since": _times([27, 28, 29, 30, 31]),
            }
        ),
        "event": _events(
            [buyers[i] for i in random.integers(len(buyers), size=40)],
            [[*items, "i3", "i5"][i] for i in random.integers(LATER_ITEMS + 2, size=40)],
            random.integers(26, 31, 40).tolist(),
        ),
    }


def joined_tables() -> dict[str, pa.Table]:
    """The tables of both, the later rows last."""
    later = later_tables()
    return {name: pa.concat_tables([table, later[name]]) for name, table in shop_tables().items()}


def shop_spec(
    tables: Tables, user_columns: Mapping[str, str] | None = None, item_time: str | None = None
) -> dict[str, Any]:
    """Return the spec of a shop, split by time, with labels of items."""
    columns = {"age": "number"} if user_columns is None else dict(user_columns)
    return {
        "splits": {"time": {"val": VAL, "test": TEST}},
        "nodes": {
            "user": {"rows": tables["user"], "id": "user_id", "columns": columns},
            "item": {
                "rows": tables["item"],
                "id": "item_id",
                "columns": {"price": "number", "brand": "category"},
                "label": "kind",
                "split": {"column": "part"},
                **({} if item_time is None else {"time": item_time}),
            },
        },
        "edges": {
            "user buys item": {
                "rows": tables["event"], "source": "user_id", "destination": "item_id", "time": "ts",
                "reverse": "bought-by",
            }
        },
    }  # fmt: skip


def later_spec(tables: Tables) -> dict[str, Any]:
    """Return the spec of later data: files and ids alone."""
    edges = {"rows": tables["event"], "source": "user_id", "destination": "item_id"}
    return {
        "nodes": {
            "user": {"rows": tables["user"], "id": "user_id"},
            "item": {"rows": tables["item"], "id": "item_id"},
        },
        "edges": {"user buys item": edges},
    }


def _events(users: list[str], items: list[str], days: list[int]) -> pa.Table:
    return pa.table({"user_id": users, "item_id": items, "ts": _times(days)})


def _times(days: Sequence[int]) -> pa.Array:
    return pa.array([at(1) + timedelta(days=int(day) - 1) for day in days], TYPE)
