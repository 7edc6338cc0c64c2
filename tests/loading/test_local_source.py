"""Threads of this process keep the promises of a batch source."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from khop.batch import num_bytes
from khop.loading.source import Drawn
from khop.testing.batch_source import PROMISES, THREADED_PROMISES, Make, local, requests, values


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None]) -> None:
    promise(lambda source: source)


@pytest.mark.parametrize("promise", THREADED_PROMISES, ids=lambda promise: promise.__name__)
def test_batches_are_made_at_the_same_time(promise: Callable[[Make], None]) -> None:
    promise(lambda source: source)


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
