"""`khop graph split`: a folder of what each part hears and is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from khop import LinkSplit, open_graph, split_links
from support.small_link_folders import BUYS, write_shop

Command = Callable[..., Any]


@pytest.mark.long
def test_split_writes_what_split_links_gives(khop_command: Command, tmp_path: Path) -> None:
    shop, out = write_shop(tmp_path / "shop"), tmp_path / "out"
    given = ("--links", "user buys item", "--val", "0.2", "--test", "30", "--negatives", "2", "--seed", "7")
    done = khop_command("graph", "split", str(shop), str(out), *given)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == (
        f"{out}: links of user buys item: train 851, val 220, test 30. Show a part: khop info {out}/train\n"
    )
    expected, opened = split_links(open_graph(shop), BUYS, 0.2, 30, negatives=2, seed=7), LinkSplit.open(out)
    assert torch.equal(opened.test_links.edges[BUYS], expected.test_links.edges[BUYS])
    assert torch.equal(opened.train.csc(BUYS).indices, expected.train.csc(BUYS).indices)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--links", "user likes item"], "--links 'user likes item': the edge types of "),
        (["--links", "user buys item", "--val", "1.5"], "val 1.5: must be a share from 0 to below 1"),
        (["--links", "user buys item", "--time", "day"], "column 'day' of ('user', 'buys', 'item'): not in"),
        (["--links", "user buys item", "--val", "2000"], "val 2000 and test 0.1 of 1,101 links of"),
    ],
)
def test_what_cannot_be_split_is_one_line_and_leaves_nothing(
    khop_command: Command, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    shop = write_shop(tmp_path / "shop")
    done = khop_command("graph", "split", str(shop), str(tmp_path / "out"), *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"khop: {complaint}")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]
    done = khop_command("graph", "split", str(shop), str(shop), "--links", "user buys item")
    assert done.stderr == f"khop: {shop}: exists already; remove it or choose another name\n"
