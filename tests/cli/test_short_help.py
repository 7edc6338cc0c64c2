"""Help shows the options that matter first, and all of them on request."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from cli.conftest import Ran
from khop.run.fields import kind_fields, run_fields

TEN = {
    "--resume", "--procs", "--graph", "--out", "--device", "--fanouts", "--hidden", "--epochs",
    "--batch-size", "--learning-rate",
}  # fmt: skip


def options_in(text: str) -> set[str]:
    """The options of the left column, without those that texts name."""
    return set(re.findall(r"^[│|]\s+(--[a-z0-9-]+)", text, re.MULTILINE))


def test_the_help_of_train_has_ten_options_and_names_the_way_to_the_rest(
    khop_command: Callable[..., Ran],
) -> None:
    for words in (("train", "--help"), ("train", "-h"), ("help", "train")):
        shown = khop_command(*words).stdout
        assert options_in(shown) == {*TEN, "--help-all", "--help"}
        assert "khop train --help-all" in shown


@pytest.mark.core(1)
@pytest.mark.parametrize("command", ["train", "evaluate", "infer", "profile", "predict"])
def test_all_help_has_more(khop_command: Callable[..., Ran], command: str) -> None:
    short, full = (options_in(khop_command(command, of).stdout) for of in ("--help", "--help-all"))
    assert short < full
    assert "--threads" in full - short


def test_all_help_of_train_is_in_the_groups_of_a_run_file(khop_command: Callable[..., Ran]) -> None:
    ran = khop_command("train", "--help-all")
    assert ran.code == 0
    assert {entry.option for entry in run_fields() if entry.kind is not bool} <= options_in(ran.stdout)
    for group in ("training", "sampler", "evaluation", "machine and files"):
        assert f"─ {group} ─" in ran.stdout


def test_options_of_a_component_are_shown_where_it_is_named(khop_command: Callable[..., Ran]) -> None:
    assert "--heads" not in options_in(khop_command("train", "--help").stdout)
    assert "--gamma" not in options_in(
        khop_command("train", "--task", "node-classification", "--help").stdout
    )


def test_all_help_has_the_options_of_all_components(khop_command: Callable[..., Ran]) -> None:
    shown = options_in(khop_command("train", "--help-all").stdout)
    assert {entry.option for entry, _ in kind_fields().values() if entry.kind is not bool} <= shown
    assert {"--heads", "--edge-column", "--subgraph-draws"} <= shown


def test_all_help_can_be_narrowed_to_a_section(khop_command: Callable[..., Ran]) -> None:
    ran = khop_command("train", "--help-all", "model")
    assert ran.code == 0
    shown = options_in(ran.stdout)
    assert {"--hidden", "--heads", "--edge-column"} <= shown
    assert not {"--epochs", "--fanouts", "--threads"} & shown
    wrong = khop_command("train", "--help-all", "modle")
    assert wrong.code == 2
    assert (
        "--help-all modle: the sections are machine and files, task, links, links.loss, seeds, sampler"
        in wrong.stderr
    )
