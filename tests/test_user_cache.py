"""The cache folder follows the environment, in the order of its specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.user_cache import cache_folder


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, "~/.cache/khop"),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/khop"),
        ({"XDG_CACHE_HOME": "relative"}, "~/.cache/khop"),
        ({"XDG_CACHE_HOME": "/caches", "KHOP_CACHE": "own"}, "own"),
        ({"XDG_CACHE_HOME": "/caches", "KHOP_CACHE": ""}, "/caches/khop"),
    ],
)
def test_the_first_variable_that_is_set_names_the_folder(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: str
) -> None:
    for name in ("KHOP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder).expanduser()
