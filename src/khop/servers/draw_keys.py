"""Keys of draws in messages: with their epoch and step, which some rules read."""

from __future__ import annotations

from khop.draw import DrawKey
from khop.servers.json_fields import Document, Plain


def written_key(key: DrawKey) -> dict[str, Plain]:
    """Return the fields of a key."""
    return {"value": key.value, "of_epoch": key.of_epoch, "step": key.step}


def read_key(given: Document) -> DrawKey:
    """Read a key; ValueError names the field that is wrong."""
    of_epoch = given.given("of_epoch")
    step = given["step"].whole()
    return DrawKey(given["value"].whole(), None if of_epoch is None else of_epoch.whole(), step)
