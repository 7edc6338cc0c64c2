"""The loader keeps its promises: order, purity, exact resume, no thread left."""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from khop import (
    Batch,
    DrawKey,
    EdgeTable,
    FrontierSampler,
    Loader,
    NeighborSampler,
    NodeTable,
    Sample,
    SamplerBase,
    Seeds,
    open_graph,
    write_graph,
)
from khop.graph.features.store import FeatureStoreBase, Gathered, Wanted
from khop.process_tuning import tune_for_training
from support.typed_shop import BUYS, bits, shop

GRAPH = shop()
SEEDS = {"item": torch.arange(30), "user": torch.arange(0, 40, 3)}
EDGE = ("node", "to", "node")


@pytest.fixture(autouse=True)
def threads_before() -> Iterator[set[threading.Thread]]:
    """Threads before the test, as other tests of this process may have left some. None is added."""
    tune_for_training()  # may start a thread that never ends, once in a process
    before = set(threading.enumerate())
    yield before
    assert set(threading.enumerate()) <= before


def loader_of(
    *, threads: int = 2, prefetch: int = 4, prefetch_bytes: int = 1 << 20, batch_size: int = 9, seed: int = 5
) -> Loader:
    return Loader(
        NeighborSampler(GRAPH, [3, 2], edge_ids=True),
        SEEDS,
        batch_size,
        shuffle=True,
        seed=seed,
        columns={"user": ["x"], "item": ["x", "price"], BUYS: ["amount"]},
        seed_columns=["x"],
        threads=threads,
        prefetch=prefetch,
        prefetch_bytes=prefetch_bytes,
    )


EPOCHS = [[bits(loader_of().batch(epoch, step)) for step in range(5)] for epoch in range(3)]


# --- batches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(("prefetch", "prefetch_bytes"), [(1, 1), (3, 4000), (16, 1 << 30)])
def test_threads_and_prefetch_change_nothing(threads: int, prefetch: int, prefetch_bytes: int) -> None:
    loader = loader_of(threads=threads, prefetch=prefetch, prefetch_bytes=prefetch_bytes)
    assert [[bits(batch) for batch in loader.epoch(epoch)] for epoch in range(3)] == EPOCHS


def test_kept_batches_stay_valid() -> None:
    assert [bits(batch) for batch in list(loader_of().epoch(1))] == EPOCHS[1]


@pytest.mark.core(1)
@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_consumer_that_keeps_every_batch_gets_fresh_memory_and_never_waits_for_any(prefetch: int) -> None:
    """Not one block is lent twice while its batch lives, though the loader may run one batch ahead only."""
    kept = [batch for epoch in range(3) for batch in loader_of(prefetch=prefetch).epoch(epoch)]
    own = [addresses_of(batch) for batch in kept]
    assert sum(map(len, own)) == len(set().union(*own))
    assert [bits(batch) for batch in kept] == [one for epoch in EPOCHS for one in epoch]


def addresses_of(batch: Batch) -> set[int]:
    """Of everything in it that takes memory."""
    found: set[int] = set()

    def note(tensor: Tensor) -> Tensor:
        if tensor.numel():
            found.add(tensor.untyped_storage().data_ptr())
        return tensor

    batch.map(note)
    return found


def test_one_batch_made_by_several_threads_has_the_same_bits() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert [bits(loader_of().batch(1, step)) for step in range(5)] == EPOCHS[1]
    finally:
        torch.set_num_threads(before)


def test_a_loader_has_as_many_steps_as_batches() -> None:
    assert len(loader_of()) == len(list(loader_of().epoch(0))) == 5


def test_a_batch_says_where_the_time_went() -> None:
    seconds = {span.stage: span.seconds for span in next(loader_of().epoch(0)).spans}
    assert sorted(seconds) == ["gathering", "moving", "sampling", "waiting"]


def test_no_process_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert len(list(loader_of(threads=4).epoch(0))) == 5


def test_a_graph_without_columns_gives_batches_without_columns() -> None:
    loader = Loader(NeighborSampler(GRAPH.topology, [3]), SEEDS, 9)
    assert next(loader.epoch(0)).columns == {}


def test_a_custom_sampler_needs_nothing_but_sample() -> None:
    class Mine(SamplerBase):
        def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
            return NeighborSampler(self.graph, [3, 2], edge_ids=True).sample(seeds, key)

    theirs = loader_of()
    mine = Loader(Mine(GRAPH), SEEDS, 9, shuffle=True, seed=5, columns=["x"], seed_columns=["x"])
    for step in range(5):
        assert torch.equal(mine.batch(0, step)["user", "x"], theirs.batch(0, step)["user", "x"])


def test_a_frontier_sampler_loads_like_any_other() -> None:
    sampler = FrontierSampler(GRAPH, lambda layer, view, nodes: view.sample_in_edges(nodes, [2, 3][layer]), 2)
    loader = Loader(sampler, SEEDS, 9, shuffle=True, seed=5, columns=["x"])
    for batch, expected in zip(loader.epoch(0), loader_of().epoch(0), strict=True):
        assert torch.equal(batch["item", "x"], expected["item", "x"])


# --- position ----------------------------------------------------------------------------------------------


@pytest.mark.core(3)
@pytest.mark.parametrize("received", range(10))
def test_a_run_resumes_with_the_very_next_batch(received: int) -> None:
    """Killed after any batch, restored on other threads: the batches go on as if nothing had been."""
    first = loader_of(threads=3, prefetch=7)
    before = [bits(batch) for _, batch in zip(range(received), both_epochs(first), strict=False)]
    state = json.loads(json.dumps(first.state_dict()))
    second = loader_of(threads=1, prefetch=1)
    second.load_state_dict(state)
    assert (state["epoch"], state["step"]) == divmod(received, 5)
    after = [bits(batch) for epoch in range(state["epoch"], 2) for batch in second.epoch(epoch)]
    assert before + after == EPOCHS[0] + EPOCHS[1]


def both_epochs(loader: Loader) -> Iterator[Batch]:
    for epoch in range(2):
        yield from loader.epoch(epoch)


def test_every_plain_loop_is_the_next_whole_epoch() -> None:
    loader = loader_of()
    assert [[bits(batch) for batch in loader] for _ in range(3)] == EPOCHS


@pytest.mark.core(2)
@pytest.mark.parametrize("received", range(6))
def test_a_loop_after_one_that_broke_off_is_the_next_whole_epoch(received: int) -> None:
    """As after the two batches that Lightning takes of a validation loader to try it."""
    loader = loader_of()
    assert [bits(batch) for batch in islice(loader, received)] == EPOCHS[0][:received]
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == divmod(received, 5)
    begun = received > 0  # a loop of which nothing was asked is none
    assert [[bits(batch) for batch in loader] for _ in range(2)] == EPOCHS[begun:][:2]


def test_a_loop_after_one_that_failed_is_the_next_whole_epoch() -> None:
    loader = loader_of()
    with pytest.raises(RuntimeError, match="not a number"):
        fails_in_the_loop(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, 2)
    assert [bits(batch) for batch in loader] == EPOCHS[1]


def test_a_plain_loop_follows_the_numbered_epoch_that_began_last() -> None:
    loader = loader_of()
    next(loader.epoch(1))
    assert [bits(batch) for batch in loader] == EPOCHS[2]
    next(loader.epoch(0))
    assert [bits(batch) for batch in loader] == EPOCHS[1]


def test_a_plain_loop_continues_a_loaded_epoch_once() -> None:
    loader = loader_of()
    loader.load_state_dict(loader.state_dict() | {"epoch": 1, "step": 3})
    iter(loader)  # as libraries do that ask nothing of it
    assert [bits(batch) for batch in loader] == EPOCHS[1][3:]
    assert [bits(batch) for batch in loader] == EPOCHS[2]


def test_a_loop_that_broke_off_is_continued_by_its_own_state() -> None:
    loader = loader_of()
    before = [bits(batch) for batch in islice(loader, 2)]
    loader.load_state_dict(loader.state_dict())
    assert before + [bits(batch) for batch in loader] == EPOCHS[0]


def test_two_loops_at_once_are_two_epochs_and_the_state_is_of_the_later_one() -> None:
    loader = loader_of()
    first, second = iter(loader), iter(loader)
    found = [(bits(next(first)), bits(next(second))) for _ in range(4)]
    assert found == list(zip(EPOCHS[0], EPOCHS[1], strict=True))[:4]
    assert bits(next(first)) == EPOCHS[0][4]
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 4)
    second.close()
    assert next(first, None) is None
    assert [bits(batch) for batch in loader] == EPOCHS[2]


def test_a_loop_that_a_loaded_state_cuts_off_does_not_move_the_state() -> None:
    loader = loader_of()
    old = iter(loader)
    next(old)
    loader.load_state_dict(loader.state_dict() | {"epoch": 2, "step": 3})
    next(old)
    old.close()
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (2, 3)
    assert [bits(batch) for batch in loader] == EPOCHS[2][3:]


def test_an_epoch_begins_anew_unless_a_state_was_loaded() -> None:
    loader = loader_of()
    for _ in range(2):
        assert bits(next(loader.epoch(1))) == EPOCHS[1][0]
    loader.load_state_dict(loader.state_dict())
    assert bits(next(loader.epoch(1))) == EPOCHS[1][1]
    assert bits(next(loader.epoch(1))) == EPOCHS[1][0]


def test_another_epoch_than_the_loaded_one_is_an_error_that_names_both() -> None:
    loader = loader_of()
    loader.load_state_dict(loader.state_dict() | {"epoch": 1, "step": 3})
    with pytest.raises(
        ValueError, match=r"epoch 0: the loaded state is at epoch 1, step 3; continue with epoch\(1\)"
    ):
        loader.epoch(0)
    assert [bits(batch) for batch in loader.epoch(1)] == EPOCHS[1][3:]


def test_what_was_made_ahead_does_not_move_the_state() -> None:
    loader = loader_of(threads=4, prefetch=8)
    batches = loader.epoch(0)
    assert loader.state_dict()["step"] == 0
    next(batches)
    assert loader.state_dict()["step"] == 1
    loader.batch(2, 4)
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, 1)
    batches.close()


def test_a_state_of_another_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"another batch_size \(8, here 9\) and another seed \(6, here 5\)"):
        loader_of().load_state_dict(loader_of(batch_size=8, seed=6).state_dict())


# --- ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("received", [0, 1, 4])
def test_an_abandoned_iterator_leaves_no_thread(received: int, threads_before: set[threading.Thread]) -> None:
    batches = loader_of(threads=4).epoch(0)
    for _ in range(received):
        next(batches)
    del batches
    assert set(threading.enumerate()) <= threads_before


def fails_in_the_loop(loader: Loader) -> None:
    for batch in loader:
        if batch.step == 1:
            raise RuntimeError("the loss is not a number")


def test_an_exception_in_the_training_loop_leaves_no_thread(threads_before: set[threading.Thread]) -> None:
    with pytest.raises(RuntimeError, match="not a number"):
        fails_in_the_loop(loader_of())
    assert set(threading.enumerate()) <= threads_before


def test_an_exception_in_a_worker_reaches_the_loop_with_its_traceback_and_the_state_stays_before_it(
    threads_before: set[threading.Thread],
) -> None:
    class Broken(FeatureStoreBase):
        specs = GRAPH.features.specs

        def __init__(self) -> None:
            self.calls = 0

        def gather(self, wanted: Wanted) -> Gathered:
            self.calls += 1
            if self.calls == 3:
                raise OSError("bad sector")
            return GRAPH.features.gather(wanted)

    graph = replace(GRAPH, features=Broken())
    loader = Loader(NeighborSampler(graph, [3]), SEEDS, 9, columns=["x"], threads=1)
    batches = loader.epoch(0)
    next(batches)
    next(batches)
    with pytest.raises(OSError, match="bad sector") as caught:
        next(batches)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["gather_columns", "gather"]
    assert loader.state_dict()["step"] == 2
    assert set(threading.enumerate()) <= threads_before


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size 0: must be a whole number, 1 or more"),
        ({"batch_size": 2.0}, "batch_size 2.0: must be a whole number"),
        ({"threads": 0}, "threads 0: must be a whole number"),
        ({"prefetch": 0}, "prefetch 0: must be a whole number"),
        ({"prefetch_bytes": 0}, "prefetch_bytes 0: must be a whole number"),
        ({"prefetch_bytes": "much"}, "prefetch_bytes 'much': must be a whole number of bytes.*\"500MB\""),
        (
            {"drop_last": True, "batch_size": 100},
            "drop_last with 44 seeds and batch_size 100: no batch is complete",
        ),
        ({"seeds": {}}, "seeds: none given"),
        (
            {"seeds": {"item": torch.empty(0, dtype=torch.int64)}},
            r"seeds: none given for types \['item'\]",
        ),
        (
            {"seeds": {"item": torch.tensor([2, 30])}},
            "seeds of 'item': there is no node 30; ids go from 0 to 29",
        ),
        ({"seeds": {"item": torch.tensor([-1])}}, "seeds of 'item': there is no node -1"),
        ({"seeds": {"shop": torch.tensor([0])}}, "seeds of 'shop': not a node type"),
        ({"seeds": torch.tensor([0])}, "seeds that are not given by node type: the graph has node types"),
        ({"columns": ["color"]}, "columns: no node type has a column 'color'; there are"),
        ({"seed_columns": ["color"]}, "seed_columns: no node type has a column 'color'; there are"),
        ({"sampler": object()}, "sampler <object.*must be a khop.NeighborSampler.*your own subclass"),
        (
            {"sampler": NeighborSampler(GRAPH.topology, [2]), "columns": ["x"]},
            "columns are requested, but the graph has",
        ),
    ],
)
def test_bad_arguments_are_named(settings: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"sampler": NeighborSampler(GRAPH, [2]), "seeds": SEEDS, "batch_size": 4}
    with pytest.raises(ValueError, match=message):
        Loader(**(arguments | settings))


def test_a_negative_epoch_is_an_error() -> None:
    with pytest.raises(ValueError, match="epoch -1: must be a whole number, 0 or more"):
        loader_of().epoch(-1)


@pytest.mark.parametrize(("host", "device"), [(1000, 0), (0, "1kB"), ("1kB", 1000)])
def test_a_cache_where_all_columns_are_here_is_one_warning(host: int | str, device: int | str) -> None:
    loader = loader_of()
    with pytest.warns(
        UserWarning, match=r"a cache for rows of other processes.*no effect: the columns are mapped"
    ) as told:
        loader.cache_features(host, device_cache_bytes=device)
    assert len(told) == 1
    assert [bits(batch) for batch in loader] == EPOCHS[0]


def test_a_cache_for_a_loader_without_columns_is_a_warning_and_one_of_no_bytes_is_none() -> None:
    loader = Loader(NeighborSampler(GRAPH, [2]), SEEDS, 9)
    with pytest.warns(UserWarning, match="no effect: the loader has no columns"):
        loader.cache_features(10)
    loader.cache_features(0)


# --- opened graphs -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    nodes = {"node": NodeTable(6, {"x": torch.arange(12.0).view(6, 2)}, {"train": torch.tensor([5, 0, 2])})}
    edges = {EDGE: EdgeTable(torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1, 2, 2, 2, 5, 0]))}
    return write_graph(tmp_path / "graph", nodes, edges)


def test_an_opened_graph_is_all_that_a_loop_needs(folder: Path) -> None:
    graph = open_graph(folder)
    loader = Loader(NeighborSampler(graph, [2, 2]), graph.split("train"), 2, columns=["x"])
    for batch in loader.epoch(0):
        assert torch.equal(batch["x"], graph.columns["node"]["x"][batch.input_nodes])
    assert [batch.seeds.tolist() for batch in loader.epoch(0)] == [[5, 0], [2]]
    assert graph.num_nodes("node") == 6
    assert graph.schema.column("node", "x").shape == (2,)


def test_a_homogeneous_graph_takes_its_seeds_as_one_tensor(folder: Path) -> None:
    loader = Loader(NeighborSampler(open_graph(folder), [2]), torch.tensor([4, 4], dtype=torch.int32), 2)
    assert next(loader.epoch(0)).seed_index.tolist() == [0, 0]


def test_seeds_by_position_for_a_whole_graph_has_no_effect_and_a_warning_says_so(folder: Path) -> None:
    sampler = NeighborSampler(open_graph(folder), [2])
    with pytest.warns(
        UserWarning, match="seed_assignment 'position' has no effect, because the graph is not"
    ) as told:
        Loader(sampler, {"node": torch.arange(2)}, 2, seed_assignment="position")
    assert len(told) == 1
    assert told[0].filename == __file__
