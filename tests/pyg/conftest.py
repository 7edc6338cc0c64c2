"""What tests of torch_geometric's loaders run under."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAID = "ignore:.*links of the first batch are also message edges:UserWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Links that are edges are torch_geometric's default, and most tests here compare with it."""
    for item in items:
        if HERE in item.path.parents and item.path.name != "test_supervision.py":
            item.add_marker(pytest.mark.filterwarnings(SAID))
