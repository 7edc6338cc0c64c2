"""A small folder for tests of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.shop_folders import write_small_shop


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Users who buy items: see `write_small_shop`."""
    return write_small_shop(tmp_path / "shop")
