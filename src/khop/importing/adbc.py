"""The optional ADBC drivers of databases, and the sentence that says how to install them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_KINDS = {"postgresql": "Postgres", "sqlite": "SQLite"}


def driver(kind: str) -> Any:
    """Return the DBAPI module of the driver for `postgresql` or `sqlite`."""
    try:
        return import_module(f"adbc_driver_{kind}.dbapi")
    except ImportError as error:
        raise ValueError(
            f"{_KINDS[kind]} is read by a package that is missing: pip install adbc-driver-{kind} ({error})"
        ) from None
