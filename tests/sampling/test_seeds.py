"""Every seed once per epoch, in an order that only (seeds, batch size, run seed, epoch) decide."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.owners import PartitionOwners
from khop.draw import DrawKey, Purpose
from khop.sampling.links.link_seeds import Links
from khop.sampling.seeds import NodeSeeds, SeedAffinity, SeedOrder, Seeds, check_fingerprint
from khop.testing.reference import permutation

TYPED_SEEDS = st.dictionaries(
    st.sampled_from(["user", "item", "tag"]), st.lists(st.integers(0, 99), max_size=40), min_size=1
).filter(lambda by_type: any(by_type.values()))


def order_of(
    by_type: dict[str, list[int]], batch_size: int, *, shuffle: bool = True, run_seed: int = 0
) -> SeedOrder:
    seeds = {node_type: torch.tensor(ids, dtype=torch.int64) for node_type, ids in by_type.items()}
    return SeedOrder(NodeSeeds(seeds), batch_size, shuffle, run_seed)


def shares(order: SeedOrder, epoch: int, step: int, world_size: int) -> list[Seeds]:
    ranks = [replace(order, rank=rank, world_size=world_size) for rank in range(world_size)]
    return [of_rank.share(epoch, step) for of_rank in ranks]


def joined(parts: list[Seeds]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Nodes and positions of all parts, rank after rank."""
    types = parts[0].nodes.keys()
    nodes = {t: [node for part in parts for node in part.nodes[t].tolist()] for t in types}
    return nodes, {t: [p for part in parts for p in part.positions[t].tolist()] for t in types}


@given(
    by_type=TYPED_SEEDS,
    batch_size=st.integers(1, 40),
    world_size=st.integers(1, 9),
    epoch=st.integers(0, 3),
)
def test_drop_last_omits_the_last_short_global_batch_alike_on_any_number_of_ranks(
    by_type: dict[str, list[int]], batch_size: int, world_size: int, epoch: int
) -> None:
    order = order_of(by_type, batch_size)
    if order.num_seeds < batch_size:
        with pytest.raises(ValueError, match="no batch is complete; give a smaller batch_size"):
            replace(order, drop_last=True)
        return
    whole = replace(order, drop_last=True)
    assert whole.num_steps == order.num_seeds // batch_size
    for step in range(whole.num_steps):
        assert whole.num_global_seeds(step) == batch_size
        for rank in range(world_size):
            mine, same = (replace(o, rank=rank, world_size=world_size) for o in (whole, order))
            assert mine.share(epoch, step).nodes.keys() == same.share(epoch, step).nodes.keys()
            for node_type, ids in mine.share(epoch, step).nodes.items():
                assert torch.equal(ids, same.share(epoch, step).nodes[node_type])
    with pytest.raises(ValueError, match=f"step {whole.num_steps}: an epoch has steps 0 to"):
        whole.share(epoch, whole.num_steps)


def test_drop_last_is_part_of_the_fingerprint_and_states_from_before_it_still_fit() -> None:
    order = order_of({"user": [1, 2, 3]}, 2)
    dropping = replace(order, drop_last=True)
    with pytest.raises(ValueError, match=r"another drop_last \(False, here True\)"):
        check_fingerprint(order.fingerprint, dropping.fingerprint)
    before = {name: value for name, value in order.fingerprint.items() if name != "drop_last"}
    check_fingerprint(before, order.fingerprint)
    with pytest.raises(ValueError, match=r"another drop_last \(False, here True\)"):
        check_fingerprint(before, dropping.fingerprint)


@given(
    by_type=TYPED_SEEDS,
    batch_size=st.integers(1, 130),
    world_size=st.integers(1, 9),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_every_seed_is_used_exactly_once(
    by_type: dict[str, list[int]], batch_size: int, world_size: int, epoch: int, shuffle: bool
) -> None:
    order = order_of(by_type, batch_size, shuffle=shuffle)
    used: dict[str, Counter[int]] = {node_type: Counter() for node_type in by_type}
    positions: list[int] = []
    for step in range(order.num_steps):
        nodes, at = joined(shares(order, epoch, step, world_size))
        for node_type, ids in nodes.items():
            used[node_type].update(ids)
        positions += [position for of_type in at.values() for position in of_type]
        assert sum(len(ids) for ids in nodes.values()) == order.num_global_seeds(step)
    assert used == {node_type: Counter(ids) for node_type, ids in by_type.items()}
    assert sorted(positions) == list(range(order.num_seeds))


@given(
    by_type=TYPED_SEEDS, batch_size=st.integers(1, 130), world_size=st.integers(2, 9), step=st.integers(0, 3)
)
def test_ranks_share_the_batch_that_one_rank_would_have(
    by_type: dict[str, list[int]], batch_size: int, world_size: int, step: int
) -> None:
    order = order_of(by_type, batch_size)
    step %= order.num_steps
    alone = joined(shares(order, 2, step, 1))
    parts = shares(order, 2, step, world_size)
    assert joined(parts) == alone
    counts = [part.count for part in parts]
    assert max(counts) - min(counts) <= 1


def test_a_share_may_be_empty_and_the_rank_makes_the_step_all_the_same() -> None:
    order = order_of({"node": [5, 6, 7]}, batch_size=2)
    counts = [
        [part.count for part in shares(order, 0, step, world_size=4)] for step in range(order.num_steps)
    ]
    assert [sum(of_step) for of_step in counts] == [2, 1]
    assert min(counts[0]) == 0


@given(count=st.integers(1, 60), epoch=st.integers(0, 5), run_seed=st.integers(0, 2**64 - 1))
def test_the_order_is_the_keyed_permutation(count: int, epoch: int, run_seed: int) -> None:
    order = order_of({"node": list(range(100, 100 + count))}, batch_size=7, run_seed=run_seed)
    key = DrawKey.of(run_seed, Purpose.SHUFFLE, epoch).value
    found = [
        node for step in range(order.num_steps) for node in order.share(epoch, step).nodes["node"].tolist()
    ]
    assert found == [100 + permutation(key, count, position) for position in range(count)]


def test_without_shuffle_the_order_is_the_lists() -> None:
    order = order_of({"b": [3, 1], "a": [9, 9, 8]}, batch_size=3, shuffle=False)
    first, second = order.share(4, 0), order.share(4, 1)
    assert (first.nodes["b"].tolist(), first.nodes["a"].tolist()) == ([3, 1], [9])
    assert (second.nodes["b"].tolist(), second.nodes["a"].tolist()) == ([], [9, 8])
    assert (first.positions["a"].tolist(), second.positions["a"].tolist()) == ([2], [3, 4])


def test_epochs_and_run_seeds_shuffle_differently() -> None:
    order = order_of({"node": list(range(50))}, batch_size=50)
    orders = [order.share(0, 0), order.share(1, 0), replace(order, run_seed=1).share(0, 0)]
    assert len({tuple(seeds.nodes["node"].tolist()) for seeds in orders}) == 3


def test_seeds_of_several_types_are_mixed() -> None:
    order = order_of({"user": list(range(100)), "item": list(range(100))}, batch_size=20)
    for step in range(order.num_steps):
        assert all(ids.numel() > 0 for ids in order.share(0, step).nodes.values())


def test_the_fingerprint_is_plain_and_the_same_for_the_same_order() -> None:
    order = order_of({"node": [1, 2, 3]}, batch_size=2)
    again = replace(order_of({"node": [1, 2, 3]}, batch_size=2), rank=1, world_size=3)
    assert order.fingerprint == again.fingerprint
    assert all(isinstance(value, str | int) for value in order.fingerprint.values())


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (order_of({"node": [1, 2, 4]}, 2), "saved with another seed list: its"),
        (order_of({"item": [1, 2, 3]}, 2), "another seed list"),
        (order_of({"node": [1, 2, 3]}, 3), r"batch_size \(3, here 2\)"),
        (order_of({"node": [1, 2, 3]}, 2, run_seed=9), r"seed \(9, here 0\)"),
        (order_of({"node": [1, 2, 3]}, 2, shuffle=False), r"shuffle \(False, here True\)"),
    ],
)
def test_another_order_has_another_fingerprint_and_the_difference_is_named(
    other: SeedOrder, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        check_fingerprint(other.fingerprint, order_of({"node": [1, 2, 3]}, 2).fingerprint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size 0: must be a whole number, 1 or more"),
        (
            {"seeds": NodeSeeds({"node": torch.empty(0, dtype=torch.int64)})},
            r"seeds: none given for types \['node'\]",
        ),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2: must be from 0 to 1"),
    ],
)
def test_an_order_that_cannot_be_is_an_error(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(order_of({"node": [1, 2, 3]}, 2), **change)


@pytest.mark.parametrize("step", [-1, 2])
def test_a_step_beyond_the_epoch_is_an_error(step: int) -> None:
    with pytest.raises(ValueError, match="an epoch has steps 0 to 1"):
        order_of({"node": [1, 2, 3]}, 2).share(0, step)


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_rank_knows_the_seeds_of_the_step(world_size: int) -> None:
    """In global order by type, so that loss weights have a total before the step."""
    nodes = NodeSeeds({"user": torch.arange(7) * 3, "item": torch.arange(5)})
    for step in range(3):
        shares = [SeedOrder(nodes, 5, True, 4, rank, world_size).share(1, step) for rank in range(world_size)]
        for share in shares:
            assert share.batch_nodes is not None
            for node_type, ids in share.batch_nodes.items():
                together = torch.cat([of_rank.nodes[node_type] for of_rank in shares])
                assert ids.tolist() == together.tolist()


BOUNDS = {"user": [0, 3, 11, 20], "item": [0, 0, 2, 9]}
NODES = NodeSeeds({"user": torch.arange(20).repeat(2), "item": torch.arange(9)})
LIKES = ("user", "likes", "item")
LINKS = Links({LIKES: torch.stack([torch.arange(40) % 20, torch.arange(40) % 9])})


def affinity_of(world_size: int) -> SeedAffinity:
    return SeedAffinity(BOUNDS, [PartitionOwners(3, 0, world_size).ranks_of(part) for part in range(3)])


def even_shares(order: SeedOrder, epoch: int, step: int) -> list[Seeds]:
    return [replace(order, rank=rank).share(epoch, step) for rank in range(order.world_size)]


@given(world_size=st.integers(1, 7), batch_size=st.integers(1, 60), epoch=st.integers(0, 3))
def test_every_seed_is_in_one_share_and_shares_are_as_even_as_ever(
    world_size: int, batch_size: int, epoch: int
) -> None:
    plain = SeedOrder(NODES, batch_size, shuffle=True, world_size=world_size)
    local = replace(plain, affinity=affinity_of(world_size))
    for step in range(plain.num_steps):
        before, after = even_shares(plain, epoch, step), even_shares(local, epoch, step)
        assert [share.count for share in after] == [share.count for share in before]
        for node_type in NODES.nodes:
            positions = [torch.cat([share.positions[node_type] for share in of]) for of in (before, after)]
            nodes = [torch.cat([share.nodes[node_type] for share in of]) for of in (before, after)]
            order = positions[1].argsort()
            assert torch.equal(positions[1][order], positions[0])
            assert torch.equal(nodes[1][order], nodes[0])
            for share in after:
                assert bool((share.positions[node_type].diff() > 0).all())  # in global order


@given(world_size=st.integers(2, 7), epoch=st.integers(0, 3))
def test_no_rank_has_anothers_seed_while_that_one_has_its(world_size: int, epoch: int) -> None:
    """Or room for it: a seed lies elsewhere only where its holders have no more room."""
    order = SeedOrder(NODES, 13, shuffle=True, world_size=world_size, affinity=affinity_of(world_size))
    holders = PartitionOwners(3, 0, world_size)
    for step in range(order.num_steps):
        of_ranks = [
            [
                int(torch.searchsorted(torch.tensor(BOUNDS[t][1:]), node, right=True))
                for t, nodes in share.nodes.items()
                for node in nodes
            ]
            for share in even_shares(order, epoch, step)
        ]
        for rank, parts in enumerate(of_ranks):
            for part in parts:
                held_by = holders.ranks_of(part)
                if rank not in held_by:
                    assert all(set(of_ranks[holder]) <= set(holders.parts_of(holder)) for holder in held_by)


def test_links_go_to_the_owners_of_their_sources() -> None:
    order = SeedOrder(LINKS, 40, world_size=3, affinity=affinity_of(3))
    parts = []
    for share in even_shares(order, 0, 0):
        assert share.links is not None
        sources = share.links.by_type[LIKES].edges[0]
        parts.append(torch.bincount(torch.searchsorted(torch.tensor([3, 11, 20]), sources, right=True)))
    assert [int(of_rank[rank]) for rank, of_rank in enumerate(parts)] == [6, 13, 14]


def test_alone_a_rank_has_all() -> None:
    order = SeedOrder(NODES, 49, affinity=affinity_of(3))
    assert torch.equal(order.share(0, 0).nodes["user"], NODES.nodes["user"])
