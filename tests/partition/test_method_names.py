"""The names that the command completes, known without torch, are those of the methods."""

from __future__ import annotations

from khop.partition.method_names import METHOD_NAMES

from khop.partition.methods import PARTITIONERS


def test_every_method_has_its_name() -> None:
    assert tuple(PARTITIONERS.builtin) == METHOD_NAMES
