"""`khop schema` prints a schema alone, for a file."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from cli.conftest import Ran
from khop.data.tables.spec import spec_schema
from khop.run.run_type import run_schema


@pytest.mark.parametrize("words", [("run",), pytest.param((), marks=pytest.mark.long)], ids=str)
def test_stdout_is_the_schema(khop_command: Callable[..., Ran], words: tuple[str, ...]) -> None:
    ran = khop_command("schema", *words)
    assert json.loads(ran.stdout) == json.loads(json.dumps(run_schema()))
    assert ran.stderr == ""


def test_the_schema_of_a_spec(khop_command: Callable[..., Ran]) -> None:
    ran = khop_command("schema", "import")
    assert json.loads(ran.stdout) == json.loads(json.dumps(spec_schema()))
    assert ran.stderr == ""


def test_other_files_have_none(khop_command: Callable[..., Ran]) -> None:
    ran = khop_command("schema", "graph")
    assert ran.code != 0
    assert "Invalid value for 'of': 'graph' is not one of 'run', 'import'." in ran.stderr
