"""A loader of one's own loop: `transform=`, and batches of any seeds by `loader(seeds)`."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import khop
from khop import Batch, Loader, NeighborSampler
from khop.sampling.group_samplers import ShadowSampler
from khop.sampling.links.link_seeds import Links
from khop.sampling.links.links import LinkSampler
from khop.sampling.rules.temporal import Temporal
from khop.servers.messages import BatchOf
from support.in_process import connected
from support.small_folders import ITEM, write_learnable_graph
from support.small_runs import SmallRun, without_seconds
from support.typed_shop import BUYS, bits, shop

GRAPH = shop()
EDGE = (ITEM, "like", ITEM)
SEEDS = {"item": torch.arange(30), "user": torch.arange(0, 40, 3)}
COLUMNS = {"user": ["x"], "item": ["x", "price"]}


def loader_of(**options: object) -> Loader:
    given = {"shuffle": True, "seed": 5, "columns": COLUMNS, "seed_columns": ["x"], "threads": 2, **options}
    return Loader(NeighborSampler(GRAPH, [3, 2]), SEEDS, 9, **given)  # type: ignore[arg-type]


def with_degree(batch: Batch) -> Batch:
    """Add noise that depends on epoch and step alone, and the position of the batch, to items."""
    generator = torch.Generator().manual_seed(1000 * batch.epoch + batch.step)
    noise = torch.rand(batch.columns["item"]["x"].shape, generator=generator)
    place = torch.tensor([batch.epoch, batch.step, batch.micro_batch, batch.num_global_seeds])
    items = {**batch.columns["item"], "noisy": batch.columns["item"]["x"] + noise, "place": place}
    return replace(batch, columns={**batch.columns, "item": items})


# --- transform ---------------------------------------------------------------------------------------------


@pytest.mark.core(1)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_transform_makes_the_same_batches_on_any_number_of_threads(threads: int) -> None:
    plain, loader = loader_of(), loader_of(transform=with_degree, threads=threads)
    for epoch in range(2):
        expected = [with_degree(batch) for batch in plain.epoch(epoch)]
        assert [bits(batch) for batch in loader.epoch(epoch)] == [bits(batch) for batch in expected]
    assert bits(loader.batch(1, 2)) == bits(with_degree(plain.batch(1, 2)))
    assert bits(loader.whole_batch(0, 1)) == bits(with_degree(plain.whole_batch(0, 1)))


def test_a_transform_runs_on_the_threads_of_the_loader() -> None:
    names: set[str] = set()

    def noting(batch: Batch) -> Batch:
        names.add(threading.current_thread().name)
        return batch

    assert len(list(loader_of(transform=noting))) == 5
    assert all(name.startswith("khop-worker") for name in names), names


def test_each_micro_batch_is_transformed() -> None:
    loader = loader_of(transform=with_degree, micro_batches=2)
    places = [batch["item", "place"].tolist() for batch in loader.epoch(3)]
    assert places == [[3, step, part, 9 if step < 4 else 8] for step in range(5) for part in range(2)]


def test_deferred_columns_are_transformed_where_the_batch_is_used() -> None:
    transformed = list(loader_of(transform=with_degree, gather="deferred"))
    for batch, expected in zip(transformed, loader_of(transform=with_degree), strict=True):
        assert torch.equal(batch["item", "noisy"], expected["item", "noisy"])


def test_a_resumed_loader_transforms_the_next_batch_the_same() -> None:
    loader = loader_of(transform=with_degree)
    batches = loader.epoch(0)
    before = [bits(next(batches)) for _ in range(2)]
    batches.close()
    again = loader_of(transform=with_degree, threads=1)
    again.load_state_dict(loader.state_dict())
    expected = [bits(batch) for batch in loader_of(transform=with_degree).epoch(0)]
    assert before + [bits(batch) for batch in again.epoch(0)] == expected


def test_an_error_of_a_transform_comes_at_its_batch() -> None:
    def failing(batch: Batch) -> Batch:
        if batch.step == 2:
            raise RuntimeError("no third batch")
        return batch

    batches = iter(loader_of(transform=failing))
    assert [next(batches).step, next(batches).step] == [0, 1]
    with pytest.raises(RuntimeError, match="no third batch"):
        next(batches)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("x", "transform 'x': must be a function from a batch to a batch"),
        (lambda _: 3, "transform 3: it must return"),
    ],
    ids=["text", "number"],
)
def test_what_is_no_transform_is_refused(transform: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(iter(loader_of(transform=transform)))


@pytest.mark.long
def test_a_trainer_trains_on_transformed_batches(tmp_path: Path) -> None:
    def doubled(batch: Batch) -> Batch:
        return replace(batch, columns={"node": {"x": 2 * batch["x"]}})

    run = SmallRun(tmp_path / "plain", evaluate=lambda: {"val": 0.5})
    plain = run.trainer().fit()
    trainer = replace(run, out=tmp_path / "doubled").trainer()
    sampler, loader = trainer.loader.graph_sampler, trainer.loader
    trainer.loader = Loader(
        sampler,
        torch.arange(38),
        8,
        shuffle=True,
        seed=1,
        columns=["x"],
        seed_columns=["y"],
        transform=doubled,
    )
    assert len(trainer.loader) == len(loader)
    doubled_records = without_seconds(trainer.fit().records)
    assert doubled_records != without_seconds(plain.records)


# --- batches of any seeds ----------------------------------------------------------------------------------


def test_a_batch_of_any_seeds_is_that_of_a_loader_of_these_seeds() -> None:
    seeds = {"item": torch.tensor([7, 7, 29]), "user": torch.tensor([1])}
    loader = loader_of(transform=with_degree)
    list(loader)
    state = loader.state_dict()
    batch = loader(seeds)
    alone = Loader(
        NeighborSampler(GRAPH, [3, 2]),
        seeds,
        4,
        seed=5,
        columns=COLUMNS,
        seed_columns=["x"],
        transform=with_degree,
    )
    assert bits(batch) == bits(alone.batch(0, 0))
    assert batch.seed_nodes["item"].tolist() == [7, 7, 29]
    assert (batch.num_global_seeds, batch.world_size, batch.ends_step) == (4, 1, True)
    assert loader.state_dict() == state
    assert bits(loader(seeds)) == bits(batch)


def test_all_forms_of_seeds_are_taken(tmp_path: Path) -> None:
    edges = khop.EdgeTable(torch.arange(20), (torch.arange(20) + 1) % 20, {"time": torch.arange(20)})
    nodes = khop.NodeTable(columns={"x": torch.eye(20), "time": torch.arange(20) + 5})
    khop.write_graph(tmp_path / "ring", {"node": nodes}, {("node", "to", "node"): edges})
    graph = khop.open_graph(tmp_path / "ring")
    loader = Loader(NeighborSampler(graph, [2]), range(10), 4, columns=["x"])
    mask = torch.zeros(20, dtype=torch.bool)
    mask[[3, 15]] = True
    expected = bits(loader([3, 15]))
    for seeds in (torch.tensor([3, 15]), mask, mask.numpy(), {"node": [3, 15]}):
        assert bits(loader(seeds)) == expected
    assert loader("all").seeds.tolist() == list(range(20))
    tuples = khop.NodeTuples([[3, 4], [15, 16]], labels=[0.5, 1.0])
    assert loader(tuples).tuple_labels["node"].tolist() == [0.5, 1.0]
    links = Loader(LinkSampler(graph, [2], negatives=khop.UniformNegatives()), Links([[0, 1], [1, 2]]), 2)
    assert links(Links([[5], [6]])).links["node", "to", "node"].num_links == 1
    groups = Loader(ShadowSampler(graph, [2], layers=1), range(10), 4, columns=["x"])
    assert groups([3, 15]).num_global_seeds == 2


def test_times_of_seeds_come_from_the_column_or_are_given(tmp_path: Path) -> None:
    edges = khop.EdgeTable(torch.arange(20), torch.full((20,), 3), {"time": torch.arange(20)})
    nodes = khop.NodeTable(columns={"since": torch.arange(20) + 2})
    khop.write_graph(tmp_path / "star", {"node": nodes}, {("node", "to", "node"): edges}, sort_by="time")
    graph = khop.open_graph(tmp_path / "star")
    sampler = NeighborSampler(graph, [-1], rule=Temporal("time"))
    loader = Loader(sampler, range(4), 2, seed_times="since")
    assert loader([3]).input_nodes.max() <= 5
    assert loader([3], seed_times=[11]).input_nodes.max() == 11
    with pytest.raises(ValueError, match="seed_times"):
        Loader(sampler, [1], 1, seed_times=[4])([3])


def test_a_graph_on_servers_gives_the_same_batches(tmp_path: Path) -> None:
    graph = khop.open_graph(write_learnable_graph(tmp_path / "graph"))
    names: set[str] = set()

    def doubled(batch: Batch) -> Batch:
        names.add(threading.current_thread().name)
        return replace(batch, columns={t: {"x": 2 * of["x"]} for t, of in batch.columns.items()})

    def made(graph: khop.Graph) -> Loader:
        sampler = NeighborSampler(graph, [3, 2])
        return Loader(sampler, graph.split("train"), 64, shuffle=True, columns=["x"], transform=doubled)

    here, there = made(graph), made(connected(graph))
    assert [bits(batch) for batch in there] == [bits(batch) for batch in here]
    assert threading.current_thread().name not in names
    assert bits(there([5, 3, 5])) == bits(here([5, 3, 5]))


@pytest.mark.long
def test_a_graph_on_servers_gives_batches_of_any_list_there(tmp_path: Path) -> None:
    """Seeds of a list are named by their numbers in it: those of another list than the loader's."""
    graph = khop.open_graph(write_learnable_graph(tmp_path / "graph"))
    remote = connected(graph)
    for seeds in (lambda one: one.split("train"), lambda one: range(4)):
        here, there = (
            Loader(NeighborSampler(one, [3, 2]), seeds(one), 64, columns=["x"]) for one in (graph, remote)
        )
        for split in ("val", "train", "val"):
            assert bits(there(remote.split(split))) == bits(here(graph.split(split)))
        assert [bits(batch) for batch in there] == [bits(batch) for batch in here]
    splits = [khop.split_links(one, EDGE, val=0.2, test=0.2, negatives=0) for one in (graph, remote)]
    here, there = (
        Loader(LinkSampler(split.train, [3], negatives=khop.UniformNegatives()), split.train_links, 64)
        for split in splits
    )
    assert bits(there(splits[1].val_links)) == bits(here(splits[0].val_links))


def test_settings_of_a_list_are_sent_to_a_server_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = connected(khop.open_graph(write_learnable_graph(tmp_path / "graph")))
    loader = Loader(NeighborSampler(remote, [3, 2]), remote.split("train"), 64, columns=["x"])
    made, sent = BatchOf.of, list[bool]()

    def noted(*given: object, with_settings: bool) -> BatchOf:
        sent.append(with_settings)
        return made(*given, with_settings=with_settings)  # type: ignore[arg-type]

    monkeypatch.setattr(BatchOf, "of", noted)
    for name in ("val", "val", "train", "val", "test", "train", "test"):
        loader(remote.split(name))
    assert sent == [True, False, True, False, True, False, False]
    split = khop.split_links(remote, EDGE, val=0.2, test=0.2, negatives=0)
    sampler = LinkSampler(split.train, [3], negatives=khop.UniformNegatives())
    of_links = Loader(sampler, split.train_links, 64)
    sent.clear()
    for links in (split.val_links, split.test_links, split.val_links):
        of_links(links)
    assert sent == [True, True, False]


def test_samplers_that_choose_the_nodes_of_a_batch_refuse_given_seeds(tmp_path: Path) -> None:
    graph = khop.open_graph(write_learnable_graph(tmp_path / "graph"))
    clusters = torch.arange(graph.num_nodes(ITEM)) // 10
    samplers = {
        "makes batches of its clusters": khop.ClusterSampler(graph, clusters, layers=1),
        "makes batches of its subgraphs": khop.SaintSampler(graph, khop.SaintNodes(20), layers=1),
    }
    for message, sampler in samplers.items():
        with pytest.raises(ValueError, match=message):
            Loader(sampler, "all", 1)([25, 26])


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        (
            {"item": [1]},
            r"seeds of \['item'\]: the seeds of this loader are of \['user', 'item'\]; give seeds",
        ),
        ({"item": [1], "user": [400]}, "there is no node 400"),
        ({"item": [], "user": []}, "seeds: none given"),
        (Links({BUYS: [[0], [1]]}), "links"),
    ],
    ids=["types", "range", "empty", "links"],
)
def test_seeds_that_do_not_fit_are_refused(seeds: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader_of()(seeds)  # type: ignore[arg-type]
