"""`khop lookup`: nodes of ids, and ids of nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from khop.cli.main import app, run
from khop.graph.build import write_graph
from khop.graph.tables import NodeTable


@pytest.fixture
def shop(tmp_path: Path) -> str:
    return str(
        write_graph(tmp_path / "shop", {"user": NodeTable(ids=["ann", "bob"]), "item": NodeTable(1)}, {})
    )


def khop(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["lookup", *arguments])
    return result.exit_code, result.stdout


def test_ids_and_nodes_are_looked_up(shop: str) -> None:
    assert khop(shop, "user", "bob", "ann") == (0, "bob\t1\nann\t0\n")
    assert khop(shop, "user", "bob", "eve") == (1, "bob\t1\neve\tunknown\n")
    assert khop(shop, "user", "--by", "node", "1", "0") == (0, "1\tbob\n0\tann\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["item", "x"], "ids of 'item' are not stored"),
        (["user", "--by", "node", "2"], "node 2: there are 2 'user' nodes"),
        (["user", "--by", "node", "9" * 20], f"node {'9' * 20}: there are 2 'user' nodes"),
        (["user", "--by", "node", "x"], "--by node 'x': not a node number"),
    ],
)
def test_errors_are_one_sentence(
    shop: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["lookup", shop, *arguments])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
