"""`khop import debian`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from khop.graph.folder import open_folder

Command = Callable[..., Any]


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of lists; the command runs in another, empty one."""
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "x_Packages").write_text(
        "Package: a\nDepends: b\nSection: libs\n\nPackage: b\nSection: games\n"
    )
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return str(folder)


def test_a_folder_is_written_and_what_it_is_is_said(khop_command: Command, lists: str) -> None:
    ran = khop_command("import", "debian", "mine", "--lists", lists)
    assert (ran.code, ran.stdout) == (0, "mine: 2 packages. Show it: khop info mine\n")
    assert open_folder("mine").schema.node_types == ("package",)


@pytest.mark.parametrize(("options", "name"), [((), "debian"), (("--typed",), "debian-typed")])
def test_the_folder_has_a_name_if_none_is_given(
    khop_command: Command, lists: str, options: tuple[str, ...], name: str
) -> None:
    assert khop_command("import", "debian", "--lists", lists, *options).code == 0
    assert ("tag" in open_folder(Path("graphs") / name).schema.node_types) == ("--typed" in options)


def test_a_flag_of_the_importer_may_precede_its_name(khop_command: Command, lists: str) -> None:
    ran = khop_command("import", "--typed", "debian", "out", "--lists", lists)
    assert (ran.code, ran.stderr) == (0, "")
    assert "tag" in open_folder("out").schema.node_types


def test_a_spec_without_a_kind_is_answered_with_the_known_ones(khop_command: Command, lists: str) -> None:
    Path("spec.toml").write_text(f'lists = "{lists}"\n')
    ran = khop_command("import", "spec.toml")
    assert ran.code == 2
    assert ran.stderr.replace("\n", " ").startswith(
        "khop: kind is missing: name the importer, debian, or package.module:Class (spec.toml)"
    )


def test_without_apt_the_way_out_is_named(
    khop_command: Command, lists: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", lists)
    ran = khop_command("import", "debian")
    assert ran.code == 2
    assert ran.stderr.startswith(
        "khop: there is no apt on this machine (no apt-config); name a folder with the"
    )
    assert not Path("graphs").exists()


def test_missing_or_empty_lists_are_one_line_of_error(khop_command: Command, lists: str) -> None:
    ran = khop_command("import", "debian", "--lists", "nowhere")
    assert (ran.code, ran.stderr.count("\n")) == (2, 1)
    assert ran.stderr.startswith("khop: nowhere: no such folder")
    Path(lists, "x_Packages").write_text("")
    ran = khop_command("import", "debian", "--lists", lists)
    assert (ran.code, ran.stderr.count("\n")) == (2, 1)
    assert "no package in it" in ran.stderr
    assert not Path("graphs").exists()


def test_other_sources_are_answered_with_the_known_one(khop_command: Command) -> None:
    ran = khop_command("import", "gentoo")
    assert ran.code == 2
    assert "must be debian, or package.module:Class" in ran.stderr.replace("\n", " ")


def test_other_data_is_named_with_the_way_to_import_it(khop_command: Command) -> None:
    ran = khop_command("import", "shop.toml")
    assert ran.code != 0
    assert ran.stderr.startswith("khop: shop.toml: no such file; give a file with kind = ...")
    assert "khop.write_graph" in ran.stderr
