"""The numbers of threads that nobody has to choose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from khop.loading.cores import cores_of_rank, sampler_threads, usable_cores

ALLOWED = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", ALLOWED),
        ("100000 100000", 1),
        ("20000 100000", 1),
        ("99900000 100000", ALLOWED),
        ("what", ALLOWED),
    ],
)
def test_a_container_uses_what_it_pays_for(text: str, cores: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path / "cpu.max") == cores


def test_without_containers_it_is_what_the_system_allows(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none") == ALLOWED


def test_ranks_of_a_machine_share_its_cores() -> None:
    assert [cores_of_rank(ranks) for ranks in (1, ALLOWED, 10 * ALLOWED)] == [usable_cores(), 1, 1]


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (8, 2), (16, 4), (64, 16)])
def test_samplers_get_a_quarter_of_many_cores(cores: int, threads: int) -> None:
    assert sampler_threads(cores) == threads
