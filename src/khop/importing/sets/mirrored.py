"""Addresses of mirrors."""

from __future__ import annotations


def mirrored(url: str, mirror: str | None) -> str:
    """Return the address of a publisher's file, or of the file of the same name in a mirror."""
    return url if mirror is None else f"{mirror.rstrip('/')}/{url.rpartition('/')[2]}"
