"""`khop init`: a run file on stdout."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from khop.cli.main import app, run
from support.small_link_folders import write_shop


def test_stdout_is_the_run_file(tmp_path: Path) -> None:
    graph = write_shop(tmp_path / "shop")
    result = CliRunner().invoke(app, ["init", str(graph)])
    assert result.exit_code == 0
    assert tomllib.loads(result.stdout)["graph"] == str(graph)


@pytest.mark.parametrize(("inside", "asked"), [(".", "."), ("edges", "..")])
def test_the_graph_may_be_the_working_folder(
    inside: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_shop(tmp_path / "shop") / inside)
    result = CliRunner().invoke(app, ["init", asked], catch_exceptions=False)
    assert result.exit_code == 0
    assert tomllib.loads(result.stdout)["graph"] == asked


def test_a_folder_that_is_no_graph_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["init", str(tmp_path / "none")])
    assert f"{tmp_path / 'none'}: no such folder" in capsys.readouterr().err
