"""Requests arrive as they were sent: seeds, times, links and their columns, or numbers of a list."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import khop
from khop.loading.columns import ColumnChoice
from khop.sampling.seeds import StepShare
from khop.servers.frame import parsed
from khop.servers.request_wire import BatchQuery, read_query, written_query
from khop.servers.settings import Settings
from support.batch_kinds import PLAIN, TYPED
from support.same_samples import assert_same

SETTINGS = Settings("f" * 64, (), {"kind": "NeighborSampler", "with": {}}, ColumnChoice())


def read(seeds: khop.Seeds, *, with_settings: bool = False) -> BatchQuery:
    message = written_query(SETTINGS, seeds, khop.DrawKey((1 << 64) - 1), 2, 3, with_settings=with_settings)
    return read_query(parsed(message, 1 << 20, "request"))


@pytest.mark.parametrize("kind", [*PLAIN, *TYPED], ids=lambda kind: kind.__name__)
def test_seeds_arrive_as_they_were_sent(
    plain_graph: khop.Graph, typed_graph: khop.Graph, kind: object
) -> None:
    loader = kind(plain_graph if kind in PLAIN else typed_graph)  # type: ignore[operator]
    for rank in range(2):
        seeds = replace(loader._order, rank=rank, world_size=2).share(0, 0)
        assert_same(read(seeds).seeds, seeds)


@pytest.mark.parametrize("mine", [torch.arange(4), torch.tensor([1, 3]), torch.arange(0)])
def test_numbers_of_a_list_arrive_as_they_were_sent(mine: torch.Tensor) -> None:
    share = StepShare(torch.tensor([9, 2, 7, 1]), 40, mine, khop.DrawKey(8))
    assert_same(read(khop.Seeds({}, {}, listed=share)).seeds.listed, share)


def test_settings_travel_only_where_they_are_asked_for() -> None:
    seeds = khop.Seeds({}, {})
    assert read(seeds).given is None
    found = read(seeds, with_settings=True)
    assert found.given is not None
    assert found.given.value == {**SETTINGS.document}
    assert (found.settings, found.key, found.stage) == (
        SETTINGS.digest,
        khop.DrawKey((1 << 64) - 1),
        "batch of epoch 2, step 3",
    )


@pytest.mark.parametrize("mine", [torch.tensor([4]), torch.tensor([2, 1]), torch.tensor([-1])])
def test_a_share_outside_its_step_is_refused(mine: torch.Tensor) -> None:
    share = StepShare(torch.tensor([9, 2, 7, 1]), 40, mine, khop.DrawKey(8))
    with pytest.raises(ValueError, match="must be ascending numbers below 4"):
        read(khop.Seeds({}, {}, listed=share))
