"""Graphs of which servers make batches."""

from __future__ import annotations

import pytest

import khop
from support.dated_shop import write_dated_shop
from support.small_folders import write_learnable_graph
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="session")
def plain_graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    return khop.open_graph(write_learnable_graph(tmp_path_factory.mktemp("plain") / "graph"))


@pytest.fixture(scope="session")
def typed_graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    return khop.open_graph(write_typed_graph(tmp_path_factory.mktemp("typed") / "graph"))


@pytest.fixture(scope="session")
def dated_graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    """A graph that an import has split by time."""
    return khop.open_graph(write_dated_shop(tmp_path_factory.mktemp("dated") / "graph"))
