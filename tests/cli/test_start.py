"""What happens before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import khop
from khop.cli import start

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(khop.__file__).parents[1])}


@pytest.mark.parametrize(("given", "policy"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_the_environment_says_otherwise(
    given: str | None, policy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    with pytest.raises(SystemExit, match="0"):
        start.run(["--version"])
    assert os.environ["OMP_WAIT_POLICY"] == policy
    assert capsys.readouterr().out.startswith("khop ")


def test_torch_is_not_imported_before_that() -> None:
    code = "import sys, khop.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=False).returncode == 0


def test_ctrl_c_while_modules_load_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "import_module", interrupted)
    with pytest.raises(SystemExit, match="130"):
        start.run(["train", "debian"])
    assert capsys.readouterr().err == "khop: stopped\n"
