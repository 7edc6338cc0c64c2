"""Parameter names for node types and edge types."""

from __future__ import annotations


def parameter_name(*names: str) -> str:
    """Return a name valid in torch's containers: no dots, and never one of their attributes ("items")."""
    for character in "%.:":
        names = tuple(name.replace(character, f"%{ord(character):02X}") for name in names)
    return ":".join(names if len(names) > 1 else ("node", *names))
