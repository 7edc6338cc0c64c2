"""A folder of parts, for tests of stores over ranks in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="session")
def typed_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts of the typed graph."""
    home = tmp_path_factory.mktemp("typed")
    partition_graph(write_typed_graph(home / "whole"), home / "parts", 3)
    return home / "parts"
