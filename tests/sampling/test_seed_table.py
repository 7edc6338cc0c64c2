"""Rows of a seed table are seeds with a time, a label and a weight each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import khop
from khop.api.serve import graph_on
from khop.models import SAGE
from khop.sampling.seeds import SeedOrder
from support.covered import covered
from support.in_process import exchange_with
from support.same_samples import assert_same_epoch
from support.started_ranks import StartedRanks

COUNT = 60
NODES = torch.tensor([3, 3, 3, 7, 7, 9, 11, 3, 20, 21, 21, 30])
TIMES = torch.arange(12) * 40 + 100
LABELS = torch.arange(12) % 3
WEIGHTS = torch.tensor([1.0, 2, 0, 4, 1, 1, 3, 0.5, 1, 1, 2, 7], dtype=torch.float64)


def write_dated(path: Path, nodes: int = COUNT) -> Path:
    """Nodes of one type with columns x and y, and edges with times from 0 to 599."""
    draw = torch.Generator().manual_seed(nodes)
    sources, destinations = torch.randint(nodes, (2, nodes * 12), generator=draw)
    time = torch.randint(600, (sources.numel(),), generator=draw)
    x = torch.rand(nodes, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(3, (nodes,), generator=draw)
    table = khop.NodeTable(columns={"x": x, "y": y}, num_classes={"y": 3})
    edges = {"item to item": khop.EdgeTable(sources, destinations, columns={"time": time})}
    return khop.write_graph(path, {"item": table}, edges, sort_by="time")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    return khop.open_graph(write_dated(tmp_path_factory.mktemp("graphs") / "dated"))


def table(**columns: Tensor) -> khop.SeedTable:
    given: dict[str, Tensor] = {"times": TIMES, "labels": LABELS, "weights": WEIGHTS, **columns}
    return khop.SeedTable(NODES, **given)


def loader(graph: khop.Graph, seeds: khop.SeedTable, **settings: object) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, [4, 3], rule=khop.Temporal("time"), edge_ids=True)
    return khop.Loader(sampler, seeds, **{"batch_size": 5, "shuffle": True, "columns": ["x"], **settings})


def test_batches_carry_the_columns_of_their_rows_and_no_later_edge(graph: khop.Graph) -> None:
    time, seen = graph.columns["item", "to", "item"]["time"], []
    for batch in loader(graph, table(), seed_columns=["y"]).epoch(1):
        rows = ((batch.seed_times - 100) // 40).tolist()
        assert torch.equal(batch.seeds, NODES[rows])
        assert torch.equal(batch.seed_column("label"), LABELS[rows])
        assert torch.equal(batch.seed_weights, WEIGHTS[rows])
        assert torch.equal(batch.seed_column("y"), graph.columns["item"]["y"][NODES[rows]])
        assert batch.seed_positions.tolist() == list(range(len(seen), len(seen) + len(rows)))
        trees = batch.sample.trees
        assert trees is not None
        for block in batch.blocks:
            drawn, adjacency = batch.seed_times[trees["item"]], block.adjacency
            destinations = torch.repeat_interleave(adjacency.indptr.diff())
            assert adjacency.edge_ids is not None
            assert bool((time[adjacency.edge_ids] <= drawn[destinations]).all())
        assert batch.blocks[0].adjacency.indices.numel() > 0
        seen += rows
    assert sorted(seen) == list(range(12))


def test_rows_of_a_node_have_the_trees_of_its_times(graph: khop.Graph) -> None:
    """A tree of a row is the one that a plain seed with this time has at the same position."""
    plain = khop.Loader(
        khop.NeighborSampler(graph, [4, 3], rule=khop.Temporal("time"), edge_ids=True),
        NODES, 5, seed_times=TIMES, shuffle=True, columns=["x"],
    )  # fmt: skip
    found = list(loader(graph, khop.SeedTable(NODES, TIMES)).epoch(2))
    assert_same_epoch(found, list(plain.epoch(2)))


@given(st.integers(1, 4), st.integers(1, 13), st.booleans())
def test_ranks_share_the_rows_of_a_step_and_their_weighted_loss(
    ranks: int, batch_size: int, shuffle: bool
) -> None:
    """The shares add up, and the losses of an epoch are the weighted mean over the table."""
    alone = SeedOrder(khop.SeedTable({"item": NODES}, TIMES, LABELS, WEIGHTS), batch_size, shuffle, 2)
    losses, total = torch.rand(12, dtype=torch.float64), 0.0
    for step in range(alone.num_steps):
        whole = alone.share(0, step)
        parts = [replace(alone, rank=rank, world_size=ranks).share(0, step) for rank in range(ranks)]
        for name in ("nodes", "positions", "times", "labels"):
            together = torch.cat([getattr(part, name)["item"] for part in parts])
            assert torch.equal(together, getattr(whole, name)["item"])
        for part in (whole, *parts):
            assert part.loss_weights is not None
            assert part.loss_weights.total == whole.loss_weights.total  # type: ignore[union-attr]
        for part in parts:
            rows = (part.times["item"] - 100) // 40  # type: ignore[index]
            scale = alone.num_global_seeds(step) / part.loss_weights.total  # type: ignore[union-attr]
            weights = part.loss_weights.by_type["item"]  # type: ignore[union-attr]
            assert torch.equal(weights, WEIGHTS[rows])
            total += float((losses[rows] * weights * scale).sum())
    assert total / 12 == pytest.approx(float((losses * WEIGHTS).sum() / WEIGHTS.sum()), rel=1e-12)


def test_the_weighted_loss_does_not_depend_on_micro_batches(graph: khop.Graph) -> None:
    each = torch.rand(12, dtype=torch.float64)

    def losses(micro_batches: int) -> list[float]:
        batches = loader(graph, table(), micro_batches=micro_batches).epoch(0)
        found = [0.0] * 3
        for batch in batches:
            found[batch.step] += float(batch.global_mean(each[(batch.seed_times - 100) // 40]))
        return found

    assert losses(3) == pytest.approx(losses(1), rel=1e-12)


def test_servers_sample_the_rows(tmp_path: Path) -> None:
    folder = write_dated(tmp_path / "graph")
    here, there = khop.open_graph(folder), graph_on(exchange_with(khop.open_graph(folder), 2))
    epochs = [list(loader(graph, table()).epoch(1)) for graph in (here, there)]
    assert_same_epoch(*epochs)
    assert epochs[1][0].seed_times.numel() == 5


def test_seeds_without_a_table_have_positions_and_times_too(graph: khop.Graph) -> None:
    sampler = khop.NeighborSampler(graph, [4], rule=khop.Temporal("time"))
    batch = khop.Loader(sampler, [5, 6, 7], 2, seed_times=[10, 20, 30]).batch(0, 1)
    assert (batch.seed_positions.tolist(), batch.seed_times.tolist()) == ([2], [30])
    untimed = khop.Loader(khop.NeighborSampler(graph, [4]), [5, 6, 7], 2).batch(0, 1)
    with pytest.raises(ValueError, match="the seeds have no times"):
        _ = untimed.seed_times
    with pytest.raises(ValueError, match="the seeds have no weights"):
        _ = untimed.seed_weights


def test_listed_seeds_on_servers_have_positions(tmp_path: Path) -> None:
    nodes = {"item": khop.NodeTable(6, splits={"train": [1, 3, 5]})}
    edges = {"item to item": khop.EdgeTable(torch.arange(6), torch.arange(6).flip(0))}
    folder = khop.write_graph(tmp_path / "graph", nodes, edges)
    here, there = khop.open_graph(folder), graph_on(exchange_with(khop.open_graph(folder), 1))
    found = [
        khop.Loader(khop.NeighborSampler(graph, [2]), graph.split("train"), 2).batch(0, 1)
        for graph in (here, there)
    ]
    assert [batch.seed_positions.tolist() for batch in found] == [[2], [2]]


def test_a_transform_and_a_call_of_the_loader_see_the_columns_of_rows(graph: khop.Graph) -> None:
    """What a transform makes of labels stays."""

    def shifted(batch: khop.Batch) -> khop.Batch:
        label = batch.seed_column("label") + batch.seed_times
        return replace(batch, seed_columns={"item": {"label": label}})

    made = loader(graph, table(), transform=shifted)
    for batch in made.epoch(0):
        assert torch.equal(
            batch.seed_column("label") - batch.seed_times, LABELS[(batch.seed_times - 100) // 40]
        )
    found = loader(graph, table())(khop.SeedTable([5, 5], [50, 600], labels=[7, 8]))
    assert found.seed_times.tolist() == [50, 600]
    assert found.seed_column("label").tolist() == [7, 8]


def test_the_state_knows_every_column(graph: khop.Graph) -> None:
    state = loader(graph, table()).state_dict()
    loader(graph, table()).load_state_dict(state)
    for other in (table(times=TIMES + 1), table(labels=LABELS + 1), table(weights=WEIGHTS * 2)):
        with pytest.raises(ValueError, match="another seed list"):
            loader(graph, other).load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: khop.SeedTable([True, False]), r"nodes: a mask of shape \(2,\); give an id for each row"),
        (lambda: khop.SeedTable([0, 1], [5]), r"times are torch.int64 of shape \(1,\): give a whole number"),
        (lambda: khop.SeedTable([0, 1], labels=[1]), r"labels: int64 of shape \(1,\) for 2 rows"),
        (lambda: khop.SeedTable([0, 1], weights=[1.0, -1.0]), "weights: row 1 has -1.0; must be 0 or more"),
        (lambda: khop.SeedTable([0, 1], weights=[1.0, float("nan")]), "weights: row 1 has nan"),
        (lambda: khop.SeedTable([0, 1], weights=[0, 0]), "weights: all are 0"),
        (lambda: khop.SeedTable({"a": [0], "b": [1]}, labels={"a": [0]}), r"labels of \['a'\], and rows of"),
    ],
)  # fmt: skip
def test_bad_tables_are_named(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


def test_what_does_not_fit_the_loader_is_named(graph: khop.Graph) -> None:
    for seeds, settings, words in (
        (khop.SeedTable([99]), {}, "rows of 'item': there is no node 99"),
        (khop.SeedTable({"zz": [1]}), {}, "rows of 'zz': not a node type"),
        (table(), {"seed_times": TIMES}, r"give khop.SeedTable\(..., times=...\)"),
    ):
        with pytest.raises(ValueError, match=words):
            loader(graph, seeds, **settings)
    clusters = khop.ClusterSampler(graph, torch.arange(COUNT) % 4, layers=1)
    with pytest.raises(ValueError, match=r"a sampler of groups with a khop\.SeedTable"):
        khop.Loader(clusters, table(), 2)


def fit(graph: khop.Graph, seeds: khop.SeedTable, scored: khop.SeedTable, out: Path) -> list[float]:
    """Train on rows by the trainer; return the loss and the score of each epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = SAGE.for_graph(graph, 8, layers=2, target="item", outputs=3)
    task = khop.NodeClassification("item", "label")
    batches = loader(graph, seeds)

    def evaluate() -> dict[str, float]:
        exact = khop.evaluate(model, graph, split=scored, task=task, loader=batches)
        drawn = khop.evaluate(model, graph, split=scored, task=task, loader=batches, fanouts=[2, 2])
        return {"val": exact, "drawn": drawn}

    settings = khop.TrainerSettings(epochs=3, learning_rate=0.05, precision="float64")
    records = khop.Trainer(model, task, batches, evaluate, settings, out).fit().records
    return [float(record[name]) for record in records for name in ("loss", "val_accuracy", "drawn_accuracy")]


@covered
def train_on_rows(rank: int, device: torch.device, folder: str, placement: str, out: str) -> None:
    """Train on a table of a graph whose nodes a partition may have renumbered; write losses and scores."""
    graph = khop.open_graph(folder, placement=placement)
    originals = graph.original_ids("item")
    nodes = NODES if originals is None else originals.argsort()[NODES]
    rows = khop.SeedTable(nodes, TIMES, LABELS, WEIGHTS)
    found = fit(graph, rows, rows, Path(out))
    if rank == 0:
        Path(out, "found.json").write_text(json.dumps(found))


@pytest.mark.long
@pytest.mark.parametrize("procs", [2, 4])
def test_weighted_losses_are_the_same_on_one_process_and_on_ranks_of_a_partitioned_graph(
    procs: int, tmp_path: Path, ranks: StartedRanks
) -> None:
    """Twelve rows in steps of five: of the last step's two, a rank of four may have none."""
    whole = write_dated(tmp_path / "whole")
    khop.partition_graph(whole, tmp_path / "parts", 3, method="hash", seed=1)
    found = {}
    for name, count, folder, placement in (
        ("one", 1, whole, "whole"),
        ("whole", procs, whole, "whole"),
        ("parts", procs, tmp_path / "parts", "all"),
    ):
        ranks.launch(train_on_rows, count, (str(folder), placement, str(tmp_path / name)))
        found[name] = json.loads((tmp_path / name / "found.json").read_text())
    assert len(set(found["one"][::3])) == 3
    for name in ("whole", "parts"):
        assert found[name] == pytest.approx(found["one"], rel=1e-9), name


def test_rows_are_scored_over_the_neighbors_of_their_time(graph: khop.Graph) -> None:
    """The exact outputs of rows are those in the graph without later edges."""
    torch.manual_seed(5)
    model = SAGE.for_graph(graph, 8, layers=2, target="item", outputs=3).double()
    batches = loader(graph, table())
    time, expected = graph.columns["item", "to", "item"]["time"], []
    for node, limit in zip(NODES.tolist(), TIMES.tolist(), strict=True):
        kept = graph.keeping({("item", "to", "item"): ((time <= limit).nonzero().view(-1),)})
        expected.append(khop.layerwise_inference(model, kept, graph.features, "item", nodes=[node]))
    outputs, errors = torch.cat(expected), khop.NodeRegression("item", "label", metric="mae")
    for times, bounds in ((TIMES, (0, 1e-12)), (torch.zeros_like(TIMES), (1e-3, 1))):
        rows = khop.SeedTable(NODES, times, outputs)
        error = khop.evaluate(model, graph, split=rows, task=errors, loader=batches)
        assert bounds[0] <= error <= bounds[1]
    task = khop.NodeClassification("item", "label")
    with pytest.raises(ValueError, match=r"give a khop\.SeedTable with the times"):
        khop.evaluate(model, graph, split=khop.SeedTable(NODES, labels=LABELS), task=task, loader=batches)
    with pytest.raises(ValueError, match=r"khop\.SeedTable to score: has no labels"):
        khop.evaluate(model, graph, split=khop.SeedTable(NODES), task=task)
