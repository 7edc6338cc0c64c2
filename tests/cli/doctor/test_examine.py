"""`khop doctor`: each line is right about this machine, and its exit code says whether khop works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import khop
from cli.conftest import Ran

SOURCE = str(Path(khop.__file__).parents[1])


def test_this_machine_is_described_as_it_is(khop_command: Callable[..., Ran]) -> None:
    ran = khop_command("doctor", "--json")
    answer = json.loads(ran.stdout)
    found = {each["name"]: each for each in answer["findings"]}
    assert (ran.code, answer["works"]) == (0, True)
    assert found["khop"]["found"] == khop.__version__
    assert torch.__version__.split("+")[0] in found["torch"]["found"]
    assert found["usable cores"]["found"].startswith(str(len(os.sched_getaffinity(0))))
    assert {each["area"] for each in answer["findings"]} == {
        "versions", "cores", "memory", "GPUs", "network", "limits", "disk",
    }  # fmt: skip
    assert {each["state"] for each in answer["findings"]} <= {"ok", "note", "wrong"}


def test_each_problem_has_the_line_that_mends_it_below(khop_command: Callable[..., Ran]) -> None:
    answer = json.loads(khop_command("doctor", "--json").stdout)
    lines = khop_command("doctor").stdout.splitlines()
    for each in answer["findings"]:
        if each["area"] in ("cores", "memory", "disk"):  # their figures change from one call to the next
            continue
        at = next(n for n, line in enumerate(lines) if each["name"] in line and each["found"] in line)
        assert lines[at].split()[0] == each["state"]
        if each["remedy"]:
            assert lines[at + 1].strip() == each["remedy"]
    assert lines[-2:] == ["Next:", "khop train debian"]


def test_a_torch_that_cannot_be_imported_stops_khop(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"}
    ran = subprocess.run(
        [sys.executable, "-m", "khop", "doctor"], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert re.search(r"stops +torch +cannot be imported: libcudart.so.12", ran.stdout)
    assert "Traceback" not in ran.stderr
    assert "Next:" not in ran.stdout
