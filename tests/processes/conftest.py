"""A run that the tests of this folder stop, kill and compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.covered import announce
from support.server_processes import Starts, servers
from support.small_folders import write_learnable_graph

EPOCHS, STEPS = 3, 9  # of the run, and of an epoch


@pytest.fixture(scope="session", autouse=True)
def _ranks_are_covered() -> None:
    announce()


@pytest.fixture
def start() -> Iterator[Starts]:
    """Start servers as processes, which end with the test."""
    with servers() as starting:
        yield starting


@pytest.fixture
def run_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three epochs of nine steps, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "toy", nodes=450)
    path = tmp_path / "run.toml"
    path.write_text(f"""
        graph = "toy"
        compute_threads = 1
        deadline = 240
        sampler = {{ fanouts = [4, 3] }}
        model = {{ hidden = 16, dropout = 0.3 }}
        training = {{ epochs = {EPOCHS}, batch_size = 32, learning_rate = 0.03, schedule = "cosine" }}
        checkpoint = {{ steps = 2 }}
    """)
    return path
