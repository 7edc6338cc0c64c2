"""The neighborhood of some nodes of a run's graph, with later data or without.

A new node gets the prediction that it would get in a graph which had it from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from data.tables.shop import spec
from khop import import_tables, open_ids, partition_graph
from khop.api.open_graph import Graph
from khop.graph.folder import open_folder
from khop.inference.chunks import unwatched
from khop.inference.later_graph import Neighborhood
from khop.run.build import Run
from khop.run.predict import JoinedRun, LaterPredictions, predict_later
from support.later_shops import (
    ITEMS,
    LATER_ITEMS,
    joined_tables,
    later_spec,
    later_tables,
    shop_spec,
    shop_tables,
)
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
    with pytest.raises(ValueError, match=r"was not imported with --encoders"):
        JoinedRun.of(run, tmp_path / "shop")


TASK = {"kind": "node-classification", "target": "item", "label": "label"}
SYMMETRIC = {"rule": {"kind": "symmetric-sum"}}
NEW = [f"i{40 + i}" for i in range(LATER_ITEMS)]


def run_on(folder: Path, **tables: Any) -> Run:  # noqa: ANN401
    settings = {"sampler": {"fanouts": [3, 3]}, "model": {"hidden": 8}, "training": {"batch_size": 4}}
    return prepared(folder, task=TASK, **{**settings, **tables})


def folders(tmp_path: Path, item_time: str | None = None) -> tuple[Path, Path, Path]:
    """Write the graph of the shop, the later data, and the graph of all rows."""
    shop, later, whole = (tmp_path / name for name in ("shop", "later", "whole"))
    import_tables(shop_spec(shop_tables(), item_time=item_time), shop)
    import_tables(later_spec(later_tables()), later, encoders=shop)
    import_tables(shop_spec(joined_tables(), item_time=item_time), whole)
    return shop, later, whole


def expected(run: Run, whole: Path, **tables: Any) -> torch.Tensor:  # noqa: ANN401
    """Return the outputs for the new items in the graph of all rows, by the model of the run."""
    other = run_on(whole, **tables)
    other.model.load_state_dict(run.model.state_dict())
    nodes = torch.from_numpy(open_ids(whole, "item").rows(NEW))
    return other.run_task.context.outputs(other.model, "item", nodes, unwatched)  # type: ignore[attr-defined,no-any-return]


def table(predictions: LaterPredictions) -> pa.Table:
    return pa.concat_tables([pa.table(columns) for columns in predictions.pieces()])


def test_whole_numbers_as_labels_are_predicted_as_numbers(tmp_path: Path) -> None:
    def counted(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        sold = pa.array(range(3, 3 + tables["item"].num_rows), pa.int64())
        return {**tables, "item": tables["item"].append_column("sold", sold)}

    specification = shop_spec(counted(shop_tables()))
    item = specification["nodes"]["item"]
    del item["label"]
    item["columns"] = {"price": "number", "sold": "raw"}
    import_tables(specification, tmp_path / "shop")
    import_tables(later_spec(counted(later_tables())), tmp_path / "later", encoders=tmp_path / "shop")
    run = prepared(
        tmp_path / "shop",
        task={"kind": "node-regression", "target": "item", "label": "sold"},
        sampler={"fanouts": [3]},
        model={"hidden": 4},
    )
    found = table(predict_later(run, tmp_path / "later"))
    assert found["label"].to_pylist() == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert pa.types.is_floating(found["prediction"].type)


@pytest.mark.core(1)
@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"model": {"kind": "gat", "hidden": 8}},
        {"sampler": {"fanouts": [3, 3, 2]}},
        {"sampler": {"fanouts": [{"* buys *": 3, "*": 0}]}},
        {"evaluation": {"fanouts": [4, 3]}},
        {"sampler": {"fanouts": [3, 3], **SYMMETRIC}, "model": {"kind": "gcn", "hidden": 8}},
        {
            "sampler": {"fanouts": [{"* buys *": 3, "*": 0}], **SYMMETRIC},
            "model": {"kind": "gcn", "hidden": 8},
        },
    ],
    ids=["exact", "attention", "three hops", "one edge type", "sampled", "degrees", "degrees of all edges"],
)
def test_predictions_are_those_of_a_graph_of_all_rows(tmp_path: Path, tables: dict[str, Any]) -> None:
    shop, later, whole = folders(tmp_path)
    run = run_on(shop, **tables)
    found = predict_later(run, later)
    torch.testing.assert_close(found.outputs.outputs, expected(run, whole, **tables), rtol=1e-5, atol=1e-6)


@pytest.mark.core(1)
@pytest.mark.parametrize("strategy", ["sample", "latest"])
def test_draws_of_a_temporal_run_are_those_of_a_graph_of_all_rows(tmp_path: Path, strategy: str) -> None:
    """Items have times: an edge is as late as its item, and a new item sees what was before it."""
    sampler = {"fanouts": [3, 3], "time": "time", "temporal_strategy": strategy}
    tables = {"sampler": sampler, "evaluation": {"fanouts": [4, 3]}}
    shop, later, whole = folders(tmp_path, "since")
    run = run_on(shop, **tables)
    found = predict_later(run, later)
    torch.testing.assert_close(found.outputs.outputs, expected(run, whole, **tables), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_labeled", [False, True])
def test_a_new_node_without_a_date_is_predicted_at_the_end_of_the_data(
    tmp_path: Path, is_labeled: bool
) -> None:
    """Labels have dates; new items have none, or some of them have."""

    def dated(tables: Mapping[str, pa.Table]) -> dict[str, Any]:
        specification = shop_spec(tables)
        specification["nodes"]["item"]["label"] = {"column": "kind", "time": "since"}
        return specification

    shop, later, whole = (tmp_path / name for name in ("shop", "later", "whole"))
    import_tables(dated(shop_tables()), shop)
    import_tables(dated(joined_tables()), whole)
    tables, values = later_tables(), later_spec(later_tables())
    dates = tables["item"]["since"].to_pylist()
    if is_labeled:
        kinds = pa.array(["hat", *[None] * (LATER_ITEMS - 1)])
        since = pa.array([dates[0], dates[1], *[None] * (LATER_ITEMS - 2)], tables["item"]["since"].type)
        item = tables["item"].set_column(3, "kind", kinds).set_column(5, "since", since)
        label = {"column": "kind", "time": "since"}
        values["nodes"]["item"] = {**values["nodes"]["item"], "rows": item, "label": label}
    import_tables(values, later, encoders=shop)
    settings = {"sampler": {"fanouts": [40, 40], "time": "time"}, "evaluation": {"fanouts": [40, 40]}}
    run = run_on(shop, **settings)
    found = predict_later(run, later)
    other = run_on(whole, **settings)
    other.model.load_state_dict(run.model.state_dict())
    nodes = torch.from_numpy(open_ids(whole, "item").rows(NEW))
    at = open_folder(whole).columns()
    times = torch.full((LATER_ITEMS,), int(at[BUYS]["time"].max()))
    if is_labeled:
        times[:2] = at["item"]["label_time"][nodes[:2]]
    outputs = other.run_task.context.outputs(other.model, "item", nodes, unwatched, times)  # type: ignore[attr-defined]
    torch.testing.assert_close(found.outputs.outputs, outputs, rtol=1e-5, atol=1e-6)
    (note,) = found.notes
    count = LATER_ITEMS - 2 * is_labeled
    assert note.startswith(f"{count} of {LATER_ITEMS} new nodes have no label_time: they are predicted as of")


def test_the_joined_rows_are_those_of_a_graph_of_all_rows(tmp_path: Path) -> None:
    """One layer over the edges that exist only in the later data changes what the nodes of the graph see."""
    shop, later, whole = folders(tmp_path)
    run = run_on(shop)
    without = {**later_tables(), "event": later_tables()["event"].slice(0, 1)}
    import_tables(later_spec(without), tmp_path / "few", encoders=shop)
    few, all_ = predict_later(run, tmp_path / "few"), predict_later(run, later)
    assert not torch.allclose(few.outputs.outputs, all_.outputs.outputs)
    torch.testing.assert_close(all_.outputs.outputs, expected(run, whole), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_chunks_of_new_nodes_give_the_same_predictions_and_progress(tmp_path: Path) -> None:
    shop, later, _ = folders(tmp_path)
    seen: list[tuple[int, int]] = []
    for evaluation in ({}, {"fanouts": [4, 3]}):
        whole = run_on(shop, evaluation=evaluation)
        few = run_on(shop, evaluation={**evaluation, "batch_size": 2})
        few.model.load_state_dict(whole.model.state_dict())
        by_two = predict_later(few, later, lambda done, total: seen.append((done, total)))
        torch.testing.assert_close(
            by_two.outputs.outputs, predict_later(whole, later).outputs.outputs, rtol=1e-5, atol=1e-6
        )
        assert table(by_two)["id"].to_pylist() == NEW
        assert seen.pop() == (LATER_ITEMS, LATER_ITEMS)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        seen.clear()


@pytest.mark.long
def test_a_partitioned_graph_gives_the_same_predictions(tmp_path: Path) -> None:
    shop, later, _ = folders(tmp_path)
    run = run_on(shop)
    partition_graph(shop, tmp_path / "parts", 3)
    parts = run_on(tmp_path / "parts")
    parts.model.load_state_dict(run.model.state_dict())
    of_parts, of_whole = predict_later(parts, later), predict_later(run, later)
    torch.testing.assert_close(of_parts.outputs.outputs, of_whole.outputs.outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_nodes_of_the_graph_keep_their_embeddings(tmp_path: Path) -> None:
    """Users have no columns: each has an embedding, also beside a new item."""
    shop, whole = tmp_path / "shop", tmp_path / "whole"
    early = {**later_tables(), "event": later_tables()["event"]}
    known = pa.compute.is_in(early["event"]["user_id"], shop_tables()["user"]["user_id"].combine_chunks())
    early["event"] = early["event"].filter(known)
    both = {**joined_tables(), "user": shop_tables()["user"]}
    both["event"] = pa.concat_tables([shop_tables()["event"], early["event"]])
    import_tables(shop_spec(shop_tables(), {}), shop)
    import_tables(shop_spec(both, {}), whole)
    items = later_spec(early)
    items["nodes"]["user"] = {}
    import_tables(items, tmp_path / "later", encoders=shop)
    model = {"model": {"hidden": 8, "embedding": 4}}
    run = run_on(shop, **model)
    found = predict_later(run, tmp_path / "later")
    torch.testing.assert_close(found.outputs.outputs, expected(run, whole, **model), rtol=1e-5, atol=1e-6)


@pytest.mark.core(1)
@pytest.mark.parametrize("embedded_types", ["missing", "all"])
def test_new_nodes_have_the_row_of_unknown_nodes(tmp_path: Path, embedded_types: str) -> None:
    """The prediction is that of a graph of all rows, whose table has this row for each new node."""
    shop, later, whole = tmp_path / "shop", tmp_path / "later", tmp_path / "whole"
    import_tables(shop_spec(shop_tables(), {}), shop)
    import_tables(later_spec(later_tables()), later, encoders=shop)
    import_tables(shop_spec(joined_tables(), {}), whole)
    model = {"model": {"hidden": 8, "embedding": 4, "unknown": 0.3, "embedded_types": embedded_types}}
    run, other = run_on(shop, **model), run_on(whole, **model)
    state = run.model.state_dict()
    for name in (name for name in state if ".unknown." in name and name.endswith("weight")):
        torch.nn.init.normal_(state[name])
        table = name.replace(".unknown.", ".tables.")
        new = other.model.state_dict()[table].shape[0] - state[table].shape[0]
        state[table] = torch.cat([state[table], state[name].expand(new, -1)])
    other.model.load_state_dict(state)
    nodes = torch.from_numpy(open_ids(whole, "item").rows(NEW))
    expected = other.run_task.context.outputs(other.model, "item", nodes, unwatched)  # type: ignore[attr-defined]
    found = predict_later(run, later).outputs.outputs
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_new_nodes_without_an_embedding_are_refused(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    import_tables(shop_spec(shop_tables(), {}), shop)
    import_tables(later_spec(later_tables()), tmp_path / "later", encoders=shop)
    run = run_on(shop, model={"hidden": 8, "embedding": 4})
    with pytest.raises(
        ValueError, match=r"node type 'user': the model has node embeddings for it, but none for new"
    ):
        predict_later(run, tmp_path / "later")


def test_rows_have_the_users_ids_and_class_names(tmp_path: Path) -> None:
    shop, later, _ = folders(tmp_path)
    rows = table(predict_later(run_on(shop), later))
    assert rows.column_names == ["id", "prediction", "score", "scores"]
    assert rows["id"].to_pylist() == NEW
    assert set(rows["prediction"].to_pylist()) <= {"hat", "shoe"}
    assert all(abs(sum(scores) - 1) < 1e-5 for scores in rows["scores"].to_pylist())


def test_labels_of_the_later_tables_are_written_beside(tmp_path: Path) -> None:
    shop, _, _ = folders(tmp_path)
    tables = later_tables()
    kinds = pa.array(["hat", "shoe", None, "boat", "hat"])
    tables["item"] = tables["item"].set_column(3, "kind", kinds)
    values = later_spec(tables)
    values["nodes"]["item"]["label"] = "kind"
    import_tables(values, tmp_path / "labeled", encoders=shop)
    rows = table(predict_later(run_on(shop), tmp_path / "labeled"))
    assert rows["label"].to_pylist() == ["hat", "shoe", None, None, "hat"]


def test_a_run_of_links_is_refused(tmp_path: Path) -> None:
    shop, later, _ = folders(tmp_path)
    run = prepared(
        shop,
        task={"kind": "link-prediction", "target": "user buys item"},
        sampler={"fanouts": [3]},
        links={"split": "random"},
    )
    with pytest.raises(
        ValueError, match=r"task is link-prediction, which has no outputs per node; for new users or"
    ):
        predict_later(run, later)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    shop, later, whole = folders(tmp_path)
    run = run_on(shop)
    with pytest.raises(ValueError, match=r"whole: was not imported with --encoders"):
        predict_later(run, whole)
    import_tables(spec(), tmp_path / "other")
    import_tables({"nodes": {"user": {}}}, tmp_path / "foreign", encoders=tmp_path / "other")
    with pytest.raises(
        ValueError, match=r"foreign: its encoders differ from those of .*shop, the graph of the run"
    ):
        predict_later(run, tmp_path / "foreign")
    (later / "import.json").write_text((later / "import.json").read_text().replace("b0", "b9"))
    with pytest.raises(ValueError, match=r"import.json: checksum differs from graph.json"):
        predict_later(run, later)


def test_later_data_without_nodes_to_predict_are_refused(tmp_path: Path) -> None:
    shop, _, _ = folders(tmp_path)
    values = {"nodes": {"user": later_spec(later_tables())["nodes"]["user"]}}
    import_tables(values, tmp_path / "users", encoders=shop)
    with pytest.raises(ValueError, match=r"users: has no new nodes of 'item', which the run predicts"):
        predict_later(run_on(shop), tmp_path / "users")
