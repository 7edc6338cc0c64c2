"""Whole batches whose draws are Triton's equal those of the CPU core, for every rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from khop import (
    DrawKey,
    Expansion,
    Labor,
    NeighborSampler,
    Seeds,
    Temporal,
    TemporalStrategy,
    TopK,
    Uniform,
    Weighted,
)
from khop.graph.needs import ArrayStore
from khop.graph.rule import Rule
from khop.graph.store import CscGraph, csc_graph_from_edges, stored_graph
from khop.kernels.choice import Engine, forcing
from khop.kernels.gather import Shards
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import drawn_with_larger_buffers
from khop.sampling.on_device.device_sampler import measured_capacities
from reference.hops import as_plain
from support.triton_rows import DEVICE

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "bought by", "user")
USERS, ITEMS, EDGES = 40, 25, 300
RULES = {
    "uniform": Uniform(),
    "replacement": Uniform(replacement=True),
    "weighted": Weighted("weight"),
    "temporal": Temporal("time"),
    "window": Temporal("time", window=(40, -1), inner=Weighted("weight")),
    "latest": Temporal("time", TemporalStrategy.LATEST),
}


def numbers(count: int, factor: int, bound: int) -> Tensor:
    return torch.arange(count) * factor % bound


def graph() -> CscGraph:
    users, items = numbers(EDGES, 7919, USERS), numbers(EDGES, 104_729, ITEMS)
    columns = {
        BUYS: {"time": numbers(EDGES, 31, 90), "weight": numbers(EDGES, 17, 5)},
        BOUGHT_BY: {"weight": numbers(EDGES, 13, 4)},
        "item": {"time": numbers(ITEMS, 11, 90)},
    }
    edges = {BUYS: (users, items), BOUGHT_BY: (items, users)}
    return csc_graph_from_edges({"user": USERS, "item": ITEMS}, edges, columns=columns, sort_by="time")


def seeds(rule: Rule) -> Seeds:
    """Items and users, some twice; times for rules that need them."""
    nodes = {"item": torch.tensor([3, 20, 3, 9]), "user": torch.tensor([7, 0])}
    positions = {"item": torch.arange(4), "user": torch.arange(4, 6)}
    if not isinstance(rule, Temporal):
        return Seeds(nodes, positions)
    return Seeds(nodes, positions, {"item": torch.tensor([80, 35, 5, 60]), "user": torch.tensor([90, 50])})


@pytest.mark.core(1)
@pytest.mark.skipif(torch.cuda.is_available(), reason="of graphs on the CPU; tests/gpu has those on a GPU")
@pytest.mark.parametrize("expansion", list(Expansion))
@pytest.mark.parametrize("rule", RULES)
def test_a_batch_is_that_of_the_core(rule: str, expansion: Expansion) -> None:
    sampler = NeighborSampler(graph(), [4, -1, 2], rule=RULES[rule], expansion=expansion, edge_ids=True)
    expected = sampler.sample(seeds(RULES[rule]), DrawKey(8))
    with forcing(Engine.TRITON):
        found = sampler.sample(seeds(RULES[rule]), DrawKey(8))
    assert as_plain(found) == as_plain(expected)


def divided(array: Tensor) -> Tensor:
    """The array as three ranks have it; kernels read only the pieces."""
    pieces = [piece.to(DEVICE, copy=True) for piece in array.split(max(1, -(-array.shape[0] // 3)))]
    return Shards.of(pieces or [array], DEVICE)  # type: ignore[return-value]


def in_pieces(whole: CscGraph) -> CscGraph:
    return stored_graph(whole, ArrayStore(lambda array: array.to(DEVICE), divided))


def simple_graph() -> CscGraph:
    """No node has two edges from the same source; ids of sources are not original ids."""
    sources = torch.cat([torch.randperm(ITEMS)[:12] for _ in range(ITEMS)])
    rows = torch.arange(ITEMS).repeat_interleave(12)
    columns = {("item", "to", "item"): {"weight": numbers(rows.numel(), 17, 97)}}
    return csc_graph_from_edges({"item": ITEMS}, {("item", "to", "item"): (sources, rows)}, columns=columns)


OF_DIVIDED = {
    "weighted": RULES["weighted"],
    "window": RULES["window"],
    "labor": Labor(),
    "top k": TopK("weight"),
}


@pytest.mark.core(2)
@pytest.mark.parametrize("rule", OF_DIVIDED)
def test_a_batch_from_divided_edges_is_that_of_the_core(rule: str) -> None:
    drawn_by = OF_DIVIDED[rule]
    is_simple = rule in ("labor", "top k")
    whole = simple_graph() if is_simple else graph()
    given = (
        Seeds({"item": torch.tensor([3, 20, 9])}, {"item": torch.arange(3)}) if is_simple else seeds(drawn_by)
    )
    settings: dict[str, Any] = {
        "fanouts": [4, 2] if is_simple else [4, -1, 2],
        "rule": drawn_by,
        "edge_ids": True,
    }
    sampler, stored = NeighborSampler(whole, **settings), in_pieces(whole)
    expected = sampler.sample(given, DrawKey(8))
    with forcing(Engine.TRITON):
        if DEVICE.type == "cpu":  # hop by hop, as exact inference draws
            found = NeighborSampler(stored, **settings).sample(given, DrawKey(8))
            assert as_plain(found) == as_plain(expected)
        capacities = measured_capacities(sampler, [(given, DrawKey(8))])
        plan = BatchPlan(NeighborSampler(stored, **settings), capacities, DEVICE)
        drawn = drawn_with_larger_buffers(plan, given, DrawKey(8), {}).map(Tensor.cpu)
    assert as_plain(drawn) == as_plain(expected)
