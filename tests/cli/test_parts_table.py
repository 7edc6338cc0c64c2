"""The table of a partitioned graph: that of the graph before, and one line per part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Ran

Command = Callable[..., Ran]


@pytest.fixture
def parts(khop_command: Command, small_run: Path, learnable: Path) -> str:
    khop_command("partition", str(learnable), "parts", "--parts", "3")
    return "parts"


def test_info_of_parts_is_that_of_the_graph_and_of_each(
    khop_command: Command, parts: str, learnable: Path
) -> None:
    before = json.loads(khop_command("info", str(learnable), "--json").stdout)
    summary = json.loads(khop_command("info", parts, "--json").stdout)
    whole = summary["whole"]
    on_disk = {file: file.stat().st_size for file in Path(parts).rglob("*.npy")}
    assert whole["num_bytes"] == sum(on_disk.values())
    for kind, facts in (("nodes", ("type", "count", "splits")), ("edges", ("type", "count", "degrees"))):
        assert [[of[fact] for fact in facts] for of in whole[kind]] == [
            [of[fact] for fact in facts] for of in before[kind]
        ]
    assert sum(part["nodes"] for part in summary["parts"]) == sum(node["count"] for node in before["nodes"])
    assert sum(part["edges"] for part in summary["parts"]) == sum(edge["count"] for edge in before["edges"])
    features = Path("parts/part-0002/nodes/item/x.npy")
    left = summary["parts"][2]["num_bytes"] - features.stat().st_size
    features.unlink()  # of another machine's part edges may be here alone
    assert json.loads(khop_command("info", parts, "--json").stdout)["parts"][2]["num_bytes"] == left
    Path("parts/part-0001").rename("elsewhere")
    shown = khop_command("info", parts).stdout
    assert "part-0001" in shown
    assert shown.count("not here") == 1
    for part in ("parts/part-0000", "parts/part-0002"):
        Path(part).rename(Path("elsewhere") / Path(part).name)
    assert "none of its 3 parts is on this machine" in khop_command("info", parts).stderr
