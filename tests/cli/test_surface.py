"""What scripts and habits are built on is frozen: commands, their arguments, options and help.

After a change that is wanted: python tests/cli/test_surface.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from khop.cli.main import app
from khop.run.fields import run_fields

FROZEN = Path(__file__).with_name("surface.txt")
SCRIPTS = Path(__file__).parents[2] / "scripts"


def surface() -> str:
    group = typer.main.get_command(app)
    return "\n".join(["khop", *_parameters(group), *_commands("khop", group)]) + "\n"


def _commands(path: str, group: object) -> Iterator[str]:
    for name, command in getattr(group, "commands", {}).items():
        yield from ("", f"{path} {name}: {command.help}", *_parameters(command))
        yield from _commands(f"{path} {name}", command)


def _parameters(command: object) -> Iterator[str]:
    # Typer's classes are private; what is read of them has been the same in every release.
    for parameter in getattr(command, "params", []):
        names = " ".join([*parameter.opts, *parameter.secondary_opts])
        yield f"  {names}: {getattr(parameter, 'help', None)}"


def test_the_command_has_the_surface_that_was_agreed() -> None:
    assert surface() == FROZEN.read_text(), "if this change is wanted: python tests/cli/test_surface.py"


def test_every_field_of_a_run_is_an_option_of_train() -> None:
    train = FROZEN.read_text().partition("khop train")[2].partition("\nkhop ")[0]
    for entry in run_fields():
        assert f"  {entry.option}" in train


def test_all_help_of_train_shows_every_option(khop_command: Callable[..., Any]) -> None:
    shown = khop_command("train", "--help-all").stdout
    for entry in run_fields():
        assert entry.option in shown


def test_the_page_of_the_command_has_every_field_as_it_is() -> None:
    subprocess.run([sys.executable, SCRIPTS / "command-page", "--check"], check=True)


if __name__ == "__main__":
    FROZEN.write_text(surface())
