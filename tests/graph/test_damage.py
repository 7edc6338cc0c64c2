"""A copy starts with a check: one flipped bit of any array is named, an undamaged folder passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.graph.damage import refuse_damage
from khop.graph.folder import open_folder


def test_every_byte_is_read_and_reported_once(shop: Path) -> None:
    folder = open_folder(shop)
    reports: list[tuple[str, int, int]] = []
    refuse_damage(folder, lambda *report: reports.append(report))
    assert reports[-1][1] == reports[-1][2] == sum(entry.bytes for entry in folder.arrays.values())
    assert {what for what, _, _ in reports} == {f"checking {file}" for file in folder.arrays}


def test_a_flipped_bit_of_any_array_is_named(shop: Path) -> None:
    folder = open_folder(shop)
    for file in folder.arrays:
        content = (shop / file).read_bytes()
        (shop / file).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ValueError, match="checksum differs") as raised:
            refuse_damage(folder)
        assert str(shop / file) in str(raised.value)
        (shop / file).write_bytes(content)
    refuse_damage(folder)
