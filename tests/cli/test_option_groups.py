"""A command takes options that belong together as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from khop.cli.option_groups import takes_groups


@dataclass(frozen=True)
class Box:
    """Options of a box."""

    width: Annotated[int, typer.Option(help="Width.")]
    is_open: Annotated[bool, typer.Option("--open")] = False


def test_the_fields_of_a_group_are_options_in_their_order() -> None:
    calls = []

    def command(name: str, box: Box, depth: int = 3) -> None:
        """Do nothing."""
        calls.append((name, box, depth))

    app = typer.Typer()
    app.command()(takes_groups(command))
    assert [p.name for p in typer.main.get_command(app).params][:4] == ["name", "width", "is_open", "depth"]
    for words in (["a", "--width", "2"], ["b", "--width", "5", "--open", "--depth", "1"]):
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert calls == [("a", Box(2), 3), ("b", Box(5, is_open=True), 1)]
    assert CliRunner().invoke(app, ["a"]).exit_code == 2
