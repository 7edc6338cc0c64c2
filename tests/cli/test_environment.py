"""environment.json of a run: this machine, and the memory of each rank."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tests.reporting.support import config_of

import khop
from khop.cli.environment import memory_of_ranks, write_environment
from khop.runtime.group import this_group


def test_peaks_of_memory_are_added_at_the_end(tmp_path: Path) -> None:
    group, file = this_group(), tmp_path / "environment.json"
    write_environment(tmp_path, config_of(), group)
    started = json.loads(file.read_text())
    assert (started["khop"], started["processes"], started["device"]) == (khop.__version__, 1, "cpu")
    write_environment(tmp_path, config_of(), group, memory_of_ranks(group, torch.device("cpu")))
    ended = json.loads(file.read_text())
    assert ended.keys() - started.keys() == {"peak_memory_bytes"}
    assert 1e7 < ended["peak_memory_bytes"] < ended["memory_bytes"]


def test_the_most_of_all_ranks_is_written(tmp_path: Path) -> None:
    write_environment(tmp_path, config_of(), this_group(), {"peak_memory_bytes": [5, 9, 7]})
    assert json.loads((tmp_path / "environment.json").read_text())["peak_memory_bytes"] == 9
