"""The neighborhood of some nodes of a run's graph, with later data or without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop import import_tables
from khop.api.open_graph import Graph
from khop.config.joined_run import JoinedRun
from khop.inference.later_graph import Neighborhood
from support.later_shops import ITEMS, later_spec, later_tables, shop_spec, shop_tables
from support.typed_runs import prepared

BUYS = ("user", "buys", "item")


def test_it_has_the_columns_of_all_rows_and_the_edges_of_both(tmp_path: Path) -> None:
    import_tables(shop_spec(shop_tables()), tmp_path / "shop")
    import_tables(later_spec(later_tables()), tmp_path / "later", encoders=tmp_path / "shop")
    task = {"kind": "node-classification", "target": "item", "label": "label"}
    run = prepared(tmp_path / "shop", task=task, sampler={"fanouts": [3]}, model={"hidden": 4})
    seeds = {"item": torch.tensor([3, ITEMS])}

    def degrees(near: Neighborhood, graph: Graph) -> list[int]:
        assert graph.columns["item"]["x"].shape[0] == graph.num_nodes("item")
        rows = near.graph.csc(BUYS).indptr.diff()
        return [int(rows[at]) for at in near.local("item", seeds["item"])]

    base, later = (
        shop_tables()["event"]["item_id"].to_pylist(),
        later_tables()["event"]["item_id"].to_pylist(),
    )
    joined = JoinedRun.of(run, tmp_path / "later").near(seeds, degrees)
    assert joined == [base.count("i3") + later.count("i3"), later.count("i40")]
    seeds["item"] = torch.tensor([3, 5])
    assert JoinedRun.of(run, None).near(seeds, degrees) == [base.count("i3"), base.count("i5")]


def test_embeddings_are_read_by_the_nodes_of_the_neighborhood_inside(tmp_path: Path) -> None:
    import_tables(shop_spec(shop_tables(), {}), tmp_path / "shop")
    task = {"kind": "node-classification", "target": "item", "label": "label"}
    run = prepared(
        tmp_path / "shop", task=task, sampler={"fanouts": [3]}, model={"hidden": 4, "embedding": 2}
    )
    (table,) = run.model.encoder.tables.values()  # type: ignore[operator, union-attr]

    def rows(near: Neighborhood, graph: Graph) -> tuple[torch.Tensor, torch.Tensor]:
        (inside,) = run.model.encoder.tables.values()  # type: ignore[operator, union-attr]
        return near.nodes["user"], inside(torch.arange(graph.num_nodes("user")))

    users, found = JoinedRun.of(run, None).near({"item": torch.tensor([7])}, rows)
    assert 0 < users.numel() < run.graph.num_nodes("user")
    assert torch.equal(found, table.weight[users])
    with pytest.raises(ValueError, match=r"is no later data"):
        JoinedRun.of(run, tmp_path / "shop")
