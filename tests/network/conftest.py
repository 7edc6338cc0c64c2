"""Two hosts, and a run that they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from network.hosts import Host, two_hosts
from network.runs import RUN
from support.held_ranks import Hold
from support.small_folders import write_learnable_graph


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """node-a and node-b, with a good link."""
    with two_hosts() as pair:
        yield pair


@pytest.fixture
def run_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three epochs of nine steps, in an empty folder that both hosts see."""
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "toy", nodes=450)
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    """In the middle of the second epoch, for rank 1."""
    (tmp_path / "hold").mkdir()
    return Hold(tmp_path / "hold", rank=1, epoch=1, step=4)
