"""The order of versions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.datasets.debian.versions import version_key

# Ascending; every step is one rule of Debian Policy, section 5.6.12.
ASCENDING = (
    "0~~",
    "0~~a",
    "0~",
    "0",
    "0.1",
    "0.9-1",
    "0.10-1~bpo12+1",
    "0.10-1",
    "0.10-1+b1",
    "0.10-1+deb12u1",
    "0.10-1.1",
    "0.10-2",
    "0.10a-1",
    "0.10+dfsg-1",
    "0.10.1-1",
    "1-0.9-1",
    "1:0.1",
    "1:0.1-a",
    "2:0",
)
versions = st.text("019~+.-:aZ", max_size=8)


@pytest.mark.parametrize(("older", "newer"), list(pairwise(ASCENDING)))
def test_the_newer_version_has_the_greater_key(older: str, newer: str) -> None:
    assert version_key(older) < version_key(newer)


@pytest.mark.parametrize(
    ("one", "other"), [("1.0", "0:1.0"), ("1.0", "1.0-0"), ("1.01", "1.1"), ("1.", "1.0"), ("", "0")]
)
def test_equal_versions_have_equal_keys_however_they_are_written(one: str, other: str) -> None:
    assert version_key(one) == version_key(other)


@given(versions, versions)
def test_a_tilde_at_the_end_is_older_and_a_letter_newer_than_the_end(version: str, other: str) -> None:
    assert version_key(f"{version}-1~") < version_key(f"{version}-1") < version_key(f"{version}-1a")
    assert (version_key(version) < version_key(other)) + (version_key(other) < version_key(version)) <= 1
