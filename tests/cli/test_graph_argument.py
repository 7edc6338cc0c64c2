"""The graph argument: a folder as it is given, or a built-in graph in the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.cli.graph_argument import folder_of
from khop.datasets.names import BUILTIN_NAMES, builtin_path


def test_other_names_are_folders_and_built_in_graphs_are_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path))
    assert folder_of("graphs/shop") == Path("graphs/shop")
    for name in BUILTIN_NAMES:
        builtin_path(name, tmp_path).mkdir()
        assert folder_of(name) == builtin_path(name, tmp_path)
        assert folder_of(f"./{name}") == Path(name)
