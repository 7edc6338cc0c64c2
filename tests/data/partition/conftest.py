"""What tests that cut many small graphs share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings


@pytest.fixture
def many_cuts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of parts for every example: a third as many of them, and no waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    usual = settings.default
    assert usual is not None
    settings.register_profile("cuts", usual, max_examples=usual.max_examples // 3)
    settings.load_profile("cuts")
    yield
    settings.register_profile("usual", usual)
    settings.load_profile("usual")
