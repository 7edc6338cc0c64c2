"""Native calls run without the GIL, and their results own their memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

import khop._core as _core
from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.edge_times import HopRows
from khop.kernels.node_index import NodeIndex
from khop.kernels.philox import permutation_slice, philox
from khop.sampling.rules.uniform import Uniform
from support.draws import sample_uniform
from support.gate import WAIT_S
from support.ticking import ticking

ROWS, DEGREE = 2_000_000, 6


@pytest.fixture(scope="module")
def csc() -> Csc:
    indices = torch.arange(ROWS * DEGREE, dtype=torch.int32) * 7919 % ROWS
    return Csc(torch.arange(ROWS + 1) * DEGREE, indices)


def long_calls(csc: Csc) -> dict[str, Callable[[], object]]:
    nodes = torch.arange(ROWS)
    index = NodeIndex(ROWS)
    counters = torch.zeros(1_000_000, 4, dtype=torch.int64)
    return {
        "sample_uniform": lambda: sample_uniform(csc, HopRows(nodes, DrawKey(0), 1), 5, Uniform()),
        "insert": lambda: index.insert(csc.indices),
        "permutation_slice": lambda: permutation_slice(0, 1 << 40, 0, 200_000),
        "philox": lambda: philox(0, counters),
    }


@pytest.mark.parametrize("name", ["sample_uniform", "insert", "permutation_slice", "philox"])
def test_python_runs_beside_a_long_native_call(csc: Csc, name: str) -> None:
    """With the GIL held it would in none; without, a busy machine may still give the core to one of them."""
    call, end = long_calls(csc)[name], time.monotonic() + WAIT_S
    with ticking() as ticker:
        while ticker.ticks_beside(call) <= 5_000:
            assert time.monotonic() < end


def test_kept_results_stay_as_they_are(csc: Csc) -> None:
    """Whoever keeps every batch gets other memory for each, at once."""

    def batch(step: int) -> list[torch.Tensor]:
        drawn = sample_uniform(
            csc, HopRows(torch.arange(500) * 31, DrawKey(step), 1), 5, Uniform(), edge_ids=True
        )
        index = NodeIndex(ROWS)
        assert drawn.edges is not None
        return [drawn.offsets, drawn.nodes, drawn.edges, index.insert(drawn.nodes), index.nodes()]

    kept = [batch(step) for step in range(20)]
    places = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for tensors in kept for t in tensors)
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    for step, tensors in enumerate(kept):
        assert all(torch.equal(a, b) for a, b in zip(tensors, batch(step), strict=True))


def test_a_warm_loop_takes_no_new_memory(csc: Csc) -> None:
    index = NodeIndex(ROWS)

    def batch(step: int) -> None:
        index.clear()
        index.insert(torch.arange(300) + step)
        for hop in range(3):
            drawn = sample_uniform(csc, HopRows(index.nodes(), DrawKey(step), hop), 5, Uniform())
            index.insert(drawn.nodes)

    for step in range(5):
        batch(step)
    _, lent, reused, fresh = _core.buffer_pool_usage()
    for step in range(5, 50):
        batch(step)
    assert _core.buffer_pool_usage()[3] == fresh
    assert _core.buffer_pool_usage()[2] > reused
    assert _core.buffer_pool_usage()[1] == lent


def test_results_outlive_what_made_them(csc: Csc) -> None:
    nodes = NodeIndex(10)
    local = nodes.insert(torch.tensor([4, 2, 4]))
    del nodes
    assert local.tolist() == [0, 1, 0]


def test_results_can_be_written_and_resized_like_any_tensor(csc: Csc) -> None:
    drawn = sample_uniform(csc, HopRows(torch.tensor([0]), DrawKey(0), 1), 3, Uniform())
    drawn.nodes.fill_(7)
    assert torch.cat([drawn.nodes, drawn.nodes]).tolist() == [7] * 6


def test_threads_that_sample_at_once_get_what_one_gets(csc: Csc) -> None:
    def sample(step: int) -> torch.Tensor:
        frontier = torch.arange(5000) * 13
        return sample_uniform(csc, HopRows(frontier, DrawKey(step), 1), 4, Uniform(), threads=2).nodes

    expected = [sample(step) for step in range(12)]
    found: dict[int, torch.Tensor] = {}

    def work(first: int) -> None:
        for step in range(first, 12, 4):
            found[step] = sample(step)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[step], expected[step]) for step in range(12))


def test_an_unknown_dispatch_level_is_refused() -> None:
    before = _core.dispatch_level()
    with pytest.raises(ValueError, match="dispatch level mmx"):
        _core.set_dispatch_level("mmx")
    assert _core.dispatch_level() == before
    assert before in _core.dispatch_levels()
