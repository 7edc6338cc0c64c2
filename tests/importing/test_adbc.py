from __future__ import annotations

import sys

import pytest

from khop.importing.adbc import driver


def test_a_missing_driver_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver("sqlite").connect is not None
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite.dbapi", None)
    with pytest.raises(
        ValueError, match="SQLite is read by a package that is missing: pip install adbc-driver-sqlite"
    ):
        driver("sqlite")
