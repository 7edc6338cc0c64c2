"""Partitioned graphs of which servers have a part each."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from support.dated_shop import write_dated_shop
from support.small_folders import write_learnable_graph
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="session")
def plain_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parts of a graph of one type."""
    home = tmp_path_factory.mktemp("plain")
    partition_graph(write_learnable_graph(home / "whole"), home / "parts", 2, method="random")
    return home / "parts"


@pytest.fixture(scope="session")
def typed_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts of the typed graph."""
    home = tmp_path_factory.mktemp("typed")
    partition_graph(write_typed_graph(home / "whole"), home / "parts", 3, method="random")
    return home / "parts"


@pytest.fixture(scope="session")
def dated_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts of a graph that an import has split by time."""
    home = tmp_path_factory.mktemp("dated")
    partition_graph(write_dated_shop(home / "whole"), home / "parts", 3, method="random")
    return home / "parts"
