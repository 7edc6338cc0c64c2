"""khop.partition_graph refuses what it cannot do, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from khop.graph.csc_graph import open_csc_graph
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def test_a_part_alone_is_no_graph(shop: Path, tmp_path: Path) -> None:
    partition_graph(shop, tmp_path / "parts", 2)
    with pytest.raises(ValueError, match=r"part 1 of 2 of a graph; open the folder of all parts, .*parts$"):
        open_csc_graph(tmp_path / "parts" / "part-0001")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"parts": 0}, "parts 0: must be 1 to 4096"),
        ({"parts": 2, "method": "louvain"}, "method 'louvain': must be one of ldg, fennel, metis, random"),
        (
            {"parts": 2, "balance": ["rows"]},
            "parts can be balanced by nodes, edges, bytes, train",
        ),
        ({"parts": 2, "balance": ["nodes", "nodes"]}, "give one name or more, each once"),
        ({"parts": 2, "slack": -0.1}, "slack -0.1: must be a number from 0 on"),
        ({"parts": 2, "fanouts": [5, -2]}, r"fanouts \[5, -2\]: must be 0 or more, or -1"),
        ({"parts": 2, "batch_size": 0}, "batch_size 0: must be a whole number, 1 or more"),
    ],
)
def test_invalid_settings_are_one_sentence(
    shop: Path, tmp_path: Path, arguments: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        partition_graph(shop, tmp_path / "parts", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "parts").exists()


def test_an_interrupted_partition_leaves_nothing(shop: Path, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("part 1: edges"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition_graph(shop, tmp_path / "parts", 2, notice=interrupt)
    assert list(tmp_path.iterdir()) == []
