"""Addresses of Postgres servers, and errors that show no password. test_postgres_table.py has a real server."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.importing.postgres_snapshot import PostgresSnapshot, _passwords, _with_timeout, is_postgres


@pytest.mark.parametrize(
    "address", ["postgresql://h/db", "postgres:///db", "host=h user=me", "dbname = shop"]
)
def test_addresses_of_servers_are_known(address: str) -> None:
    assert is_postgres(address)
    assert "connect_timeout=" in _with_timeout(address)


@pytest.mark.parametrize("path", ["shop.duckdb", "a=b.sqlite", "/data/hostess=1.db", "mysql://h/db"])
def test_other_places_are_not(path: str) -> None:
    assert not is_postgres(path)


def test_a_server_that_is_not_there_is_refused_without_the_password() -> None:
    with socket.socket() as probe:  # bound, and not listening
        probe.bind(("127.0.0.1", 0))
        address = f"postgresql://me:secret-word@127.0.0.1:{probe.getsockname()[1]}/db"
        with pytest.raises(
            ValueError, match="nodes.user: env:SHOP: cannot connect: no server answers there; check"
        ) as caught:
            PostgresSnapshot.open(address, "env:SHOP", "nodes.user")
    assert "secret-word" not in str(caught.value)


@given(st.text("ab%/'\\ =", min_size=1, max_size=8))
def test_passwords_are_found_in_all_forms(password: str) -> None:
    from urllib.parse import quote

    of_uri = _passwords(f"postgresql://me:{quote(password, safe='')}@host/db")
    assert password in of_uri
    assert quote(password, safe="") in _passwords(f"postgresql://host/db?password={quote(password, safe='')}")


def test_passwords_of_words_are_found() -> None:
    assert "pa ss" in _passwords("host=h password='pa ss' user=me")
    assert _passwords("host=h user=me") == _passwords("postgresql://me@host/db") == set()
