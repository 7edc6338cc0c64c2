"""Names of the network that a test makes."""

from __future__ import annotations

import socket

import pytest


def resolve(monkeypatch: pytest.MonkeyPatch, given: str, machines: list[str]) -> None:
    """Let a name resolve to the addresses that the list has at the time."""
    original = socket.getaddrinfo

    def look_up(host: str, *rest: object, **others: object) -> list[object]:
        names = machines if host == given else [host]
        return [found for name in names for found in original(name, *rest, **others)]  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
