"""Contract suite for batch sources.

A test takes a function that makes the tested source from khop's batch source over a small graph. Both sources
must make the same batches.

Example:
    >>> from khop.testing import batch_source
    >>> for promise in batch_source.PROMISES:
    ...     promise(lambda source: source)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.batch import Sample
from khop.draw import DrawKey
from khop.graph.features.table import FeatureTable
from khop.graph.store import GraphStore, csc_graph_from_edges
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import LocalSource, gather_columns
from khop.loading.ordered_map import InFlight
from khop.loading.source import BatchRequest, BatchSource, Drawn, StepRequests, request_of
from khop.sampling.sampler import NeighborSampler, SamplerBase
from khop.sampling.seeds import NodeSeeds, SeedOrder, Seeds
from khop.schema import EdgeType, NodeType
from khop.testing.promises import expect, expect_equal, promise

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought by", "user")
COUNTS = {"user": 40, "item": 30}
WAIT_S = 60.0

Make = Callable[[LocalSource], BatchSource]  # to the source under test, with the same batches


def _shop() -> Graph:
    users, items = torch.arange(COUNTS["user"]), torch.arange(COUNTS["item"])
    columns: dict[NodeType | EdgeType, dict[str, Tensor]] = {
        "user": {"x": torch.stack([users, -users], dim=1).float(), "age": users + 20},
        "item": {"x": items[:, None].float() / 8, "price": items.double() * 1.5},
        BUYS: {"amount": torch.arange(COUNTS["item"] * 7)},
    }
    edges = {
        t: (
            torch.arange(COUNTS[t[2]] * 7) * 11 % COUNTS[t[0]],
            torch.arange(COUNTS[t[2]]).repeat_interleave(7),
        )
        for t in (BUYS, BOUGHT_BY)
    }
    return Graph(csc_graph_from_edges(COUNTS, edges, columns=columns), FeatureTable(columns))


GRAPH = _shop()
NODES = NodeSeeds({"user": torch.arange(40), "item": torch.arange(5)})
ORDER = SeedOrder(NODES, batch_size=4, shuffle=True, run_seed=3)
COLUMNS = ColumnChoice.of(
    GRAPH.schema,
    {"user": ["x"], "item": ["x", "price"], BUYS: ["amount"]},
    {"user": ["age"]},
    ["user", "item"],
)
SAMPLER = NeighborSampler(GRAPH, [3, 2], edge_ids=True)
LIMITS = [InFlight(1, 1), InFlight(2, 3), InFlight(3, 8), InFlight(2, 4, prefetch_bytes=1)]


def local(sampler: SamplerBase = SAMPLER) -> LocalSource:
    """Return khop's source of the suite's batches."""
    return LocalSource(sampler, GRAPH.features, COLUMNS, torch.device("cpu"))


def requests(epoch: int = 1) -> StepRequests:
    """Return the requests of an epoch."""
    return StepRequests(ORDER, epoch, range(ORDER.num_steps))


def values(drawn: Drawn) -> list[object]:
    """Return all values of a drawn batch except times and traffic."""
    found: list[object] = []

    def note(tensor: Tensor) -> Tensor:
        found.append((str(tensor.dtype), tensor.tolist()))
        return tensor

    drawn.map(note)
    return [found, *([(t, list(of)) for t, of in c.items()] for c in (drawn.columns, drawn.seed_columns))]


@promise
def a_batch_is_the_sample_of_its_seeds_with_its_columns(make: Make) -> None:
    """Make the batch that the sampler returns for the seeds and the key, with all columns."""
    source = make(local())
    source.prepare()
    for request in requests():
        seeds = ORDER.share(request.epoch, request.step)
        sample = seeds.added_to(SAMPLER.sample(seeds, request.key))
        sample, columns, seed_columns = gather_columns(GRAPH.features, COLUMNS, sample)
        seed_nodes = {t: sample.nodes[t][index] for t, index in sample.seed_index.items()}
        expected = values(Drawn(sample, seed_nodes, columns, seed_columns))
        expect_equal(f"batch of step {request.step}", values(source.make(request)), expected)


@promise
def a_stream_gives_the_same_batches_in_order(make: Make) -> None:
    """Yield the batches of `make` in the order of the requests, for any limits."""
    source = make(local())
    source.prepare()
    expected = [values(source.make(request)) for request in requests()]
    for in_flight in LIMITS:
        found = [values(drawn) for drawn in source.stream(requests(), in_flight)]
        expect_equal(f"number of batches, {in_flight}", len(found), len(expected))
        wrong = [step for step, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
        expect_equal(f"steps whose batch differs from make, {in_flight}", wrong, [])
        some = [values(drawn) for drawn in source.stream(list(requests())[3:5], in_flight)]
        expect(some == expected[3:5], f"batches of requests 3 and 4 alone differ, {in_flight}")


@promise
def known_seeds_make_the_same_batch(make: Make) -> None:
    """Make the same batch from given seeds as from computed seeds."""
    source, wanted = make(local()), request_of(ORDER, 2, 3)
    source.prepare()
    known = BatchRequest.of(ORDER.share(2, 3), wanted.key, 2, 3)
    expect_equal("batch of known seeds", values(source.make(known)), values(source.make(wanted)))


@promise
def a_stream_of_no_requests_ends(make: Make) -> None:
    """Yield nothing without requests."""
    source = make(local())
    source.prepare()
    expect_equal("batches of no requests", list(source.stream([], InFlight())), [])


@promise
def seeds_are_computed_once_and_not_early(make: Make) -> None:
    """Compute the seeds of each request once, and no more than `prefetch` requests ahead."""
    computed: list[int] = []

    def counted(request: BatchRequest) -> BatchRequest:
        def seeds() -> Seeds:
            computed.append(request.step)
            return request.seeds()

        return replace(request, seeds=seeds)

    asked = [counted(request) for request in requests()]
    source = make(local())
    source.prepare()
    stream = source.stream(asked, InFlight(2, 3))
    expect_equal("steps whose seeds were computed before the first batch was requested", computed, [])
    for step, _ in enumerate(stream):
        ahead = len(computed) - step - 1
        expect(ahead <= 3, f"seeds were computed for {ahead} requests ahead of step {step}, prefetch is 3")
    expect_equal("steps whose seeds were computed", sorted(computed), list(range(ORDER.num_steps)))


@promise
def seeds_of_several_batches_are_computed_at_once(make: Make) -> None:
    """Compute the seeds of several batches concurrently if several batches are made concurrently."""
    meeting = threading.Barrier(2)

    def together(request: BatchRequest) -> BatchRequest:
        def seeds() -> Seeds:
            meeting.wait(WAIT_S)
            return request.seeds()

        return replace(request, seeds=seeds)

    asked = [together(request) for request in requests()[:4]]
    source = make(local())
    source.prepare()
    try:
        count = len(list(source.stream(asked, InFlight(2, 4))))
    except threading.BrokenBarrierError:
        count = 0
    expect_equal("number of batches whose seeds were computed concurrently", count, 4)


@promise
def spans_state_the_stages(make: Make) -> None:
    """Return the time of sampling, then the time of gathering, in `spans`."""
    source = make(local())
    source.prepare()
    for drawn in source.stream(requests(), InFlight()):
        expect_equal("stages", [span.stage for span in drawn.spans], ["sampling", "gathering"])
        expect(all(span.seconds >= 0 for span in drawn.spans), f"spans {drawn.spans}: one is negative")


@promise
def closing_early_leaves_no_thread(make: Make) -> None:
    """End all threads of a stream that is closed early, and make further streams afterwards."""
    source = make(local())
    source.prepare()
    before = threading.active_count()
    for taken in range(4):
        stream = source.stream(requests(), InFlight(3, 6))
        expect_equal("batches before close()", len(list(islice(stream, taken))), taken)
        stream.close()
        again = len(list(source.stream(requests(), InFlight(2, 2))))
        expect_equal("batches of the stream after close()", again, ORDER.num_steps)
    _expect_threads(before)


class FailsAt(SamplerBase):
    """A sampler that fails for one key."""

    def __init__(self, graph: GraphStore, key: int) -> None:
        super().__init__(graph)
        self._key = key

    def settings(self) -> Mapping[str, object]:
        """Return the key."""
        return {"key": self._key}

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Sample, or fail."""
        if key.value == self._key:
            raise OSError("the disk is gone")
        return SAMPLER.sample(seeds, key)


@promise
def an_error_ends_the_stream_at_its_batch(make: Make) -> None:
    """Raise the error of a batch at its position, and end the stream and its threads."""
    before = threading.active_count()
    asked = list(requests())
    source = make(local(FailsAt(GRAPH, asked[4].key.value)))
    source.prepare()
    stream = source.stream(asked, InFlight(2, 4))
    expect_equal("batches before the one that fails", len(list(islice(stream, 4))), 4)
    try:
        next(stream)
    except OSError:
        expect_equal("batches after the one that failed", list(stream), [])
        _expect_threads(before)
        return
    raise AssertionError("the batch that fails raised no error")


def _expect_threads(count: int) -> None:
    """Wait until the process has as many threads as before."""
    moment = threading.Event()
    for _ in range(round(WAIT_S / 0.01)):
        if threading.active_count() <= count:
            return
        moment.wait(0.01)
    raise AssertionError(f"{threading.active_count() - count} threads are left after {WAIT_S} s")


PROMISES: tuple[Callable[[Make], None], ...] = (
    a_batch_is_the_sample_of_its_seeds_with_its_columns,
    a_stream_gives_the_same_batches_in_order,
    known_seeds_make_the_same_batch,
    a_stream_of_no_requests_ends,
    seeds_are_computed_once_and_not_early,
    spans_state_the_stages,
    closing_early_leaves_no_thread,
    an_error_ends_the_stream_at_its_batch,
)
# For sources that make several batches concurrently.
THREADED_PROMISES: tuple[Callable[[Make], None], ...] = (seeds_of_several_batches_are_computed_at_once,)
