"""Wrong batch sources are refused by what is wrong."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import pytest

from khop.loading.local_source import LocalSource
from khop.loading.ordered_map import InFlight
from khop.loading.source import BatchRequest, Drawn
from khop.testing import batch_source as suite
from khop.testing.batch_source import PROMISES, Make
from khop.testing.promises import BrokenPromise, keep_all


@dataclass(frozen=True)
class OneByOne:
    """The smallest source: one batch after the other."""

    inner: LocalSource

    def prepare(self) -> None:
        self.inner.prepare()

    def make(self, request: BatchRequest) -> Drawn:
        return self.inner.draw(request)

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        for request in requests:
            yield self.make(request)


@pytest.mark.long
def test_a_source_without_threads_keeps_the_suite() -> None:
    keep_all(PROMISES, OneByOne)


class Backwards(OneByOne):
    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        for request in list(requests)[::-1]:
            yield self.make(request)


class DropsTheLast(OneByOne):
    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        for request in list(requests)[:-1]:
            yield self.make(request)


class OtherKey(OneByOne):
    def make(self, request: BatchRequest) -> Drawn:
        return self.inner.draw(replace(request, key=request.key.plus(1)))


class AllAtOnce(OneByOne):
    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        yield from [self.make(request) for request in requests]


class ComputesTwice(OneByOne):
    def make(self, request: BatchRequest) -> Drawn:
        request.seeds()
        return self.inner.draw(request)


class NoSpans(OneByOne):
    def make(self, request: BatchRequest) -> Drawn:
        return replace(self.inner.draw(request), spans=())


class GoesOn(OneByOne):
    """A batch that fails is left out."""

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        for request in requests:
            try:
                drawn = self.make(request)
            except OSError:
                continue
            yield drawn


class LeavesThreads(OneByOne):
    """A thread of a stream outlives it until the test ends it."""

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        threading.Thread(target=ENDED.wait, args=(120,), daemon=True).start()
        yield from super().stream(requests, in_flight)


class OwnSeeds(OneByOne):
    """The seeds of a step come from the source's own order, whatever the request says."""

    def make(self, request: BatchRequest) -> Drawn:
        share = suite.ORDER.share(request.epoch, request.step)
        known = request.seeds() is not share and request.step == 3
        drawn = self.inner.draw(request)
        return replace(drawn, columns={}) if known and request.seeds() is request.seeds() else drawn


class OneMore(OneByOne):
    """A stream begins with a batch that nobody asked for, if there are no requests."""

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        if not requests:
            yield self.make(suite.requests()[0])
        yield from super().stream(requests, in_flight)


ENDED = threading.Event()
WRONG: dict[type[OneByOne], tuple[Callable[[Make], None], str]] = {
    Backwards: (suite.a_stream_gives_the_same_batches_in_order, "steps whose batch differs from make"),
    DropsTheLast: (suite.a_stream_gives_the_same_batches_in_order, "number of batches"),
    OtherKey: (
        suite.a_batch_is_the_sample_of_its_seeds_with_its_columns,
        "Make the batch that the sampler returns",
    ),
    AllAtOnce: (suite.seeds_are_computed_once_and_not_early, "ahead of step 0, prefetch is 3"),
    ComputesTwice: (suite.seeds_are_computed_once_and_not_early, "ahead of step 3, prefetch is 3"),
    NoSpans: (suite.spans_state_the_stages, "Return the time of sampling"),
    GoesOn: (suite.an_error_ends_the_stream_at_its_batch, "the batch that fails raised no error"),
    OwnSeeds: (suite.known_seeds_make_the_same_batch, "batch of known seeds"),
    OneMore: (suite.a_stream_of_no_requests_ends, "batches of no requests"),
    OneByOne: (suite.seeds_of_several_batches_are_computed_at_once, "computed concurrently: 0, must be 4"),
    LeavesThreads: (suite.closing_early_leaves_no_thread, "threads are left after"),
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_source_is_refused_by_what_is_wrong(
    kind: type[OneByOne], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.testing.batch_source.WAIT_S", 0.2)  # threads that are left never end
    promise, sentence = WRONG[kind]
    assert promise in (*suite.PROMISES, *suite.THREADED_PROMISES)
    ENDED.clear()
    try:
        with pytest.raises(BrokenPromise, match=re.escape(sentence)):
            promise(kind)
    finally:
        ENDED.set()


def test_each_promise_has_a_wrong_source() -> None:
    assert {promise for promise, _ in WRONG.values()} == {*PROMISES, *suite.THREADED_PROMISES}
