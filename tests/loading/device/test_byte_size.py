"""Sizes are numbers of bytes, or text with a unit."""

from __future__ import annotations

import pytest

from khop.loading.device.device_placement import byte_size


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (5, 5),
        ("5", 5),
        ("5b", 5),
        ("500MB", 500_000_000),
        ("1GB", 10**9),
        ("2GiB", 2 << 30),
        (" 1.5 kib ", 1536),
        ("1k", 1000),
        ("2T", 2 * 10**12),
    ],
)
def test_units_are_powers_of_1000_and_with_an_i_of_1024(given: int | str, size: int) -> None:
    assert byte_size(given, "size") == size


@pytest.mark.parametrize(
    "given", ["", "GB", "-1", "1XB", "1 GB more", -1, True, 1.5, None, "1e3", "9" * 5000, "9000000000TB"]
)
def test_other_sizes_are_named(given: object) -> None:
    with pytest.raises(ValueError, match=r"^size .*: must be a whole number of bytes, 0 or more and below"):
        byte_size(given, "size")  # type: ignore[arg-type]
