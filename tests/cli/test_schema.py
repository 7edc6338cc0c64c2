"""`khop schema` prints the schema alone, for a file."""

from __future__ import annotations

import json
from collections.abc import Callable

from khop.config.run_schema import run_schema

from .conftest import Ran


def test_stdout_is_the_schema(khop_command: Callable[..., Ran]) -> None:
    ran = khop_command("schema")
    assert json.loads(ran.stdout) == json.loads(json.dumps(run_schema()))
    assert ran.stderr == ""
