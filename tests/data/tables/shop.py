"""A small shop as tables: users and items with string ids, events with times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

VAL, TEST = datetime(2020, 9, 20, tzinfo=UTC), datetime(2020, 9, 25, tzinfo=UTC)
TYPE = pa.timestamp("us", "UTC")


def at(day: int) -> datetime:
    """Return a time in September 2020."""
    return datetime(2020, 9, 1, tzinfo=UTC) + timedelta(days=day - 1)


def users() -> pa.Table:
    """Users with an age; u3 has none."""
    return pa.table({"user_id": ["u1", "u2", "u3"], "age": [20.0, 40.0, None]})


def items() -> pa.Table:
    """Items with a price, a title, a brand and a label."""
    return pa.table(
        {
            "item_id": ["a", "b", "c", "d"],
            "price": [1.0, 2.0, 3.0, 6.0],
            "title": ["red shoe", "blue shoe", "red hat", "old coat"],
            "brand": ["x", "y", "x", None],
            "category": ["shoe", "shoe", "hat", None],
        }
    )


def events() -> pa.Table:
    """Purchases and views; the last two are of validation and test."""
    rows = [
        ("u1", "a", "buy", at(3)), ("u1", "b", "buy", at(2)), ("u2", "a", "buy", at(1)), ("u2", "c", "view", at(4)),
        ("u3", "b", "buy", at(9)), ("u2", "c", "buy", at(5)), ("u1", "c", "buy", at(21)), ("u3", "d", "buy", at(26)),
    ]  # fmt: skip
    names = ("user_id", "item_id", "kind", "ts")
    columns = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    return pa.table({**columns, "ts": pa.array(columns["ts"], TYPE)})


def roomy() -> dict[str, Any]:
    """Return changes of the spec: an item that u2 alone buys, early, so that each link has a negative."""
    item = {"item_id": ["e"], "price": [4.0], "title": ["old hat"], "brand": ["y"], "category": ["hat"]}
    buy = {"user_id": ["u2"], "item_id": ["e"], "kind": ["buy"], "ts": [at(6)]}
    return {
        "nodes.item.rows": pa.concat_tables([items(), pa.table(item, schema=items().schema)]),
        "edges.user buys item.rows": pa.concat_tables([events(), pa.table(buy, schema=events().schema)]),
    }


def spec(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the spec of the shop; keys with dots, as `nodes.item.label`, change single values."""
    values: dict[str, Any] = {
        "splits": {"time": {"val": VAL, "test": TEST}},
        "nodes": {
            "user": {"rows": users(), "id": "user_id", "columns": {"age": "number"}},
            "item": {
                "rows": items(),
                "id": "item_id",
                "columns": {"price": "number", "brand": "category", "title": {"kind": "text", "width": 8}},
            },
        },
        "edges": {
            "user buys item": {
                "rows": events(), "where": "kind = 'buy'", "source": "user_id", "destination": "item_id",
                "time": "ts", "reverse": "bought-by",
            }
        },
    }  # fmt: skip
    for path, value in changes.items():
        _set(values, path.split("."), value)
    return values


def _set(values: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    if value is None:
        values.pop(path[-1], None)
    else:
        values[path[-1]] = value
