"""Streaming partitioners cut few edges, alike with any number of threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from khop.data.partition.methods import PARTITIONERS
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


def test_streaming_cuts_less_than_chance(shop: Path, tmp_path: Path) -> None:
    cut = {
        method: partition_graph(shop, tmp_path / method, 3, method=method).quality.cut["all"]
        for method in ("ldg", "fennel", "random", "metis")
    }
    assert cut["random"] == pytest.approx(2 / 3, abs=0.05)
    assert max(cut["ldg"], cut["fennel"], cut["metis"]) < 0.6 * cut["random"]


@pytest.mark.core(2)
@pytest.mark.parametrize("method", [name for name in PARTITIONERS.builtin if name != "metis"])
def test_the_parts_depend_on_no_number_of_threads(shop: Path, tmp_path: Path, method: str) -> None:
    first = partition_graph(shop, tmp_path / "one", 3, method=method, threads=1)
    assert partition_graph(shop, tmp_path / "four", 3, method=method, threads=4) == first
