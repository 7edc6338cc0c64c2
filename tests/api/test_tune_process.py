"""A script is set up as the command is, and the environment wins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import khop
from khop.loading.cores import usable_cores

SET = {"OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GLIBC_TUNABLES", "LOCAL_WORLD_SIZE"}
SCRIPT = """
import json, os, sys, warnings
if sys.argv[1] == "torch first":
    import torch
import khop
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    khop.tune_process(*map(int, sys.argv[2:]))
import torch
from khop.process_memory import is_tuned
print(json.dumps({
    "policy": os.environ.get("OMP_WAIT_POLICY"), "threads": torch.get_num_threads(), "tuned": is_tuned(),
    "warned": [str(each.message) for each in caught],
}))
"""


def found(*arguments: str, **given: str) -> dict[str, object]:
    """What the call leaves in a process of its own."""
    plain = {name: value for name, value in os.environ.items() if name not in SET}
    path = str(Path(khop.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**plain, "PYTHONPATH": path, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_threads_waiting_and_allocator_are_those_of_the_command() -> None:
    expected = {"policy": "passive", "threads": usable_cores(), "tuned": True, "warned": []}
    assert found("khop first") == expected


@pytest.mark.long
def test_the_environment_and_the_argument_win() -> None:
    given = found(
        "khop first", OMP_WAIT_POLICY="active", OMP_NUM_THREADS="1", GLIBC_TUNABLES="glibc.malloc.arena_max=1"
    )
    assert given == {"policy": "active", "threads": 1, "tuned": False, "warned": []}
    assert found("khop first", "1")["threads"] == 1
    ranks = found("khop first", OMP_NUM_THREADS="7", LOCAL_WORLD_SIZE=str(2 * usable_cores()))
    assert ranks["threads"] == 1


def test_torch_that_came_first_is_a_warning() -> None:
    late = found("torch first")
    (warning,) = late["warned"]  # type: ignore[misc]
    assert warning.startswith("torch was imported before khop.tune_process(): idle threads of OpenMP")
    assert (late["policy"], late["tuned"]) == (None, True)
