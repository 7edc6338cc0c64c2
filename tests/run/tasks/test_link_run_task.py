"""A run about links: split without leaks, trained without messages along what is asked, measured exactly.

Ndcg and recall of a run among all destinations are those of a count by hand.

Filtered MRR of a run's held-out links is that of a count by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log2
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch_geometric.metrics import LinkPredMAP

from khop.batch import Batch, Sample
from khop.draw import DegreeNegatives, DrawKey, NegativeMode, UniformNegatives
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.inference.chunks import evaluating, unwatched
from khop.inference.link_evaluation import node_rows, triples_of_links
from khop.run.build import Run, prepare
from khop.run.read import RawRun, with_options
from khop.run.tasks.link_run_task import LinkTask, _is_all_known
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.links.links import LinkSampler
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType
from khop.training.step_clock import Unwatched
from khop.training.tasks import score_name
from support.knowledge import ENTITIES, FACT, Triples, as_column
from support.small_link_folders import BOUGHT_BY, BUYS, SEES, write_shop

Prepare = Callable[..., Run]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shop(tmp_path_factory.mktemp("graphs") / "shop")


@pytest.fixture
def prepared(shop: Path) -> Prepare:
    def call(**options: object) -> Run:
        values = {
            "graph": str(shop),
            "task": {"kind": "link-prediction", "target": "user buys item"},
            "links": {"eval_negatives": 10},
            "sampler": {"fanouts": [{"user sees shop": 0, "*": 5}] * 2},
            "model": {"hidden": 16},
            "training": {"batch_size": 256},
        }
        named = {name.replace("__", "."): value for name, value in options.items()}
        return prepare(with_options(RawRun(values, "run.toml"), named), shop.parent / "cache")

    return call


def task_of(run: Run) -> LinkTask:
    assert isinstance(run.run_task, LinkTask)
    return run.run_task


def pairs(ends: torch.Tensor) -> set[tuple[int, ...]]:
    return set(map(tuple, ends.T.tolist()))


def messages(batch: Batch, edge_type: tuple[str, str, str]) -> set[tuple[int, ...]]:
    """The edges of a type that carry messages in a batch, by global ids."""
    found: set[tuple[int, ...]] = set()
    for block in batch.blocks:
        source, destination = block.adjacencies[edge_type].edge_index
        nodes = batch.sample.nodes
        found |= pairs(torch.stack([nodes[edge_type[0]][source], nodes[edge_type[2]][destination]]))
    return found


def test_nothing_that_is_asked_or_held_out_carries_a_message(prepared: Prepare) -> None:
    run = prepared()
    split = task_of(run).split
    held_out = pairs(split.val_links.edges[BUYS]) | pairs(split.test_links.edges[BUYS])
    assert held_out
    for batch in run.loader().epoch(0):
        links = batch.links[BUYS]
        count = links.num_links
        asked = pairs(
            torch.stack(
                [
                    batch.seed_nodes["user"][links.source[:count]],
                    batch.seed_nodes["item"][links.destination[:count]],
                ]
            )
        )
        forward, backward = messages(batch, BUYS), {(u, i) for i, u in messages(batch, BOUGHT_BY)}
        assert forward | backward
        assert not (forward | backward) & (asked | held_out)


def test_edge_types_that_no_hop_follows_are_not_evaluated_either(prepared: Prepare) -> None:
    run_task = task_of(prepared())
    assert run_task.split.train.schema.edge_types == (BUYS, BOUGHT_BY)
    assert run_task.split.train.schema.node_types == ("user", "item")


def test_without_neighbors_a_run_knows_only_the_nodes_themselves(prepared: Prepare) -> None:
    run_task = task_of(prepared(sampler__fanouts=[{"*": 0}, {"*": 0}]))
    assert not [name for name, _ in run_task.model.named_parameters() if "neighbors" in name]
    assert 0 < run_task.scores(("val",), unwatched)["val"] < 1


@pytest.mark.long
def test_equal_runs_have_equal_splits_pairs_and_weights(prepared: Prepare) -> None:
    one, again, other = (task_of(prepared(training__seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one.split.val_links.edges[BUYS], again.split.val_links.edges[BUYS])
    assert not torch.equal(one.split.val_links.edges[BUYS], other.split.val_links.edges[BUYS])
    assert one.split.test_links.negatives is not None
    assert again.split.test_links.negatives is not None
    assert torch.equal(one.split.test_links.negatives[BUYS], again.split.test_links.negatives[BUYS])
    for left, right in zip(one.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.core(1)
@pytest.mark.parametrize("metric", ["roc-auc", "hits@3", "map@2", "full-ndcg@10"])
def test_a_run_stops_at_a_target_of_another_metric(prepared: Prepare, tmp_path: Path, metric: str) -> None:
    """Evaluations compute the metric of the target besides that of the task."""
    target = {"metric": metric, "value": 0.001}
    more = {"links__ranking": metric.startswith("full-")}
    run = prepared(training__target=target, training__epochs=3, **more)
    (record,) = run.trainer(tmp_path / "out", Unwatched()).fit().records
    assert record[score_name(f"val/{metric}", metric)] >= 0.001
    with pytest.raises(ValueError, match=r"training\.target\.metric: metric 'rmse': must be one of mrr"):
        prepared(training__target={"metric": "rmse", "value": 1.0}).trainer(tmp_path / "no", Unwatched())


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("metric", ["full-ndcg@7", "full-mrr", "filtered-mrr@3", "filtered-hits@5"])
def test_a_target_of_a_ranking_that_is_not_computed_is_refused_before_training(
    prepared: Prepare, tmp_path: Path, metric: str, on: bool
) -> None:
    setting = "ranking" if metric.startswith("full") else "filtered"
    run = prepared(training__target={"metric": metric, "value": 0.5}, **{f"links__{setting}": on})
    words = (
        rf"target\.metric is '{metric}': evaluations with links\.{setting} = true compute f.*; set it, and"
    )
    with pytest.raises(ValueError, match=words):
        run.trainer(tmp_path / "no", Unwatched())


def test_every_metric_of_every_split_is_measured(prepared: Prepare) -> None:
    run_task = task_of(prepared(task__metric="average-precision"))
    found = run_task.scores(run_task.splits, unwatched)
    assert list(found) == ["val", "val/mrr", "val/roc-auc", "test", "test/mrr", "test/roc-auc"]
    assert all(0 < value < 1 for value in found.values())
    assert run_task.scores(("test",), unwatched)["test"] == found["test"]


def test_several_edge_types_share_an_encoder_and_are_measured_each(tmp_path: Path) -> None:
    values = {
        "graph": str(write_shop(tmp_path / "shop", one_way=True)),
        "task": {"kind": "link-prediction", "target": "user buys item, user sees shop"},
        "links": {"eval_negatives": 4, "decoder": "distmult"},
        "sampler": {"fanouts": [5, 5]},
        "model": {"hidden": 16, "embedding": 8},
        "training": {"batch_size": 256},
    }
    run_task = task_of(prepare(RawRun(values, "run.toml"), tmp_path / "cache"))
    assert run_task.edge_types == (BUYS, SEES)
    assert run_task.node_types == ("user", "item", "shop")
    assert dict(run_task.split.val_links.counts) == {BUYS: 110, SEES: 12}
    batch = run_task.loader().batch(0, 0)
    counts = {edge_type: rows.num_links for edge_type, rows in batch.links.items()}
    assert set(counts) == {BUYS, SEES}
    losses = run_task.task.losses(run_task.model(batch), batch)
    assert losses.numel() == 2 * sum(counts.values()), "a link and its negative, of both types"
    found = run_task.evaluated(("val",), unwatched, ["hits@10"])
    each = [found.scores[f"val/{words}/mrr"] for words in ("user buys item", "user sees shop")]
    assert found.scores["val"] == pytest.approx(sum(each) / 2)
    assert {"val/roc-auc", "val/hits@10", "val/user sees shop/hits@10"} <= set(found.scores)
    assert found.baselines["val/popularity/mrr"] > 0
    with pytest.raises(ValueError, match="pairs and recommendations need a single edge type"):
        _ = run_task.edge_type


LIKES = ("user", "likes", "item")


def on_two_types(
    tmp_path: Path, columns: dict[tuple[str, str, str], dict[str, torch.Tensor]], **links: object
) -> Run:
    """Prepare a run on two edge types of 12 links, with these columns, in a graph with cut-offs."""
    ends = torch.arange(12)
    tables = {t: EdgeTable(ends, ends // 2, of_type) for t, of_type in columns.items()}
    nodes = {"user": NodeTable(columns={"x": torch.zeros(12, 1)}), "item": NodeTable(20)}
    documents = {"import.json": b'{"time_split": {"val": 6, "test": 9}}'}
    values = {
        "graph": str(write_graph(tmp_path / "g", nodes, tables, documents=documents)),
        "task": {"kind": "link-prediction", "target": "user buys item, user likes item"},
        "links": {"eval_negatives": 2, **links},
        "sampler": {"fanouts": [2]},
    }
    return prepare(RawRun(values, "run.toml"), tmp_path / "cache")


@pytest.mark.parametrize(
    ("split", "counts"),
    [("time", {BUYS: [6, 3, 3], LIKES: [4, 3, 5]}), ("auto", {BUYS: [9, 1, 2], LIKES: [8, 2, 2]})],
)
def test_several_edge_types_are_split_by_time_or_by_a_column(
    tmp_path: Path, split: str, counts: dict[tuple[str, str, str], list[int]]
) -> None:
    parts = {BUYS: [0] * 9 + [1] + [2] * 2, LIKES: [0] * 8 + [1] * 2 + [2] * 2}
    columns = {
        t: {"time": torch.arange(12) + 2 * (t == LIKES), "split": torch.tensor(of_type, dtype=torch.int8)}
        for t, of_type in parts.items()
    }
    task = task_of(on_two_types(tmp_path, columns, split=split))
    links = [task.split.train_links, task.split.val_links, task.split.test_links]
    assert {t: [part.edges[t].shape[1] for part in links] for t in (BUYS, LIKES)} == counts
    assert all(part.negatives is not None and len(part.negatives[LIKES]) for part in links[1:])
    assert task.scores(("val",), unwatched)["val/user likes item/mrr"] > 0


@pytest.mark.parametrize(
    ("columns", "split", "message"),
    [
        ({"split": torch.arange(12) % 3}, "auto", 'those of user likes item at random; give "random"'),
        ({"split": torch.arange(12) % 3}, "column", "have no column 'split' to split by"),
        ({"time": torch.arange(12)}, "time", "have no column 'time' to split by"),
    ],
)
def test_several_edge_types_are_split_in_one_way(
    tmp_path: Path, columns: dict[str, torch.Tensor], split: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        on_two_types(tmp_path, {BUYS: columns, LIKES: {}}, split=split)


@pytest.mark.core(1)
@pytest.mark.parametrize("column", ["split", "time"])
def test_a_reverse_type_without_the_column_has_no_edges_of_held_out_links(
    tmp_path: Path, column: str
) -> None:
    """`auto` chooses the split by the target's columns; the reverse type has none."""
    back, users, items = ("item", "bought-by", "user"), torch.arange(12), torch.arange(12) // 2
    of_links = {"split": torch.tensor([0] * 6 + [1] * 3 + [2] * 3), "time": torch.arange(12)}
    edges = {
        BUYS: EdgeTable(users, items, {column: of_links[column]}, reverse_of=back),
        back: EdgeTable(items, users),
    }
    nodes = {
        "user": NodeTable(columns={"x": torch.zeros(12, 1)}),
        "item": NodeTable(columns={"x": torch.zeros(6, 1)}),
    }
    documents = {"import.json": b'{"time_split": {"val": 6, "test": 9}}'}
    values = {
        "graph": str(write_graph(tmp_path / "g", nodes, edges, documents=documents)),
        "task": {"kind": "link-prediction", "target": "user buys item"},
        "links": {"eval_negatives": 2},
        "sampler": {"fanouts": [2]},
    }
    split = task_of(prepare(RawRun(values, "run.toml"), tmp_path / "cache")).split
    for graph, first in ((split.train, 6), (split.val, 6), (split.test, 9)):
        assert graph.csc(back).destinations().tolist() == list(range(first))


def test_links_are_measured_where_they_are_held_out(prepared: Prepare) -> None:
    with pytest.raises(ValueError, match=r"split 'train': only held-out links can be evaluated, in \['val'"):
        task_of(prepared()).scores(("train",), unwatched)


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, UniformNegatives(1, NegativeMode.BINARY)),
        (
            {"links__loss__kind": "bpr", "links__negatives_per_positive": 3},
            UniformNegatives(3, NegativeMode.TRIPLET),
        ),
        (
            {"links__negatives": "degree", "links__exact": True},
            DegreeNegatives(1, NegativeMode.BINARY, exact=True),
        ),
    ],
)
def test_negatives_are_those_that_the_run_names(
    prepared: Prepare, options: dict[str, object], expected: object
) -> None:
    run_task = task_of(prepared(**options))
    assert run_task.negatives() == expected
    losses = run_task.task.losses(
        run_task.model(next(iter(run_task.loader().epoch(0)))), run_task.loader().batch(0, 0)
    )
    assert losses.isfinite().all()


def test_a_graph_without_a_reverse_leaves_the_edges_themselves_out(prepared: Prepare) -> None:
    run = prepared()
    run_task = task_of(run)
    topology = run_task.split.train.topology
    assert topology.schema.reverse(BUYS) == BOUGHT_BY
    lonely = replace(run_task.split, train=run_task.split.train.only([BUYS]))
    alone = replace(run_task, split=lonely, fanouts=tuple({BUYS: hop[BUYS]} for hop in run_task.fanouts))
    assert messages(alone.loader().batch(0, 0), BUYS)


def test_links_of_types_with_and_without_a_reverse_train_together(prepared: Prepare) -> None:
    run = prepared(task__target="user buys item, user sees shop", sampler__fanouts=[5, 5])
    sees = ("user", "sees", "shop")
    batches = list(run.loader().epoch(0))
    assert {t for batch in batches for t in batch.links} == {BUYS, sees}
    for batch in batches:
        for edge_type, rows in batch.links.items():
            ends = [
                batch.seed_nodes[edge_type[0]][rows.source],
                batch.seed_nodes[edge_type[2]][rows.destination],
            ]
            asked = pairs(torch.stack([of_end[: rows.num_links] for of_end in ends]))
            assert asked
            assert not asked & messages(batch, edge_type)


EVERY_TYPE_BUT_SHOPS = [{"user sees shop": 0, "*": -1}] * 2


def test_a_sample_of_all_neighbors_measures_what_exact_evaluation_does(prepared: Prepare) -> None:
    exact = task_of(prepared()).scores(("val", "test"), unwatched)
    for size in (7, 4096):
        sampled = prepared(evaluation__fanouts=EVERY_TYPE_BUT_SHOPS, evaluation__batch_size=size)
        assert task_of(sampled).scores(("val", "test"), unwatched) == pytest.approx(exact, rel=1e-4)


def test_evaluation_follows_no_edge_type_that_training_does_not(prepared: Prepare) -> None:
    run_task = task_of(prepared(evaluation__fanouts=[3, 3]))
    assert run_task.measured == ({BUYS: 3, BOUGHT_BY: 3},) * 2
    assert 0 < run_task.scores(("val",), unwatched)["val"] < 1
    assert run_task.scores(("val",), unwatched) == run_task.scores(("val",), unwatched)


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Purchases of 200 days, of items that came out on the first 100."""
    random = torch.Generator().manual_seed(1)
    users, items = torch.randint(30, (600,), generator=random), torch.randint(40, (600,), generator=random)
    out = torch.arange(40) * 5 // 2
    days = out[items] + torch.randint(100, (600,), generator=random)
    nodes = {
        "user": NodeTable(columns={"x": torch.randn(30, 4, generator=random)}),
        "item": NodeTable(columns={"x": torch.randn(40, 4, generator=random), "day": out}),
    }
    edges = {
        BUYS: EdgeTable(users, items, {"day": days}, reverse_of=BOUGHT_BY),
        BOUGHT_BY: EdgeTable(items, users, {"day": days}),
    }
    return write_graph(tmp_path_factory.mktemp("graphs") / "diary", nodes, edges, sort_by="day")


def test_with_times_no_message_and_no_negative_is_later_than_its_link(
    prepared: Prepare, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Seeds, Sample]] = []
    sample_of = LinkSampler.sample

    def noted(sampler: LinkSampler, seeds: Seeds, key: DrawKey) -> Sample:
        asked.append((seeds, sample_of(sampler, seeds, key)))
        return asked[-1][1]

    monkeypatch.setattr(LinkSampler, "sample", noted)
    fanouts = {"sampler__fanouts": [4, 3], "evaluation__fanouts": [4, 3], "training__batch_size": 50}
    run = prepared(
        graph=str(diary),
        sampler__time="day",
        links__negatives_per_positive=2,
        links__eval_negatives=2,
        **fanouts,
    )
    trained = list(run.loader().epoch(0))
    found = task_of(run).scores(("val", "test"), unwatched)
    assert all(0 < value < 1 for value in found.values())
    assert len(asked) > len(trained)
    out, columns = run.graph.columns["item"]["day"], run.graph.columns[BUYS]
    csc = run.graph.csc(BUYS)
    items = torch.repeat_interleave(torch.arange(csc.num_rows), csc.indptr.diff())
    first = torch.full((30, 40), 1000).view(-1)
    first.scatter_reduce_(0, csc.indices.long() * 40 + items, columns["day"], "amin")
    edges = 0
    for seeds, sample in asked:
        assert seeds.links is not None
        assert sample.trees is not None
        times = seeds.links.by_type[BUYS].times
        assert times is not None
        assert times.min() < out.max()  # there is a future to hear of
        limits = times.repeat(4)  # of both ends, and of the first and the second negatives
        seed_items = sample.nodes["item"][sample.seed_index["item"]]
        assert bool((out[seed_items] <= limits[times.numel() :]).all())
        for block in sample.blocks:
            source, destination = block.adjacencies[BOUGHT_BY].edge_index
            users = sample.nodes["user"][destination]
            day = first[users * 40 + sample.nodes["item"][source]]
            assert bool((day <= limits[sample.trees["user"][destination]]).all())
            edges += day.numel()
    assert edges > 1000


def candidate_ranking_task_of(home: Path, decoder: str, **links: object) -> LinkTask:
    values = {
        "graph": str(write_shop(home / "graph")),
        "task": {"kind": "link-prediction", "target": "user buys item"},
        "links": {"decoder": decoder, "ranking": True, "eval_negatives": 3, **links},
        "sampler": {"fanouts": [{"user sees shop": 0, "*": 3}]},
        "model": {"hidden": 4},
    }
    task = prepare(RawRun(values, "run.toml"), home / "cache").run_task
    assert isinstance(task, LinkTask)
    return task


def candidate_ranking_pairs(*lists: LinkList) -> set[tuple[int, int]]:
    found = [triples_of_links(links, BUYS)[[0, 2]].T.tolist() for links in lists]
    return {(source, destination) for each in found for source, destination in each}


@pytest.mark.core(1)
@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_all_destinations_are_ranked_without_links_of_the_splits_before(tmp_path: Path, decoder: str) -> None:
    task = candidate_ranking_task_of(tmp_path, decoder)
    split = task.split
    for name, graph, links, before in (
        ("val", split.val, split.val_links, (split.train_links,)),
        ("test", split.test, split.test_links, (split.train_links, split.val_links)),
    ):
        found = task.scores((name,), unwatched)
        rows = node_rows(task.model.encoder, graph, graph.features, ["user", "item"])
        seen = candidate_ranking_pairs(*before)
        held_out = candidate_ranking_pairs(links) - seen
        recall, ndcg = [], []
        with evaluating(task.model):
            for source in {source for source, _ in held_out}:
                scores = task.model.decoder(BUYS).grid(rows["user"][[source]], rows["item"])[0]
                order = [n for n in scores.argsort(descending=True).tolist() if (source, n) not in seen]
                wanted = {destination for of, destination in held_out if of == source}
                hits = [place for place, n in enumerate(order[:10]) if n in wanted]
                recall.append(len(hits) / len(wanted))
                best = sum(1 / log2(place + 2) for place in range(min(10, len(wanted))))
                ndcg.append(sum(1 / log2(place + 2) for place in hits) / best)
        assert found[f"{name}/full-recall@10"] == pytest.approx(mean(recall), abs=1e-6)
        assert found[f"{name}/full-ndcg@10"] == pytest.approx(mean(ndcg), abs=1e-6)
        assert found[f"{name}/full-recall@20"] >= found[f"{name}/full-recall@10"]


def test_links_with_relations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"links.ranking is true and links.relation is 'r': .* links.filt"):
        candidate_ranking_task_of(tmp_path, "distmult", relation="r")


@pytest.mark.parametrize("known", [[[0, 1], [2, 0]], [[0, 1, 1], [2, 0, 1]]])
def test_only_links_of_earlier_splits_leave_nothing_to_rank(known: list[list[int]]) -> None:
    held_out = torch.tensor([[1, 0, 1], [0, 2, 0]])
    assert _is_all_known(held_out, torch.tensor(known), 3)
    assert not _is_all_known(torch.cat([held_out, torch.tensor([[2], [1]])], dim=1), torch.tensor(known), 3)


def filtered_ranking_task_of(home: Path, decoder: str) -> LinkTask:
    as_column(home / "graph", Triples.drawn())
    values = {
        "graph": str(home / "graph"),
        "task": {"kind": "link-prediction", "target": "entity fact entity"},
        "links": {"decoder": decoder, "relation": "r", "filtered": True, "eval_negatives": 3},
        "sampler": {"fanouts": [3]},
        "model": {"hidden": 4},
    }
    task = prepare(RawRun(values, "run.toml"), home / "cache").run_task
    assert isinstance(task, LinkTask)
    return task


@pytest.mark.core(1)
@pytest.mark.parametrize("decoder", ["distmult", "rotate"])
def test_both_ends_are_ranked_among_all_nodes_without_known_triples(tmp_path: Path, decoder: str) -> None:
    task = filtered_ranking_task_of(tmp_path, decoder)
    found = task.scores(("test",), unwatched)
    split, ranks = task.split, []
    rows = node_rows(task.model.encoder, split.test, split.test.features, ["entity"])["entity"]
    lists = (split.train_links, split.val_links, split.test_links)
    known = {tuple(triple) for links in lists for triple in triples_of_links(links, FACT).T.tolist()}
    score = task.model.decoder(FACT)
    with evaluating(task.model):
        for source, relation, destination in triples_of_links(split.test_links, FACT).T.tolist():
            for place in (0, 2):
                triple = [source, relation, destination]
                own, scores = triple[place], []
                for other in range(ENTITIES):
                    triple[place] = other
                    if other == own or tuple(triple) not in known:
                        ends = rows[triple[0]], rows[triple[2]]
                        scores.append((float(score(*ends, torch.tensor(relation))), other))
                mine = next(value for value, other in scores if other == own)
                above = sum(value > mine for value, _ in scores)
                tied = sum(value == mine for value, _ in scores) - 1
                ranks.append(1 + above + tied / 2)
    assert found["test/filtered-mrr"] == pytest.approx(mean(1 / rank for rank in ranks), abs=1e-6)
    assert found["test/filtered-hits@3"] == pytest.approx(mean(rank <= 3 for rank in ranks))


NEAR = ("place", "near", "place")


def undirected_task_of(
    home: Path, metric: str = "mrr", reverse: EdgeType | None = NEAR, **links: object
) -> LinkTask:
    """A run about links of an undirected edge type, some from a node to itself."""
    chosen = torch.rand(30, 30, generator=torch.Generator().manual_seed(0)) < 0.15
    ends = (chosen | chosen.T).nonzero().T
    nodes = {"place": NodeTable(columns={"x": torch.eye(30)})}
    write_graph(home / "graph", nodes, {NEAR: EdgeTable(*ends, reverse_of=reverse)})
    values = {
        "graph": str(home / "graph"),
        "task": {"kind": "link-prediction", "target": "place near place", "metric": metric},
        "links": {"eval_negatives": 3, **links},
        "sampler": {"fanouts": [3]},
        "model": {"hidden": 4},
    }
    return task_of(prepare(RawRun(values, "run.toml"), home / "cache"))


def undirected_pairs(*lists: LinkList) -> set[tuple[int, ...]]:
    ends = torch.cat([triples_of_links(links, NEAR)[[0, 2]] for links in lists], dim=1)
    return pairs(ends) | pairs(ends.flip(0))


@pytest.mark.parametrize("name", ["val", "test"])
def test_an_undirected_link_is_known_and_found_from_both_ends(tmp_path: Path, name: str) -> None:
    task = undirected_task_of(tmp_path, ranking=True)
    split = task.split
    graph, links, before = {
        "val": (split.val, split.val_links, [split.train_links]),
        "test": (split.test, split.test_links, [split.train_links, split.val_links]),
    }[name]
    found = task.scores((name,), unwatched)
    rows = node_rows(task.model.encoder, graph, graph.features, ["place"])["place"]
    seen = undirected_pairs(*before) | {(node, node) for node in range(30)}
    held_out = undirected_pairs(links) - seen
    recall, ndcg = [], []
    with evaluating(task.model):
        scores = task.model.decoder(NEAR).grid(rows, rows)
    for source in {source for source, _ in held_out}:
        order = [n for n in scores[source].argsort(descending=True).tolist() if (source, n) not in seen]
        wanted = {destination for of, destination in held_out if of == source}
        hits = [place for place, n in enumerate(order[:10]) if n in wanted]
        recall.append(len(hits) / len(wanted))
        best = sum(1 / log2(place + 2) for place in range(min(10, len(wanted))))
        ndcg.append(sum(1 / log2(place + 2) for place in hits) / best)
    assert found[f"{name}/full-recall@10"] == pytest.approx(mean(recall), abs=1e-6)
    assert found[f"{name}/full-ndcg@10"] == pytest.approx(mean(ndcg), abs=1e-6)


@pytest.mark.parametrize("reverse", [NEAR, None], ids=["undirected", "directed"])
@pytest.mark.parametrize("k", [3, 10])
def test_map_is_that_of_torch_geometric_and_undirected_links_count_from_both_ends(
    tmp_path: Path, k: int, reverse: EdgeType | None
) -> None:
    task = undirected_task_of(tmp_path, metric=f"map@{k}", reverse=reverse)
    found = task.scores(("test",), unwatched)
    graph, ends = task.split.test, triples_of_links(task.split.test_links, NEAR)[[0, 2]]
    links = torch.cat([ends, ends.flip(0)], dim=1).unique(dim=1) if reverse else ends
    rows = node_rows(task.model.encoder, graph, graph.features, ["place"])["place"]
    with evaluating(task.model):
        scores = task.model.decoder(NEAR).grid(rows, rows)
    sources, numbers = links[0].unique(return_inverse=True)
    metric = LinkPredMAP(k)
    metric.update(scores[sources].argsort(descending=True)[:, :k], torch.stack([numbers, links[1]]))
    assert found["test"] == pytest.approx(float(metric.compute()), abs=1e-6)


def test_the_reverse_of_a_known_undirected_link_is_not_a_candidate(tmp_path: Path) -> None:
    task = undirected_task_of(tmp_path, filtered=True, decoder="distmult")
    found = task.scores(("test",), unwatched)
    split, ranks = task.split, []
    rows = node_rows(task.model.encoder, split.test, split.test.features, ["place"])["place"]
    known = undirected_pairs(split.train_links, split.val_links, split.test_links)
    relation = torch.tensor(0)
    with evaluating(task.model):
        score = task.model.decoder(NEAR)
        for source, _, destination in triples_of_links(split.test_links, NEAR).T.tolist():
            for node, end in ((source, destination), (destination, source)):  # distmult is symmetric
                others = [n for n in range(30) if n == end or (node, n) not in known]
                scores = {n: float(score(rows[node], rows[n], relation)) for n in others}
                above = sum(value > scores[end] for value in scores.values())
                tied = sum(value == scores[end] for value in scores.values()) - 1
                ranks.append(1 + above + tied / 2)
    assert found["test/filtered-mrr"] == pytest.approx(mean(1 / rank for rank in ranks), abs=1e-4)


def test_a_decoder_without_relations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"links.filtered is true and links.decoder is 'dot': .* relational decoder"
    ):
        filtered_ranking_task_of(tmp_path, "dot")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"task__target": "user likes item"},
            "task.target is 'user likes item': the edge types are user buys item",
        ),
        (
            {"task__target": "user buys item, user likes item"},
            "task.target is 'user likes item': the edge types are user buys item",
        ),
        (
            {"task__target": "user buys item, user buys item"},
            "task.target is 'user buys item, user buys item': names an edge type twice; name it once (",
        ),
        (
            {"task__target": "user buys item, item bought_by user"},
            "task.target is 'user buys item, item bought_by user': item bought_by user is the reverse of "
            "user buys item; name one of them (",
        ),
        (
            {"links__hard_negatives": 2, "links__decoder": "mlp"},
            "links.hard_negatives is 2 and links.decoder is 'mlp': hard negatives need a decoder",
        ),
        (
            {"links__hard_negatives": 2, "links__decoder": "distmult", "links__relation": "r"},
            "links.hard_negatives is 2 and links.relation is 'r': hard negatives are searched per source",
        ),
        (
            {"links__hard_negatives": 2, "links__corrupt": "both"},
            "links.hard_negatives is 2 and links.corrupt is 'both': hard negatives replace destinations;",
        ),
        (
            {"links__hard_negatives": 1 << 20},
            "links.hard_negatives is 1048576: there are ",
        ),
        (
            {"links__shared_negatives": 2, "links__negatives_group": 1},
            "links.shared_negatives is 2 and links.negatives_group 1: give the",
        ),
        ({"task__label": "x"}, "task.label is 'x': links have no label column, leave it out (--label)"),
        ({"task__metric": "accuracy"}, "task.metric 'accuracy': must be one of mrr, roc-auc"),
        (
            {"links__val": 0.0001},
            "links.val is 0.0001: 0 of the 1101 links of user buys item would be held out",
        ),
        (
            {"links__val": 0.5, "links__test": 0.5},
            "links.val is 0.5 and links.test 0.5: no training links are left",
        ),
        (
            {"sampler__time": "t", "evaluation__fanouts": [5, 5]},
            "sampler.time is 't': each link needs a time, and the columns of user buys item are none (",
        ),
        ({"evaluation__fanouts": [5]}, "evaluation.fanouts has 1 entry, sampler.fanouts make 2 layers"),
        ({"evaluation__fanouts": [{"user buy item": 5}, 5]}, "evaluation.fanouts, hop 1: fanout 5 for"),
    ],
)
def test_what_the_graph_or_the_task_does_not_have_is_named(
    prepared: Prepare, options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        prepared(**options)
    assert str(caught.value).startswith(complaint)
