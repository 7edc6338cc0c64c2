"""What every batch source promises; used as contracts/graph_store.py says, with a source of any kind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import Tensor

from khop import NeighborSampler, Sample, SamplerBase, Seeds
from khop.draw import DrawKey
from khop.loading.columns import ColumnChoice, gather_columns
from khop.loading.loader import StepRequests, request_of
from khop.loading.local_source import LocalSource
from khop.loading.ordered_map import InFlight
from khop.loading.source import BatchRequest, BatchSource, Drawn
from khop.sampling.seeds import NodeSeeds, SeedOrder
from support.typed_shop import BUYS, shop

GRAPH = shop()
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

Make = Callable[[LocalSource], BatchSource]  # a source of the same batches as this one


def local(sampler: SamplerBase = SAMPLER) -> LocalSource:
    return LocalSource(sampler, GRAPH.features, COLUMNS, torch.device("cpu"))


def requests(epoch: int = 1) -> StepRequests:
    return StepRequests(ORDER, epoch, range(ORDER.num_steps))


def values(drawn: Drawn) -> list[object]:
    """All that a drawn batch is, but the time and the traffic it took."""
    found: list[object] = []

    def note(tensor: Tensor) -> Tensor:
        found.append((str(tensor.dtype), tensor.tolist()))
        return tensor

    drawn.map(note)
    return [found, *([(t, list(of)) for t, of in c.items()] for c in (drawn.columns, drawn.seed_columns))]


def a_batch_is_the_sample_of_its_seeds_with_its_columns(make: Make) -> None:
    source = make(local())
    source.prepare()
    for request in requests():
        sample = SAMPLER.sample(ORDER.share(request.epoch, request.step), request.key)
        sample, columns, seed_columns = gather_columns(GRAPH.features, COLUMNS, sample)
        seed_nodes = {t: sample.nodes[t][index] for t, index in sample.seed_index.items()}
        assert values(source.make(request)) == values(Drawn(sample, seed_nodes, columns, seed_columns))


def a_stream_gives_the_same_batches_in_order(make: Make) -> None:
    source = make(local())
    expected = [values(source.make(request)) for request in requests()]
    for in_flight in LIMITS:
        assert [values(drawn) for drawn in source.stream(requests(), in_flight)] == expected
        assert [values(drawn) for drawn in source.stream(list(requests())[3:5], in_flight)] == expected[3:5]


def known_seeds_make_the_same_batch(make: Make) -> None:
    source, wanted = make(local()), request_of(ORDER, 2, 3)
    known = BatchRequest.of(ORDER.share(2, 3), wanted.key, 2, 3)
    assert values(source.make(known)) == values(source.make(wanted))


def a_stream_of_nothing_ends_at_once(make: Make) -> None:
    assert list(make(local()).stream([], InFlight())) == []


def seeds_are_computed_once_and_not_before_they_are_needed(make: Make) -> None:
    computed: list[int] = []

    def counted(request: BatchRequest) -> BatchRequest:
        def seeds() -> Seeds:
            computed.append(request.step)
            return request.seeds()

        return replace(request, seeds=seeds)

    asked = [counted(request) for request in requests()]
    stream = make(local()).stream(asked, InFlight(2, 3))
    assert computed == []
    for step, _ in enumerate(stream):
        assert len(computed) <= step + 1 + 3
    assert sorted(computed) == list(range(ORDER.num_steps))


def seeds_of_several_batches_are_computed_at_the_same_time(make: Make) -> None:
    """Of sources that make several batches at once: computing seeds may be an exchange between ranks."""
    meeting = threading.Barrier(2)

    def together(request: BatchRequest) -> BatchRequest:
        def seeds() -> Seeds:
            meeting.wait(60)
            return request.seeds()

        return replace(request, seeds=seeds)

    asked = [together(request) for request in requests()[:4]]
    assert len(list(make(local()).stream(asked, InFlight(2, 4)))) == 4


def time_is_given_by_stage(make: Make) -> None:
    for drawn in make(local()).stream(requests(), InFlight()):
        stages = [span.stage for span in drawn.spans]
        assert stages == ["sampling", "gathering"]
        assert all(span.seconds >= 0 for span in drawn.spans)


def closing_early_leaves_no_thread(make: Make) -> None:
    source, before = make(local()), threading.active_count()
    for taken in range(4):
        stream = source.stream(requests(), InFlight(3, 6))
        assert len(list(islice(stream, taken))) == taken
        stream.close()
        assert len(list(source.stream(requests(), InFlight(2, 2)))) == ORDER.num_steps
    _until(lambda: threading.active_count() == before)


class FailsAt(SamplerBase):
    """A sampler that fails for one key."""

    def __init__(self, key: DrawKey) -> None:
        super().__init__(GRAPH)
        self._key = key

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        if key == self._key:
            raise OSError("the disk is gone")
        return SAMPLER.sample(seeds, key)


def an_error_comes_in_place_of_its_batch_and_ends_the_stream(make: Make) -> None:
    before = threading.active_count()
    asked = list(requests())
    source = make(local(FailsAt(asked[4].key)))
    stream = source.stream(asked, InFlight(2, 4))
    assert [drawn.spans[0].stage for drawn in islice(stream, 4)] == ["sampling"] * 4
    with pytest.raises(OSError, match="disk is gone"):
        next(stream)
    assert list(stream) == []
    _until(lambda: threading.active_count() == before)


def _until(is_so: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(1000):
        if is_so():
            return
        deadline.wait(0.01)
    raise AssertionError("threads are left after 10 s")


PROMISES: tuple[Callable[[Make], None], ...] = (
    a_batch_is_the_sample_of_its_seeds_with_its_columns,
    a_stream_gives_the_same_batches_in_order,
    known_seeds_make_the_same_batch,
    a_stream_of_nothing_ends_at_once,
    seeds_are_computed_once_and_not_before_they_are_needed,
    time_is_given_by_stage,
    closing_early_leaves_no_thread,
    an_error_comes_in_place_of_its_batch_and_ends_the_stream,
)
