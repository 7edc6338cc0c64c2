"""`khop doctor` as a user calls it."""

from __future__ import annotations

from collections.abc import Callable

from cli.conftest import Ran


def test_the_command_is_known_and_says_what_it_examines(khop_command: Callable[..., Ran]) -> None:
    shown = khop_command("doctor", "--help").stdout
    for word in ("versions", "cores", "memory", "GPUs", "network", "limits", "disk"):
        assert word in shown
    assert khop_command("doctor", "--jsn").code == 2
