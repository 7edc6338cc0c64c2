from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.tables.shop import spec
from khop import import_tables, partition_graph
from khop.data.tables.later_spec import GivenEncoders
from khop.kernels.id_table import StringKeys
from support.small_folders import write_learnable_graph


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    import_tables(spec(), tmp_path / "shop")
    return tmp_path / "shop"


def test_a_run_folder_stands_for_its_graph(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f'graph = "{shop}"\n')
    of_run, of_graph = GivenEncoders.open(tmp_path), GivenEncoders.open(shop)
    assert of_run.identity == of_graph.identity
    assert of_run.encoders("item") == of_graph.encoders("item")
    assert list(of_run.encoders("item")) == ["price", "brand", "title"]


def test_a_partitioned_graph_has_the_encoders_of_the_whole_one(shop: Path, tmp_path: Path) -> None:
    partition_graph(shop, tmp_path / "parts", 2)
    given = GivenEncoders.open(tmp_path / "parts")
    assert given.sha256 == GivenEncoders.open(shop).sha256
    rows = given.rows("item", StringKeys.of(["a", "new", "d"]))
    assert (rows >= 0).tolist() == [True, False, True]


def test_nodes_are_found_by_their_ids(shop: Path) -> None:
    given = GivenEncoders.open(shop)
    np.testing.assert_array_equal(given.rows("user", StringKeys.of(["u3", "u9", "u1"])), [2, -1, 0])
    assert not given.is_from_edges("user")


def test_a_graph_without_a_record_is_refused(tmp_path: Path) -> None:
    folder = write_learnable_graph(tmp_path / "plain")
    with pytest.raises(ValueError, match=r"plain: the graph has no encoders; give a graph that khop import"):
        GivenEncoders.open(folder)


def test_a_run_on_servers_or_without_a_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('graph = "gone"\n')
    with pytest.raises(ValueError, match=r"graph is 'gone': no such folder; give the graph folder"):
        GivenEncoders.open(tmp_path)
    (tmp_path / "config.toml").write_text("graph = \n")
    with pytest.raises(ValueError, match=r"config.toml: not TOML: .*; or give the graph folder"):
        GivenEncoders.open(tmp_path)
