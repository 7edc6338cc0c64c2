"""What tests that cut many small graphs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings


@pytest.fixture
def many_cuts() -> Iterator[None]:
    """A folder of parts for every example: a third as many of them."""
    usual = settings.default
    assert usual is not None
    settings.register_profile("cuts", usual, max_examples=usual.max_examples // 3)
    settings.load_profile("cuts")
    yield
    settings.register_profile("usual", usual)
    settings.load_profile("usual")
