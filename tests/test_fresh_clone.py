"""What the README promises to whoever has just cloned khop."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _make(clone: Path, *arguments: str) -> str:
    """What `make` prints, in a shell that knows nothing of this test's environment."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    command = ["make", *arguments]
    return subprocess.run(
        command, cwd=clone, env=kept | pip, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.mark.long
def test_a_clone_trains_with_one_command_and_starts_at_once_the_second_time(tmp_path: Path) -> None:
    clone = tmp_path / "khop"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    result = json.loads(_make(clone, "train", "ARGS=--json").splitlines()[-1])
    assert result["test_accuracy"] >= 0.78
    built = _times(clone / ".venv" / "stamps")
    told = _make(clone, "train", "ARGS=--help")
    assert "--epochs" in told
    assert "Installing" not in told
    assert _times(clone / ".venv" / "stamps") == built  # nothing was made again


def _times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
