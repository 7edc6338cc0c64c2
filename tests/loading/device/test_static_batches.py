"""Input of recorded steps: the loader's seeds, keys and position, and capacities that a checkpoint keeps."""

from __future__ import annotations

import json

import pytest
import torch

import khop
from khop.loading.device.device_source import saved_capacities
from khop.loading.source import request_of
from support.recorded_runs import as_device, placed
from support.small_graphs import one_type

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU has no kernels beside a GPU")
SMALL = one_type()


def loader(sampler: khop.Sampler | None = None, seeds: object = None) -> khop.Loader:
    sampler = sampler or khop.NeighborSampler(placed(SMALL), [2])
    seeds = torch.arange(9) if seeds is None else seeds
    return khop.Loader(sampler, seeds, 4, shuffle=True, seed=5)  # type: ignore[arg-type]


def test_inputs_are_those_of_the_loader_and_its_position_moves_with_the_steps() -> None:
    with as_device():
        made = loader()
        batches = made.static_batches()
        loop = batches.epoch(2)
        inputs = list(loop.inputs())
        assert [given.seeds.count for given in inputs] == [4, 4, 1]
        assert [given.weight for given in inputs] == [1 / 4, 1 / 4, 1]
        for step, given in enumerate(inputs):
            request = request_of(batches.order, 2, step)
            assert given.key == request.key
            assert torch.equal(given.seeds.nodes["node"], request.seeds().nodes["node"])
        assert (made.state_dict()["epoch"], made.state_dict()["step"]) == (2, 0)  # read ahead is not received
        loop.received(0)
        assert made.state_dict()["step"] == 1
        made.load_state_dict(made.state_dict())
        assert batches.epoch(2).steps == range(1, 3)


@pytest.mark.long
def test_capacities_survive_a_checkpoint_of_as_many_ranks() -> None:
    with as_device():
        batches = loader().static_batches()
        state = json.loads(json.dumps(batches.state()))
        edge_types = SMALL.store.schema.edge_types
        assert saved_capacities(state, 1, edge_types) == batches.room.capacities
        assert saved_capacities(state, 2, edge_types) is None
        assert saved_capacities({}, 1, edge_types) is None
        larger = {**state, "nodes": [{"node": 30}, {"node": 55}], "rows": [{"node": 30}]}
        assert loader().static_batches(larger).room.capacities.nodes[0] == {"node": 30}


def test_inputs_of_links_have_their_rows_and_a_weight_per_pair() -> None:
    edge_type = ("node", "to", "node")
    links = khop.Links({edge_type: torch.arange(12).view(2, 6)})
    sampler = khop.LinkSampler(placed(SMALL), [2], negatives=khop.UniformNegatives(2), exclude="edge")
    with as_device():
        batches = loader(sampler, links).static_batches()
        inputs = list(batches.epoch(0).inputs())
    assert [(given.num_seeds, given.num_losses) for given in inputs] == [(4, 12), (2, 6)]
    assert [given.weight for given in inputs] == [1 / 12, 1 / 6]
    assert [given.excluded[edge_type].shape[1] for given in inputs] == [4, 2]
    assert batches.room.capacities.links == {edge_type: 4}
