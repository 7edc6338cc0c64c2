"""Completion is installed by one option, and completes commands, options and values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("khop")
TYPED = [("khop ev", "evaluate"), ("khop train --ep", "--epochs"), ("khop graph s", "sort")]


def _output(command: list[str], home: Path, **variables: str) -> str:
    environment = {**os.environ, "HOME": str(home), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.long
def test_completion_is_installed_by_one_option_typed_in_bash(tmp_path: Path) -> None:
    typed = f"'{PROGRAM}' --install-completion; true"  # the shell that is found is the process above
    assert "bash completion installed" in _output(["bash", "-c", typed], tmp_path)
    script = tmp_path / ".bash_completions" / "khop.sh"
    subprocess.run(["bash", "-n", script], check=True)
    assert str(script) in (tmp_path / ".bashrc").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_words_are_completed(tmp_path: Path, typed: str, expected: str) -> None:
    count = str(typed.count(" "))
    asked = {"_KHOP_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": count}
    assert expected in _output([str(PROGRAM)], tmp_path, **asked).split()
