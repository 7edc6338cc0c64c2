"""Slots of batches with static shapes: rows and seeds behind the last one have no weight.

Links with room for more of them: links and negatives keep their order, and the others weigh nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

import khop
from khop import DrawKey, Expansion, NeighborSampler, Seeds, SymmetricSum
from khop.batch import LinkRows
from khop.errors import Unsupported
from khop.graph.features.table import FeatureTable
from khop.graph.rule import Rule
from khop.kernels.gather import Copies
from khop.kernels.triton.gather import gather
from khop.loading.columns import ColumnChoice
from khop.loading.device.batch_slot import BatchSlot, LinkSlots, StepInput, padded_links
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.rules.uniform import Uniform
from support.recorders import recorder
from support.small_graphs import one_type
from support.triton_rows import DEVICE
from support.triton_segments import by_triton

SMALL = one_type()
CHOICE = ColumnChoice({"node": ("x",)}, {}, {"node": ("y",)})


def step(number: int, size: int) -> StepInput:
    ids = torch.randint(60, (size,), generator=torch.Generator().manual_seed(number))
    return StepInput(Seeds({"node": ids}, {"node": torch.arange(size)}), DrawKey(number), 1 / size)


def slot(
    copies: Mapping[str, Mapping[str, Copies]] = MappingProxyType({}),
    expansion: Expansion = Expansion.LAYERED,
    rule: Rule = Uniform(),
    pinned: frozenset[str] = frozenset(),
) -> BatchSlot:
    sampler = NeighborSampler(SMALL.store, [3, 2], expansion=expansion, rule=rule)
    warm_up = [(step(n, 6).seeds, step(n, 6).key) for n in range(3)]
    plan = BatchPlan(sampler, measured_capacities(sampler, warm_up), DEVICE)
    columns = {t: {name: c.to(DEVICE) for name, c in of.items()} for t, of in SMALL.features.columns.items()}
    return BatchSlot(plan, FeatureTable(columns, pinned=pinned), CHOICE, recorder(), copies)


def test_a_batch_is_the_ordinary_one_with_rows_without_weight_behind_it() -> None:
    with by_triton():
        made = slot()
        for given in (step(1, 6), step(2, 4)):
            assert made.fits(given)
            made.make(given)
            assert not made.overflowed()
            seeds = given.seeds.nodes["node"]
            exact, batch = made.exact(given), made.batch
            nodes = exact.sample.nodes["node"].cpu()
            count, size = nodes.numel(), seeds.numel()
            assert torch.equal(batch.sample.nodes["node"][:count].cpu(), nodes)
            assert torch.equal(exact.columns["node"]["x"].cpu(), SMALL.features.columns["node"]["x"][nodes])
            found = batch.columns["node"]["x"]
            assert torch.equal(found[:count], exact.columns["node"]["x"])
            assert (found[count:] == 0).all()
            assert torch.equal(batch.seed_columns["node"]["y"][:size], exact.seed_columns["node"]["y"])
            assert made.weights[:size].tolist() == [1 / size] * size
            assert (made.weights[size:] == 0).all()


@pytest.mark.long
def test_few_programs_read_columns_in_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []

    def gathered(*operands: Tensor, is_pinned: bool, **more: Tensor | None) -> None:
        read.append(is_pinned)
        gather(*operands, is_pinned=is_pinned, **more)  # type: ignore[misc]

    monkeypatch.setattr("khop.kernels.triton.gather.gather", gathered)
    with by_triton():
        slot(pinned=frozenset({"x"})).make(step(1, 6))
    assert read[:2] == [True, False]  # x, then the labels


@pytest.mark.long
@pytest.mark.parametrize("expansion", list(Expansion))
def test_blocks_are_those_of_each_batch_with_rows_without_edges_behind_them(expansion: Expansion) -> None:
    with by_triton():
        made = slot(expansion=expansion, rule=SymmetricSum())
        for given in (step(1, 6), step(2, 4), step(0, 6)):
            made.make(given)
            assert not made.overflowed()
            for found, wanted in zip(made.batch.blocks, made.exact(given).blocks, strict=True):
                edges, exact = found.adjacency, wanted.adjacency
                count = exact.indices.numel()
                assert count
                assert torch.equal(edges.indptr[: exact.num_dst + 1], exact.indptr)
                assert (edges.indptr[exact.num_dst :] == count).all()
                assert torch.equal(edges.indices[:count], exact.indices)
                assert edges.weight is not None
                assert exact.weight is not None
                assert torch.equal(edges.weight[:count], exact.weight)
                assert edges.is_padded
                assert not exact.is_padded


@pytest.mark.long
def test_rows_in_a_cache_are_counted_in_both_shapes() -> None:
    column = SMALL.features.columns["node"]["x"].to(DEVICE)
    slots = torch.arange(60, dtype=torch.int32, device=DEVICE)
    slots[1::2] = -1  # even nodes have copies
    with by_triton():
        made, given = slot({"node": {"x": Copies(slots, column)}}), step(1, 6)
        made.make(given)
        assert not made.overflowed()
        exact = made.exact(given)
    nodes = exact.sample.nodes["node"]
    wanted = {"needed_rows": nodes.numel(), "device_cache_rows": int((nodes % 2 == 0).sum())}
    assert made.traffic() == exact.traffic == wanted


@pytest.mark.long
def test_seeds_without_a_place_do_not_fit() -> None:
    with by_triton():
        made = slot()
        assert not made.fits(step(1, 60))
        exact = made.exact(step(1, 60))
    assert exact.columns["node"]["x"].shape[0] == exact.sample.nodes["node"].numel()


def test_columns_of_edges_have_no_static_shape() -> None:
    plan = BatchPlan(
        NeighborSampler(SMALL.store, [2]),
        measured_capacities(NeighborSampler(SMALL.store, [2]), [(step(1, 3).seeds, DrawKey(1))]),
        DEVICE,
    )
    choice = ColumnChoice({}, {("node", "to", "node"): ("w",)}, {})
    with pytest.raises(ValueError, match="edge columns have no static shapes"):
        BatchSlot(plan, SMALL.features, choice, recorder())


EDGE = ("user", "buys", "item")


def pairs(links: int, negatives: int, first: int = 1) -> LinkRows:
    """Links numbered from `first` on, each with negatives as further pairs, numbered after the links."""
    count = links * (1 + negatives)
    rows = torch.arange(first, first + count)
    labels = torch.cat([torch.ones(links), torch.zeros(links * negatives)])
    return LinkRows(rows, rows + 100, torch.arange(links), labels, None, 1 + negatives, relations=rows * 2)


def test_negatives_begin_behind_the_room_of_all_links() -> None:
    found = padded_links(pairs(2, 2), 3)
    assert found.source.tolist() == [1, 2, 0, 3, 4, 5, 6, 0, 0]
    assert found.destination.tolist() == [101, 102, 0, 103, 104, 105, 106, 0, 0]
    assert found.labels is not None
    assert found.labels.tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert found.relations is not None
    assert found.relations.tolist() == [2, 4, 0, 6, 8, 10, 12, 0, 0]
    assert (found.positions.tolist(), found.pairs_per_link) == ([0, 1, 0], 3)


def test_triplets_have_a_row_per_link() -> None:
    given = LinkRows(*torch.arange(6).view(3, 2), None, torch.ones(2, 4).long(), times=torch.tensor([5, 6]))
    found = padded_links(given, 3)
    assert found.negatives is not None
    assert found.negatives.tolist() == [[1] * 4, [1] * 4, [0] * 4]
    assert found.times is not None
    assert found.times.tolist() == [5, 6, 0]
    assert found.labels is None


def test_a_later_batch_overwrites_rows_and_weights() -> None:
    slots = LinkSlots({EDGE: 3}, {EDGE: pairs(3, 1)}, torch.device("cpu"))
    for given in (pairs(3, 1), pairs(2, 1, first=40)):
        slots.write({EDGE: given}, 0.25)
    assert slots.rows[EDGE].source.tolist() == [40, 41, 0, 42, 43, 0]
    assert slots.weights.tolist() == [0.25, 0.25, 0, 0.25, 0.25, 0]


@pytest.mark.parametrize(("links", "fits"), [(0, True), (3, True), (4, False)])
def test_links_beyond_the_room_do_not_fit(links: int, fits: bool) -> None:
    slots = LinkSlots({EDGE: 3}, {EDGE: pairs(1, 1)}, torch.device("cpu"))
    assert slots.fits({EDGE: pairs(links, 1)}) is fits


# Loaders without kernels have no batches with static shapes.


def test_batches_of_the_cpu_have_no_static_shapes() -> None:
    loader = khop.Loader(khop.NeighborSampler(one_type().store, [2]), torch.arange(5), 2)
    with pytest.raises(Unsupported, match="the CPU draws the neighbors; place the edges where the GPU"):
        loader.static_batches()
