"""Published negatives: held-out links are scored with those of a file, by the formulas of OGB's Evaluator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

import khop
from data.formats.layouts import gz_rows, links
from khop.graph.partitions.parts_folder import known_folder
from khop.inference.chunks import unwatched
from khop.inference.link_evaluation import ends_of_links, node_rows
from khop.run.build import Run, prepare
from khop.run.given_negatives import NegativeFile
from khop.run.read import RawRun, read_toml
from khop.training.step_clock import Unwatched
from support.commands import exit_code
from support.covered import covered
from support.killed_runs import killed_and_continued
from support.later_shops import ITEMS, shop_spec, shop_tables
from support.started_ranks import StartedRanks
from training.test_evaluations import assert_equal_runs

BUYS, REVERSE = ("user", "buys", "item"), ("item", "bought-by", "user")


def ogb_mrr(links: Tensor, negatives: Tensor) -> float:
    """OGB's Evaluator for ogbl-citation2: (n) scores of links, (n, k) of the negatives of each."""
    optimistic = (negatives > links.view(-1, 1)).sum(dim=1)
    pessimistic = (negatives >= links.view(-1, 1)).sum(dim=1)
    ranks = 0.5 * (optimistic + pessimistic) + 1
    return float((1.0 / ranks.to(torch.float64)).mean())


def ogb_hits(links: Tensor, negatives: Tensor, k: int) -> float:
    """OGB's Evaluator for ogbl-collab: (n) scores of links, (m) of negatives for all of them."""
    if len(negatives) < k:
        return 1.0
    limit = torch.topk(negatives, k)[0][-1]
    return float(torch.sum(links > limit)) / len(links)


def raw(folder: Path, **tables: dict[str, Any]) -> RawRun:
    found: dict[str, Any] = {
        "graph": str(folder / "shop"),
        "precision": "float64",
        "compute_threads": 1,
        "task": {"kind": "link-prediction", "target": "user buys item"},
        "sampler": {"fanouts": [4, 3]},
        "model": {"hidden": 8, "embedding": 6},
        "training": {"epochs": 1, "batch_size": 64},
    }
    return RawRun(
        {**found, **{name: found.get(name, {}) | table for name, table in tables.items()}}, "run.toml"
    )


def ids(nodes: npt.NDArray[np.int64], letter: str) -> list[str]:
    return [f"{letter}{node}" for node in nodes.tolist()]


def write_files(folder: Path) -> None:
    """For each split: 3 to 6 negatives per link in another order than the links', and 50 pairs for all."""
    khop.import_tables(shop_spec(shop_tables()), folder / "shop")
    split, random = made(folder).run_task.split, np.random.default_rng(2)  # type: ignore[attr-defined]
    for name in ("val", "test"):
        ends = ends_of_links(getattr(split, f"{name}_links"), BUYS).numpy()
        order = random.permutation(ends.shape[1])
        lists = [
            ids(random.choice(ITEMS, size, replace=False), "i") for size in random.integers(3, 7, len(order))
        ]
        columns = {
            "user_id": ids(ends[0][order], "u"),
            "item_id": ids(ends[1][order], "i"),
            "negatives": lists,
        }
        pq.write_table(pa.table(columns), folder / f"{name}-lists.parquet")
        pairs = {
            "user_id": ids(random.integers(30, size=50), "u"),
            "item_id": ids(random.integers(ITEMS, size=50), "i"),
        }
        pq.write_table(pa.table(pairs), folder / f"{name}-pairs.parquet")


def made(folder: Path, **tables: dict[str, Any]) -> Run:
    return prepare(raw(folder, **tables), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("shop")
    write_files(found)
    return found


def numbers(values: list[str]) -> Tensor:
    return torch.tensor([int(value[1:]) for value in values], dtype=torch.int64)


def scored(one: Run, split: str, sources: Tensor, destinations: Tensor) -> Tensor:
    """Scores of pairs by the rows of all nodes over the edges that a split may use."""
    model, graph = one.model, getattr(one.run_task.split, split)  # type: ignore[attr-defined]
    rows = node_rows(model.encoder, graph, graph.features, ["user", "item"])  # type: ignore[arg-type]
    with torch.no_grad():
        found: Tensor = model.decoder(BUYS)(rows["user"][sources], rows["item"][destinations])  # type: ignore[operator]
    return found


@pytest.mark.core(1)
@pytest.mark.parametrize("split", ["val", "test"])
def test_lists_of_negatives_give_the_mrr_of_ogb(folder: Path, split: str) -> None:
    files = {f"{name}_negatives": str(folder / f"{name}-lists.parquet") for name in ("val", "test")}
    one = made(folder, links=files)
    found = one.scores((split,), unwatched)
    table = pq.read_table(folder / f"{split}-lists.parquet")
    links = scored(one, split, numbers(table["user_id"].to_pylist()), numbers(table["item_id"].to_pylist()))
    expected = []
    for user, link, listed in zip(
        table["user_id"].to_pylist(), links, table["negatives"].to_pylist(), strict=True
    ):
        sources = numbers([user] * len(listed))
        expected.append(ogb_mrr(link.view(1), scored(one, split, sources, numbers(listed)).view(1, -1)))
    assert len({len(listed) for listed in table["negatives"].to_pylist()}) > 1
    assert found[split] == pytest.approx(sum(expected) / len(expected), rel=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("only", [False, True])
def test_lists_for_both_ends_give_the_mrr_of_heart(folder: Path, tmp_path: Path, only: bool) -> None:
    """HeaRT ranks a link among pairs with its source and pairs with its destination, in one list."""
    random, table = np.random.default_rng(6), pq.read_table(folder / "test-lists.parquet")
    lists = [ids(random.choice(30, size, replace=False), "u") for size in random.integers(1, 5, len(table))]
    table = table.append_column("negative_sources", pa.array(lists))
    table = table.drop_columns(["negatives"]) if only else table
    pq.write_table(table, tmp_path / "heart.parquet")
    one = made(folder, links={"test_negatives": str(tmp_path / "heart.parquet")}, task={"metric": "mrr"})
    found, expected = one.scores(("test",), unwatched), []
    for row in table.to_pylist():
        user, item = numbers([row["user_id"]]), numbers([row["item_id"]])
        others, replaced = numbers(row.get("negatives", [])), numbers(row["negative_sources"])
        of_others = scored(one, "test", user.expand(others.numel()), others)
        of_replaced = scored(one, "test", replaced, item.expand(replaced.numel()))
        negatives = torch.cat([of_others, of_replaced]).view(1, -1)
        expected.append(ogb_mrr(scored(one, "test", user, item), negatives))
    assert found["test"] == pytest.approx(sum(expected) / len(expected), rel=1e-12)
    assert 0 < one.run_task.evaluated(("test",), unwatched).baselines["test/popularity/mrr"] < 1


@pytest.mark.long
def test_pairs_for_all_links_give_the_hits_of_ogb(folder: Path) -> None:
    files = {f"{name}_negatives": str(folder / f"{name}-pairs.parquet") for name in ("val", "test")}
    for k in (3, 20, 60):
        one = made(folder, links=files, task={"metric": f"hits@{k}"})
        found = one.scores(("val", "test"), unwatched)
        for split in ("val", "test"):
            ends = ends_of_links(getattr(one.run_task.split, f"{split}_links"), BUYS)  # type: ignore[attr-defined]
            table = pq.read_table(folder / f"{split}-pairs.parquet")
            pairs = numbers(table["user_id"].to_pylist()), numbers(table["item_id"].to_pylist())
            expected = ogb_hits(scored(one, split, *ends), scored(one, split, *pairs), k)
            assert found[split] == pytest.approx(expected, rel=1e-12)
            assert f"{split}/roc-auc" in found
            assert f"{split}/mrr" not in found


def test_labeled_pairs_do_not_change_the_map_of_a_run(folder: Path) -> None:
    files = {f"{name}_negatives": str(folder / f"{name}-pairs.parquet") for name in ("val", "test")}
    task = {"metric": "map@5"}
    found, alone = (
        made(folder, links=links, task=task).scores(("val", "test"), unwatched) for links in (files, {})
    )
    assert 0 < found["val"] == alone["val"]
    assert found["test"] == alone["test"]
    assert "val/roc-auc" in found
    assert "val/mrr" not in found


def test_embeddings_are_computed_once_for_all_scores_of_a_split(folder: Path, tmp_path: Path) -> None:
    """Lists for both ends, map@K and full ranking use the same rows: one pass reports its progress."""
    table = pq.read_table(folder / "test-lists.parquet")
    table = table.append_column("negative_sources", pa.array([["u1"]] * len(table)))
    pq.write_table(table, tmp_path / "heart.parquet")
    links = {"test_negatives": str(tmp_path / "heart.parquet"), "ranking": True}
    done: list[int] = []
    one = made(folder, links=links, task={"metric": "map@5"})
    found = one.scores(("test",), lambda rows, _: done.append(rows))
    assert {"test/mrr", "test/full-ndcg@10"} <= found.keys()
    assert done
    assert done == sorted(done)


def test_a_metric_that_labeled_pairs_do_not_have_is_refused(folder: Path) -> None:
    """MRR is computed without being asked for where links have negatives; labeled pairs leave it out."""
    one = made(
        folder, links={"test_negatives": str(folder / "test-pairs.parquet")}, task={"metric": "hits@10"}
    )
    assert "test/mrr" not in one.scores(("test",), unwatched)
    with pytest.raises(
        ValueError, match="metric 'mrr': ranks each link among its negatives, but these links"
    ):
        one.scores(("test",), unwatched, ("mrr",))


def test_labeled_pairs_are_compared_by_hits_in_a_script() -> None:
    links, negatives = torch.rand(40, dtype=torch.float64), torch.rand(70, dtype=torch.float64)
    scores, labels = torch.cat([links, negatives]), torch.tensor([1] * 40 + [0] * 70)
    for k in (1, 10, 71):
        found = khop.training.edge_tasks.pair_metric(f"hits@{k}", scores, labels)
        assert found == ogb_hits(links, negatives, k)


def write_ogb(folder: Path, form: str) -> dict[str, dict[str, npt.NDArray[np.int64]]]:
    """Write a link set as OGB publishes it, with the negatives of ogbl-citation2 or of ogbl-collab."""
    random, parts = np.random.default_rng(4), dict[str, dict[str, npt.NDArray[np.int64]]]()
    for split, count in (("train", 300), ("valid", 40), ("test", 40)):
        ends = random.integers(60, size=(count, 2))
        lists, pairs = random.integers(60, size=(count, 7)), random.integers(60, size=(90, 2))
        parts[split] = (
            {"source_node": ends[:, 0], "target_node": ends[:, 1], "target_node_neg": lists}
            if form == "citation-v2"
            else {"edge": ends, "edge_neg": pairs}
        )
    gz_rows(folder / "raw/num-node-list.csv.gz", [[60]])
    gz_rows(folder / "raw/num-edge-list.csv.gz", [[0]])
    gz_rows(folder / "raw/node-feat.csv.gz", random.normal(size=(60, 4)).round(3).tolist())
    links(folder, "time", parts)
    return parts


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "form", "metric"),
    [("ogbl-citation2", "citation-v2", "mrr"), ("ogbl-collab", "collab", "hits@50")],
)
def test_an_imported_set_of_ogb_is_evaluated_with_its_published_negatives(
    name: str, form: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    parts = write_ogb(tmp_path / "sets" / form, form)
    assert exit_code("import", f"ogb:{name}", "graph", "--root", "sets") == 0
    assert "published negatives: graph-negatives" in capfd.readouterr().out.replace("\n", " ")
    assert exit_code("init", "graph") == 0
    Path("run.toml").write_text(capfd.readouterr().out)
    settings = ("--epochs", "1", "--hidden", "8", "--precision", "float64", "--out", "out")
    assert exit_code("train", "run.toml", *settings) == 0
    capfd.readouterr()
    assert exit_code("evaluate", "out", "--split", "all", "--json") == 0
    outcome = json.loads(capfd.readouterr().out.splitlines()[-1])
    one = prepare(read_toml(Path("out/config.toml")), tmp_path)
    one.restore(Path("out/checkpoints/best"), print, ())
    for split, published in (("val", "valid"), ("test", "test")):
        graph, given = getattr(one.run_task.split, split), parts[published]  # type: ignore[attr-defined]
        rows = node_rows(one.model.encoder, graph, graph.features, ["node"])["node"].detach()  # type: ignore[arg-type]
        if metric == "mrr":
            sources, destinations = rows[given["source_node"]], rows[given["target_node"]]
            negatives = (sources.unsqueeze(1) * rows[given["target_node_neg"]]).sum(2)
            expected = ogb_mrr((sources * destinations).sum(1), negatives)
        else:
            found = [rows[given[edges]].prod(1).sum(1) for edges in ("edge", "edge_neg")]
            expected = ogb_hits(found[0], found[1], 50)
        assert 0 < expected < 1
        assert outcome[f"{split}_{metric}"] == pytest.approx(expected, rel=1e-9)


@covered
def train_with_files(rank: int, device: torch.device, folder: str, graph: str, form: str, out: str) -> None:
    torch.set_num_threads(1)
    listed = () if form == "map" else ("val", "test")
    files = {f"{name}_negatives": str(Path(folder, f"{name}-{form}.parquet")) for name in listed}
    task = {"metric": {"lists": "mrr", "pairs": "hits@10", "map": "map@5"}[form]}
    values = raw(Path(folder), links=files, task=task).values
    parts = RawRun({**values, "graph": graph, "parts": {"placement": "all"}}, "run.toml")
    prepare(parts, Path(out)).trainer(Path(out), Unwatched()).fit()


@pytest.mark.long
@pytest.mark.parametrize("form", ["lists", "pairs", "map"])
def test_scores_are_the_same_on_one_process_and_on_ranks_of_a_partitioned_graph(
    form: str, tmp_path: Path, ranks: StartedRanks
) -> None:
    write_files(tmp_path)
    khop.partition_graph(tmp_path / "shop", tmp_path / "parts", 3, method="hash", seed=1)
    found = {}
    several = (("whole", 2, "shop"), ("parts", 2, "parts"), ("four", 4, "parts"))
    for name, count, graph in (("one", 1, "shop"), *several):
        arguments = (str(tmp_path), str(tmp_path / graph), form, str(tmp_path / name))
        ranks.launch(train_with_files, count, arguments)
        (line,) = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        found[name] = {n: v for n, v in json.loads(line).items() if isinstance(v, float)}
    assert len(found["one"]) > 2
    for name, _, _ in several:
        assert found[name] == pytest.approx(found["one"], rel=1e-9), name


@pytest.mark.long
@pytest.mark.parametrize("form", ["lists", "pairs"])
def test_a_killed_run_with_files_continues_with_equal_bits(form: str, folder: Path, tmp_path: Path) -> None:
    files = {f"{name}_negatives": str(folder / f"{name}-{form}.parquet") for name in ("val", "test")}
    task = {"metric": "hits@10" if form == "pairs" else "mrr"}
    often = {"checkpoint": {"steps": 1}, "evaluation": {"every_steps": 3}, "training": {"epochs": 2}}
    found = raw(folder, links=files, task=task, **often).values
    assert_equal_runs(*killed_and_continued(dict(found), tmp_path))


@pytest.mark.long
def test_the_command_takes_files_for_an_evaluation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    settings = (
        'graph = "shop"\ntask = { kind = "link-prediction", target = "user buys item" }\n'
        "sampler = { fanouts = [3] }\nmodel = { hidden = 4, embedding = 4 }\n"
        'training = { epochs = 1 }\nlinks = { val_negatives = "val-lists.parquet" }\n'
    )
    (tmp_path / "run.toml").write_text(settings)
    assert exit_code("train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")) == 0
    capfd.readouterr()
    written = tmp_path / "scores.parquet"
    words = ("--split", "val", "--metric", "hits@2", "--predictions", str(written), "--json")
    assert exit_code("evaluate", str(tmp_path / "run"), *words) == 0
    outcome, rows = json.loads(capfd.readouterr().out.splitlines()[-1]), pq.read_table(written)
    assert float(np.mean(1 / rows["rank"].to_numpy())) == pytest.approx(outcome["val_mrr"], rel=1e-12)
    files = ("--link-val-negatives", "val-pairs.parquet", "--split", "val")
    assert exit_code("evaluate", str(tmp_path / "run"), *files) != 0
    assert "ranks each link among its negatives" in capfd.readouterr().err.replace("\n", " ")


@pytest.mark.core(1)
@pytest.mark.parametrize("turned", [False, True])
def test_links_of_an_undirected_type_have_the_direction_of_their_rows(tmp_path: Path, turned: bool) -> None:
    """Sets of OGB and HeaRT list a link in any direction. Negatives replace the destination of the row."""
    random, knows = np.random.default_rng(3), ("node", "knows", "node")
    ends = np.unique(np.sort(random.integers(20, size=(80, 2)), axis=1), axis=0)
    ends = torch.from_numpy(ends[ends[:, 0] < ends[:, 1]].T.copy())
    both = torch.cat([ends, ends.flip(0)], 1)
    part = (torch.arange(ends.shape[1]) % 5 - 2).clamp(min=0)  # 0 training, 1 validation, 2 test
    links = khop.EdgeTable(*both, {"split": part.repeat(2).to(torch.int8)}, reverse_of=knows)
    khop.write_graph(tmp_path / "graph", {"node": khop.NodeTable(20)}, {knows: links})
    files = {}
    for number, split in ((1, "val"), (2, "test")):
        of_split = ends[:, part == number]
        sources, destinations = of_split.flip(0) if turned else of_split
        negatives = random.integers(20, size=(len(sources), 4)).tolist()
        table = pa.table(
            {"source": sources.numpy(), "destination": destinations.numpy(), "negatives": negatives}
        )
        pq.write_table(table, tmp_path / f"{split}.parquet")
        files[f"{split}_negatives"] = str(tmp_path / f"{split}.parquet")
    given = {
        "graph": str(tmp_path / "graph"),
        "task": {"kind": "link-prediction"},
        "links": {**files, "decoder": "mlp"},
        "model": {"hidden": 8, "embedding": 4},
        "precision": "float64",
    }
    one = prepare(RawRun(given, "run.toml"), tmp_path)
    table, split = pq.read_table(tmp_path / "val.parquet"), one.run_task.split  # type: ignore[attr-defined]
    rows = node_rows(one.model.encoder, split.val, split.val.features, ["node"])["node"]  # type: ignore[arg-type]
    sources, destinations, others = (torch.tensor(column.to_pylist()) for column in table.columns)
    with torch.no_grad():
        score = one.model.decoder(knows)  # type: ignore[operator]
        of_links = score(rows[sources], rows[destinations])
        of_others = score(rows[sources].unsqueeze(1), rows[others])
    assert one.scores(("val",), unwatched)["val"] == pytest.approx(ogb_mrr(of_links, of_others), rel=1e-12)


@pytest.mark.parametrize(
    ("links", "rows", "expected"),
    [
        ([(1, 2), (2, 1)], [(2, 1), (2, 1)], [1, 0]),
        ([(1, 2), (1, 2)], [(1, 2), (2, 1)], [0, 1]),
        ([(1, 2), (1, 2)], [(2, 1), (2, 1)], [0, 1]),
        ([(1, 2), (1, 2), (2, 1)], [(2, 1), (2, 1), (2, 1)], [1, 2, 0]),
        ([(1, 2), (2, 1), (3, 1)], [(2, 1), (1, 3), (1, 2)], [2, 0, 1]),
    ],
)
def test_links_of_an_undirected_type_use_all_rows(
    tmp_path: Path, links: list[tuple[int, int]], rows: list[tuple[int, int]], expected: list[int]
) -> None:
    knows = ("node", "knows", "node")
    edges = khop.EdgeTable(torch.tensor([1, 2]), torch.tensor([2, 1]), reverse_of=knows)
    khop.write_graph(tmp_path / "graph", {"node": khop.NodeTable(20)}, {knows: edges})
    sources, destinations = zip(*rows, strict=True)
    lists = [[10 + row] for row in range(len(rows))]
    table = pa.table({"source": sources, "destination": destinations, "negatives": lists})
    pq.write_table(table, tmp_path / "rows.parquet")
    file = NegativeFile.open(
        str(tmp_path / "rows.parquet"), "links.val_negatives", knows, known_folder(tmp_path / "graph")
    )
    found, _ = file.joined_to(khop.Links({knows: torch.tensor(links).T}))
    assert found.negatives is not None
    assert found.negatives[knows].flatten().tolist() == [10 + row for row in expected]


def test_a_link_without_negatives_is_named_before_training(folder: Path, tmp_path: Path) -> None:
    table = pq.read_table(folder / "val-lists.parquet")
    lists = [None, *table["negatives"].to_pylist()[1:]]
    pq.write_table(table.set_column(2, "negatives", pa.array(lists)), tmp_path / "none.parquet")
    with pytest.raises(ValueError, match=r"link from node \d+ to node \d+ has no negative, and so for 1 of"):
        made(folder, links={"val_negatives": str(tmp_path / "none.parquet")})
    sources = table.append_column("negative_sources", pa.array([["u1"]] * len(table)))
    pq.write_table(sources.set_column(2, "negatives", pa.array(lists)), tmp_path / "both.parquet")
    one = made(folder, links={"val_negatives": str(tmp_path / "both.parquet")})
    assert 0 < one.scores(("val",), unwatched)["val"] <= 1


def test_the_reverse_type_has_the_columns_of_the_table(folder: Path, tmp_path: Path) -> None:
    """The file for links from items to users names the ids as the imported table does."""
    target = {"target": "item bought-by user"}
    ends = ends_of_links(made(folder, task=target).run_task.split.val_links, REVERSE).numpy()  # type: ignore[attr-defined]
    columns = {"item_id": ids(ends[0], "i"), "user_id": ids(ends[1], "u")}
    table = pa.table({**columns, "negatives": [["u1"]] * ends.shape[1]})
    pq.write_table(table, tmp_path / "turned.parquet")
    one = made(folder, task=target, links={"val_negatives": str(tmp_path / "turned.parquet")})
    assert 0 < one.scores(("val",), unwatched)["val"] <= 1


def test_a_resumed_run_has_the_same_negatives(folder: Path, tmp_path: Path) -> None:
    table, path = pq.read_table(folder / "val-lists.parquet"), tmp_path / "val.parquet"
    pq.write_table(table, path)

    def trainer() -> khop.Trainer:
        return made(folder, links={"val_negatives": str(path)}).trainer(tmp_path / "out", Unwatched())

    trainer().fit()
    trainer().resume()
    lists = [["i1", "i2"], *table["negatives"].to_pylist()[1:]]
    pq.write_table(table.set_column(2, "negatives", pa.array(lists)), path)
    with pytest.raises(ValueError, match=r"content of links\.val_negatives was \w+ and is \w+"):
        trainer().resume()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.slice(1), r"has no row for 1 of \d+ links, such as from node \d+ to node \d+"),
        (lambda table: table.drop_columns(["item_id"]), r"no column 'item_id'"),
        (
            lambda table: table.set_column(2, "negatives", pa.array([["who"]] * len(table))),
            r"row 1: links\.val_negatives: item_id is 'who', and no node has this id",
        ),
        (
            lambda table: table.set_column(2, "negatives", pa.array([["i1"], *[[]] * (len(table) - 1)])),
            "has no negative",
        ),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_named(folder: Path, tmp_path: Path, change: Any, words: str) -> None:  # noqa: ANN401
    path = tmp_path / "changed.parquet"
    pq.write_table(change(pq.read_table(folder / "val-lists.parquet")), path)
    with pytest.raises(ValueError, match=words):
        made(folder, links={"val_negatives": str(path)}).scores(("val",), unwatched)
