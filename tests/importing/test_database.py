from __future__ import annotations

from pathlib import Path

import pytest

from khop.importing.database import Database, Databases, database_of


def test_the_environment_names_a_file_or_a_server(tmp_path: Path) -> None:
    variables = {
        "BANK": "bank.duckdb",
        "URL": "postgresql://me:secret@host/db",
        "WORDS": "host=db user=me password=secret",
        "OTHER": "mysql://me:secret@host/db",
    }
    assert database_of("env:BANK", tmp_path, variables, "key").path == tmp_path / "bank.duckdb"
    assert database_of("a=b.duckdb", tmp_path, variables, "key").path == tmp_path / "a=b.duckdb"
    for name in ("URL", "WORDS"):
        server = database_of(f"env:{name}", tmp_path, variables, "key")
        assert server == Database(f"env:{name}", None, variables[name])
        assert "secret" not in repr(server)
    with pytest.raises(ValueError, match="no variable BONK"):
        database_of("env:BONK", tmp_path, variables, "key")
    with pytest.raises(ValueError, match="env:OTHER is the address of a database that is not read") as caught:
        database_of("env:OTHER", tmp_path, variables, "key")
    assert "secret" not in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    databases = Databases()
    with pytest.raises(
        ValueError, match=r"bonk.duckdb: no such file in .*; give the path of a DuckDB or SQLite"
    ):
        databases.open_table(Database("bonk.duckdb", tmp_path / "bonk.duckdb"), "tx", "id", "nodes.tx")
