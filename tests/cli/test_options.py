"""Every field of a run is an option, and its text becomes what TOML would have held.

A command takes options that belong together as one value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from khop.cli.options import Options, shown, takes_groups, takes_run_options
from khop.run.check import checked
from khop.run.fields import RunField, run_fields
from khop.run.read import RawRun, with_options

Parse = Callable[..., tuple[str | None, bool, Options]]


@pytest.fixture(scope="module")
def parse() -> Parse:
    """What a command that takes run options is called with."""
    calls = []

    def command(source: str | None = None, as_json: bool = False, options: Options = {}) -> None:  # noqa: B006
        """Do nothing."""
        calls.append((source, as_json, options))

    app = typer.Typer()
    app.command()(takes_run_options(run_fields())(command))
    built = typer.main.get_command(app)  # a second, for a hundred options

    def call(*arguments: str) -> tuple[str | None, bool, Options]:
        built.main(list(arguments), standalone_mode=False)
        return calls.pop()

    return call


def test_what_is_not_given_is_not_in_the_options(parse: Parse) -> None:
    assert parse() == (None, False, {})
    assert parse("--source", "a.toml", "--as-json") == ("a.toml", True, {})


def test_text_becomes_numbers_lists_and_flags(parse: Parse) -> None:
    given = [
        "--fanouts",
        "15, -1,0",
        "--hidden",
        "8",
        "--dropout",
        "0.25",
        "--device",
        "cpu",
        "--no-residual",
    ]
    assert parse(*given)[2] == {
        "sampler.fanouts": [15, -1, 0],
        "model.hidden": 8,
        "model.dropout": 0.25,
        "device": "cpu",
        "model.residual": False,
    }


def test_text_that_is_no_number_is_left_for_the_check_of_the_run(parse: Parse) -> None:
    assert parse("--hidden", "wide", "--fanouts", "15,x")[2] == {
        "model.hidden": "wide",
        "sampler.fanouts": [15, "x"],
    }


def test_fanouts_by_edge_type_are_tables_as_in_toml(parse: Parse) -> None:
    given = '{"user buys item" = 5, "*" = 2}, 3'
    fanouts = [{"user buys item": 5, "*": 2}, 3]
    assert parse("--fanouts", given)[2] == {"sampler.fanouts": fanouts}
    assert shown((fanouts[0], 3)) == '{"user buys item" = 5, "*" = 2},3'
    assert parse("--fanouts", '{"a = 5')[2] == {"sampler.fanouts": '{"a = 5'}


@pytest.mark.core(4)
@pytest.mark.parametrize("entry", run_fields(), ids=lambda entry: entry.path)
def test_the_default_given_as_an_option_is_the_default(parse: Parse, entry: RunField) -> None:
    if entry.kind is bool:
        arguments = [entry.option if entry.default else "--no-" + entry.option.removeprefix("--")]
    elif entry.default is None:
        arguments = []
    else:
        arguments = [entry.option, shown(entry.default)]
    run = checked(with_options(RawRun({"graph": "g"}, "run.toml"), parse(*arguments)[2]))
    assert run == checked(RawRun({"graph": "g"}, "run.toml"))


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
