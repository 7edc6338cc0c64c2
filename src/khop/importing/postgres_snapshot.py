"""One snapshot of a Postgres database for all tables of an import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from khop.importing.adbc import driver
from khop.importing.csv_file import literal
from khop.importing.ordered_rows import first_line

_ADDRESS = re.compile(r"postgres(ql)?://|\s*(host|hostaddr|port|dbname|user|service)\s*=", re.IGNORECASE)
_PASSWORD = re.compile(r"password\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)
_TIMEOUT_S = 10
_BEGIN = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
# The driver's own message may repeat a part of the address, and so of a password.
_REASONS = {
    "authentication failed|no password supplied": "the user or the password is refused",
    "no pg_hba.conf entry": "the server does not let this user in from here",
    "Connection refused|No such file or directory": "no server answers there",
    "could not translate host name": "the host is not known",
    "timeout|timed out": f"the server does not answer within {_TIMEOUT_S} s",
    "database .* does not exist": "it has no database of this name",
    "role .* does not exist": "it has no user of this name",
    "SSL|certificate": "the encrypted connection fails",
    "too many": "it has no free connection",
}


def is_postgres(address: str) -> bool:
    """Return True for the address of a Postgres database: a URI, or words such as host=..."""
    return _ADDRESS.match(address) is not None


@dataclass(frozen=True, eq=False)
class PostgresSnapshot:
    """A snapshot, exported by a transaction that stays open, and connections that read it."""

    name: str  # as in the spec, without password
    state: str  # changes when something is written in the server
    _address: str = field(repr=False)
    _exported: str
    _owner: Any
    _idle: list[Any] = field(default_factory=list)

    @classmethod
    def open(cls, address: str, name: str, key: str) -> PostgresSnapshot:
        """Connect and export a snapshot; ValueError says why this fails, and shows no password."""
        owner = _connect(address, name, key)
        try:
            found = _executed(
                owner,
                _BEGIN,
                "SELECT pg_export_snapshot(), current_database() || ' ' || txid_current_snapshot()::text",
            )[0]
        except driver("postgresql").Error as error:
            owner.close()
            shown = _without_password(first_line(error), address)
            raise ValueError(f"{key}: {name}: no snapshot ({shown}); read from the primary server") from None
        return cls(name, str(found[1]), address, str(found[0]), owner)

    @contextmanager
    def reading(self, key: str) -> Iterator[Any]:
        """Yield a connection that reads the snapshot, for one query at a time."""
        connection = self._idle.pop() if self._idle else self._joined(key)
        try:
            yield connection
        finally:
            self._idle.append(connection)

    def shown(self, error: BaseException) -> str:
        """Return the first line of a driver's message without the password."""
        return _without_password(first_line(error), self._address)

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._idle, self._owner):
            connection.close()
        self._idle.clear()

    def _joined(self, key: str) -> Any:
        connection = _connect(self._address, self.name, key)
        _executed(connection, _BEGIN, f"SET TRANSACTION SNAPSHOT {literal(self._exported)}")
        return connection


def answer(connection: Any, query: str) -> list[Any]:
    """Return the rows of a query."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(query)
        rows: list[Any] = cursor.fetchall()
        return rows


def _executed(connection: Any, *statements: str) -> list[Any]:
    """Run statements, and return the rows of the last one if it is a query."""
    with closing(connection.cursor()) as cursor:
        for statement in statements:
            cursor.execute(statement)
        rows: list[Any] = cursor.fetchall() if statements[-1].startswith("SELECT") else []
        return rows


def _connect(address: str, name: str, key: str) -> Any:
    dbapi = driver("postgresql")
    try:
        return dbapi.connect(_with_timeout(address))
    except dbapi.Error as error:
        reasons = (reason for words, reason in _REASONS.items() if re.search(words, str(error)))
        reason = next(reasons, "the address is not valid")
        raise ValueError(
            f"{key}: {name}: cannot connect: {reason}; check the address, as "
            "postgresql://user@host/database, and test it with psql"
        ) from None


def _with_timeout(address: str) -> str:
    if "connect_timeout" in address:
        return address
    if "://" not in address:
        return f"{address} connect_timeout={_TIMEOUT_S}"
    return f"{address}{'&' if '?' in address else '?'}connect_timeout={_TIMEOUT_S}"


def _without_password(message: str, address: str) -> str:
    for word in sorted(_passwords(address), key=len, reverse=True):
        message = message.replace(word, "***")
    return message


def _passwords(address: str) -> set[str]:
    """Return the password of an address as written and decoded."""
    found = [match.strip("'") for match in _PASSWORD.findall(address)]
    if "://" in address:
        ends = urlsplit(address).netloc.rpartition("@")[0]
        found.append(ends.partition(":")[2])
    return {form for word in found for form in (word, unquote(word)) if form}
