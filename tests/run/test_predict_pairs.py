"""Scores of pairs of ids: those of a graph which had the later rows from the beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from khop import import_tables, open_ids, partition_graph
from khop.inference.link_evaluation import node_rows
from khop.run.build import Run
from khop.run.load_run import LoadedRun, predict_pairs
from support.later_shops import joined_tables, later_spec, later_tables, shop_spec, shop_tables
from support.typed_runs import prepared

BUYS = ("user", "buys", "item")
TASK = {"kind": "link-prediction", "target": "user buys item"}
PAIRS = pa.table({"user_id": ["u31", "u2", "who", "u32", "u2"], "item_id": ["i42", "i40", "i1", "i7", "i7"]})


def run_on(folder: Path, **tables: Any) -> Run:  # noqa: ANN401
    settings = {"sampler": {"fanouts": [3, 3]}, "model": {"hidden": 8}, "links": {"split": "random"}}
    return prepared(folder, **{"task": TASK, **settings, **tables})


def folders(tmp_path: Path, columns: dict[str, str] | None = None) -> tuple[Path, Path, Path]:
    """Write the graph of the shop, the later data, and the graph of all rows."""
    shop, later, whole = (tmp_path / name for name in ("shop", "later", "whole"))
    import_tables(shop_spec(shop_tables(), columns), shop)
    import_tables(later_spec(later_tables()), later, encoders=shop)
    import_tables(shop_spec(joined_tables(), columns), whole)
    return shop, later, whole


def table(run: Run, pairs: object, later: Path | None = None) -> pa.Table:
    return pa.concat_tables([pa.table(piece) for piece in predict_pairs(run, pairs, later).pieces()])


def expected(run: Run, whole: Path, pairs: pa.Table, **tables: Any) -> list[float]:  # noqa: ANN401
    """Return the scores of pairs in the graph of all rows, from the rows of all its nodes."""
    other = run_on(whole, **tables)
    other.model.load_state_dict(run.model.state_dict())
    model, graph = other.model.eval(), other.run_task.whole
    rule = other.loader().graph_sampler.rule
    rows = node_rows(model.encoder, graph, graph.features, ["user", "item"], rule=rule)  # type: ignore[arg-type]
    users, items = (
        torch.from_numpy(open_ids(whole, t).rows(pairs[f"{t}_id"].to_pylist())) for t in ("user", "item")
    )
    decoder = model.decoder(BUYS)  # type: ignore[operator]
    found: list[float] = decoder(rows["user"][users], rows["item"][items]).tolist()
    return found


@pytest.mark.core(1)
@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"links": {"split": "random", "decoder": "mlp"}},
        {"sampler": {"fanouts": [3]}},
        {
            "sampler": {"fanouts": [3, 3], "rule": {"kind": "symmetric-sum"}},
            "model": {"kind": "gcn", "hidden": 8},
        },
        {"evaluation": {"batch_size": 2}},
    ],
    ids=["dot", "mlp", "one hop", "degrees", "two at a time"],
)
def test_scores_are_those_of_a_graph_of_all_rows(tmp_path: Path, tables: dict[str, Any]) -> None:
    shop, later, whole = folders(tmp_path)
    run = run_on(shop, **tables)
    found = table(run, PAIRS, later)
    known = PAIRS.filter(pa.array([True, True, False, True, True]))
    scores = found["score"].to_pylist()
    assert scores[2] is None  # nobody has the id
    torch.testing.assert_close(
        torch.tensor([*scores[:2], *scores[3:]]),
        torch.tensor(expected(run, whole, known, **tables)),
        rtol=1e-5,
        atol=1e-6,
    )
    assert found["source_id"].to_pylist() == PAIRS["user_id"].to_pylist()
    assert found["destination_id"].to_pylist() == PAIRS["item_id"].to_pylist()


@pytest.mark.long
def test_new_users_with_embeddings_have_the_row_of_unknown_nodes(tmp_path: Path) -> None:
    shop, later, whole = folders(tmp_path, {})
    model = {"model": {"hidden": 8, "embedding": 4, "unknown": 0.2}}
    run = run_on(shop, **model)
    state = run.model.state_dict()
    (row,), (rows,) = (
        [name for name in state if f"{part}.node:user.weight" in name] for part in ("unknown", "tables")
    )
    torch.nn.init.normal_(state[row])
    found = table(run, PAIRS.slice(0, 2), later)["score"].to_pylist()
    other = run_on(whole, **model)
    other.model.load_state_dict({**state, rows: torch.cat([state[rows], state[row].expand(3, -1)])})
    again = table(other, PAIRS.slice(0, 2))["score"].to_pylist()
    torch.testing.assert_close(torch.tensor(found), torch.tensor(again), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_pairs_of_the_graph_need_no_later_data_and_may_be_a_file(tmp_path: Path) -> None:
    shop, _, _ = folders(tmp_path)
    pairs = PAIRS.slice(4)
    pyarrow.csv.write_csv(pairs, tmp_path / "pairs.csv")
    run = run_on(shop)
    found = table(run, tmp_path / "pairs.csv")["score"].to_pylist()
    assert found == pytest.approx(expected(run, shop, pairs), rel=1e-5)
    of_all = LoadedRun(tmp_path, run).predict(pairs=PAIRS)
    unknown = of_all.table["score"].null_count
    assert unknown > 0
    assert of_all.notes == (f"{unknown} of 5 pairs have an unknown id: their score is null",)
    assert LoadedRun(tmp_path, run).predict(pairs=pairs).notes == ()
    partition_graph(shop, tmp_path / "parts", 3)
    parts = run_on(tmp_path / "parts")
    parts.model.load_state_dict(run.model.state_dict())
    assert table(parts, pairs)["score"].to_pylist() == pytest.approx(found, rel=1e-5)


@pytest.mark.long
def test_the_reverse_edge_type_has_the_columns_turned_around(tmp_path: Path) -> None:
    shop, _, _ = folders(tmp_path)
    task = {"kind": "link-prediction", "target": "item bought-by user"}
    run = run_on(shop, task=task)
    found = table(run, PAIRS.slice(4))
    assert (found["source_id"].to_pylist(), found["destination_id"].to_pylist()) == (["i7"], ["u2"])


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"sampler": {"fanouts": [3], "time": "time", "window": [9, 0]}, "evaluation": {"fanouts": [3]}},
            r"sampler.window is \(9, 0\): inference over all neighbors would use edges that training leaves",
        ),
        (
            {"task": {"kind": "node-classification", "target": "item", "label": "label"}},
            r"--pairs: the task of the run is node-classification; only link-prediction runs score pairs",
        ),
    ],
    ids=["links in windows of time", "nodes"],
)
def test_runs_without_scores_of_pairs_are_refused(
    tmp_path: Path, tables: dict[str, Any], message: str
) -> None:
    import_tables(shop_spec(shop_tables()), tmp_path / "shop")
    settings = {"sampler": {"fanouts": [3]}, "model": {"hidden": 8}, "task": TASK, **tables}
    with pytest.raises(ValueError, match=message):
        predict_pairs(prepared(tmp_path / "shop", **settings), PAIRS)
