"""The command, run as a user runs it but in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from khop.cli.main import run


@dataclass(frozen=True)
class Ran:
    """What one call of the command did."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def khop_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`khop_command("train", "debian")` -> exit code, stdout and stderr."""

    def call(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as left:
            run(list(arguments))
        out, err = capsys.readouterr()
        return Ran(left.value.code if isinstance(left.value.code, int) else 0, out, err)

    return call
