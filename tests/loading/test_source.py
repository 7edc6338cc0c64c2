"""A batch is a function of (epoch, step), and a position survives a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from khop import Batch, NeighborSampler
from khop.batch import num_bytes
from khop.draw import DrawKey, Purpose
from khop.graph.features.store import Rows
from khop.graph.features.table import FeatureTable
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import LocalSource
from khop.loading.source import BatchRequest, CachedRows, Drawn, Position, StepRequests, finished, request_of
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.testing.batch_source import PROMISES, THREADED_PROMISES, Make, local, requests, values
from support.random_graphs import seeds
from support.typed_shop import bits, shop

GRAPH = shop()
NODES = NodeSeeds({"user": torch.arange(40), "item": torch.arange(5)})
ORDER = SeedOrder(NODES, batch_size=8, shuffle=True, run_seed=3)
CPU = torch.device("cpu")
SOURCE = LocalSource(
    NeighborSampler(GRAPH, [3, 2]),
    GRAPH.features,
    ColumnChoice.of(GRAPH.schema, ["x"], ["x"], ["user", "item"]),
    CPU,
)


def made(epoch: int, step: int, order: SeedOrder = ORDER) -> Batch:
    return finished(SOURCE.make(request_of(order, epoch, step)), order, Position(epoch, step), CPU)


def test_a_batch_is_the_same_whenever_it_is_made() -> None:
    first = bits(made(1, 4))
    assert bits(made(1, 3)) != first
    assert bits(made(2, 4)) != first
    assert bits(made(1, 4)) == first


def test_a_batch_is_the_steps_seeds_sampled_with_the_steps_key() -> None:
    batch = made(2, 5)
    seeds = ORDER.share(2, 5)
    sample = NeighborSampler(GRAPH, [3, 2]).sample(seeds, DrawKey.of(3, Purpose.HOP, 2, 5))
    assert (batch.epoch, batch.step, batch.world_size, batch.num_global_seeds) == (2, 5, 1, 45 - 5 * 8)
    for node_type, ids in sample.nodes.items():
        assert torch.equal(batch.sample.nodes[node_type], ids)
        assert torch.equal(batch.seed_nodes[node_type], seeds.nodes[node_type])


def test_a_batch_says_how_long_its_stages_took() -> None:
    seconds = {span.stage: span.seconds for span in made(0, 0).spans}
    assert sorted(seconds) == ["gathering", "sampling"]
    assert all(value >= 0 for value in seconds.values())


def test_a_rank_without_seeds_gets_a_batch_without_rows() -> None:
    order = replace(ORDER, batch_size=2, rank=0, world_size=4)
    batch = made(0, 0, order)
    assert batch.num_global_seeds == 2
    assert sum(ids.numel() for ids in batch.seed_nodes.values()) == 0
    assert batch["user", "x"].shape == (0, 2)
    assert all(a.indptr.tolist() == [0] for block in batch.blocks for a in block.adjacencies.values())
    assert batch.global_mean(torch.empty(0, requires_grad=True)).item() == 0


def test_requests_are_those_of_the_steps() -> None:
    requests = StepRequests(ORDER, 4, range(2, 5))
    assert [(each.epoch, each.step) for each in requests] == [(4, 2), (4, 3), (4, 4)]
    assert [each.key for each in requests] == [DrawKey.of(3, Purpose.HOP, 4, step) for step in (2, 3, 4)]
    assert [each.step for each in requests[1:]] == [3, 4]
    assert requests[-1].seeds().nodes["user"].tolist() == ORDER.share(4, 4).nodes["user"].tolist()


def test_positions_walk_through_epochs() -> None:
    positions = [Position()]
    for _ in range(4):
        positions.append(positions[-1].after(num_steps=2))
    assert [(p.epoch, p.step) for p in positions] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


def test_a_position_survives_a_file() -> None:
    state = json.loads(json.dumps(Position(3, 2).state(ORDER)))
    assert Position.of_state(state, ORDER) == Position(3, 2)


GOOD = Position(3, 2).state(ORDER)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "needs numbers epoch and step, and a fingerprint"),
        ({**GOOD, "epoch": "3"}, "needs numbers"),
        ({**GOOD, "fingerprint": None}, "needs numbers"),
        ({**GOOD, "fingerprint": {}}, "saved with another seed list and another batch_size"),
        ({**GOOD, "step": 6}, "epoch 3, step 6: an epoch has steps 0 to 5"),
        ({**GOOD, "epoch": -1}, "epoch -1, step 2"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Position.of_state(state, ORDER)


def test_a_request_of_known_seeds_returns_them() -> None:
    known = seeds(1, 2)
    request = BatchRequest.of(known, DrawKey(3), epoch=1, step=2)
    assert request.seeds() is known
    assert (request.key, request.epoch, request.step) == (DrawKey(3), 1, 2)


def test_every_tensor_of_a_batch_is_changed() -> None:
    drawn = local().draw(requests()[0])
    moved = drawn.map(lambda tensor: tensor.clone())
    assert values(moved) == values(drawn)
    assert moved.spans == drawn.spans
    for of_type, columns in drawn.columns.items():
        for name, column in columns.items():
            assert moved.columns[of_type][name].data_ptr() != column.data_ptr()


def test_cached_rows_and_others_make_all_rows() -> None:
    table = FeatureTable({"user": {"x": torch.tensor([[10.0], [20.0], [30.0]])}})
    rows = CachedRows(
        "user", table, Rows(torch.tensor([2, 0]), ("x",)), torch.tensor([1, 3]), torch.tensor([0, 2])
    )
    filled = rows.fill({"x": torch.tensor([[1.0], [2.0]])})
    assert filled["x"].flatten().tolist() == [1.0, 30.0, 2.0, 10.0]


# Threads of this process keep the promises of a batch source.


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None]) -> None:
    promise(lambda source: source)


@pytest.mark.parametrize("promise", THREADED_PROMISES, ids=lambda promise: promise.__name__)
def test_batches_are_made_at_the_same_time(promise: Callable[[Make], None]) -> None:
    promise(lambda source: source)


@pytest.mark.core(1)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_no_batch(threads: int) -> None:
    split = local().with_threads(threads)
    assert [values(split.draw(request)) for request in requests()] == [
        values(local().draw(request)) for request in requests()
    ]


def test_the_size_of_a_batch_counts_all_of_its_tensors() -> None:
    drawn = local().draw(requests()[0])
    assert num_bytes(drawn) == sum(len(of) * dtype_bytes(dtype) for dtype, of in flat(drawn))


def flat(drawn: Drawn) -> list[tuple[torch.dtype, list[float]]]:
    found: list[tuple[torch.dtype, list[float]]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append((tensor.dtype, tensor.flatten().tolist()))
        return tensor

    drawn.map(note)
    return found


def dtype_bytes(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()
