"""Links: each used once per epoch, on any ranks, with its facts; and what a loader makes of them.

Digests of lists of links: ranges add up, and every number, end and column counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop import DrawKey, Links, LinkSampler, Loader, UniformNegatives
from khop.draw import Purpose
from khop.sampling.links.link_seeds import links_digest
from khop.sampling.seeds import SeedOrder, check_fingerprint
from khop.schema import EdgeType
from support.typed_shop import BOUGHT_BY, BUYS, bits, shop

PAIRS = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=40)


def links_of(by_type: dict[EdgeType, list[tuple[int, int]]]) -> Links:
    """Every link's label and time say which it is."""
    edges = {t: torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T for t, pairs in by_type.items()}
    numbers = {t: torch.arange(len(pairs)) for t, pairs in by_type.items()}
    return Links(edges, numbers, numbers, {t: n[:, None].repeat(1, 2) for t, n in numbers.items()})


@given(
    buys=PAIRS,
    back=PAIRS,
    batch_size=st.integers(1, 50),
    world_size=st.integers(1, 5),
    shuffle=st.booleans(),
)
def test_every_link_is_used_exactly_once_with_its_columns(
    buys: list[tuple[int, int]],
    back: list[tuple[int, int]],
    batch_size: int,
    world_size: int,
    shuffle: bool,
) -> None:
    by_type = {BUYS: [*buys, (0, 0)], BOUGHT_BY: back}
    order = SeedOrder(links_of(by_type), batch_size, shuffle, run_seed=5)
    used: dict[EdgeType, Counter[tuple[int, int]]] = {BUYS: Counter(), BOUGHT_BY: Counter()}
    for step in range(order.num_steps):
        shares = [replace(order, rank=r, world_size=world_size).share(1, step) for r in range(world_size)]
        assert sum(share.count for share in shares) == order.num_global_seeds(step)
        for edge_type, counter in used.items():
            parts = [share.links.by_type[edge_type] for share in shares if share.links is not None]
            whole = torch.cat([part.edges for part in parts], dim=1)
            assert all(torch.equal(part.batch_edges, whole) for part in parts)
            for part in parts:
                pairs = [(u, v) for u, v in part.edges.T.tolist()]
                assert part.labels is not None
                assert pairs == [by_type[edge_type][number] for number in part.labels.tolist()]
                assert part.times is not None
                assert part.negatives is not None
                assert part.times.tolist() == part.labels.tolist() == part.negatives[:, 1].tolist()
                counter.update(pairs)
    assert used == {edge_type: Counter(pairs) for edge_type, pairs in by_type.items()}


def test_negatives_have_a_key_of_the_epoch_and_the_step() -> None:
    order = SeedOrder(links_of({BUYS: [(0, 0)] * 5}), batch_size=2, run_seed=9)
    links = order.share(3, 1).links
    assert links is not None
    assert links.negative_key == DrawKey.of(9, Purpose.NEGATIVE, 3, 1)


ENDS = {BUYS: torch.tensor([[0, 1, 2], [3, 4, 5]])}


@pytest.mark.parametrize(
    "other",
    [
        Links({BUYS: ENDS[BUYS] + 1}),
        Links({BOUGHT_BY: ENDS[BUYS]}),
        Links(ENDS, labels={BUYS: torch.arange(3)}),
        Links(ENDS, times={BUYS: torch.arange(3)}),
        Links(ENDS, negatives={BUYS: torch.zeros(3, 1).long()}),
    ],
)
def test_the_fingerprint_covers_all_that_is_known_of_links(other: Links) -> None:
    order = SeedOrder(Links(ENDS), 2)
    check_fingerprint(SeedOrder(Links(ENDS), 2).fingerprint, order.fingerprint)
    with pytest.raises(ValueError, match="another seed list"):
        check_fingerprint(SeedOrder(other, 2).fingerprint, order.fingerprint)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"edges": {BUYS: torch.zeros(3, 2).long()}}, r"links of .*: int64 of shape \(3, 2\); give int64"),
        ({"edges": {BUYS: torch.zeros(2, 3)}}, r"links of .*: float32 of shape \(2, 3\); give int64"),
        (
            {"edges": {BUYS: [[0.5], [1]]}},
            r"links of .*buys.*: float32 of shape \(2, 1\); give int64 \(2, links\)",
        ),
        ({"edges": [ENDS[BUYS]]}, r"links of .*: int64 of shape \(1, 2, 3\); give int64 \(2, links\)"),
        ({"edges": {BUYS: 5}}, r"edges of .*buys.* 5: give numbers, as a tensor, an array or a list"),
        ({"labels": {BUYS: ["a", "b", "c"]}}, r"labels of .*buys.* cannot be read as numbers"),
        ({"labels": {BOUGHT_BY: torch.arange(3)}}, r"labels of .*bought by.*: there are links of .* only"),
        ({"labels": {}}, r"labels of .*buys.*: none, but links of \[\] have them"),
        ({"labels": {BUYS: torch.arange(4)}}, r"labels of .*: int64 of shape \(4,\) for 3 links"),
        ({"times": {BUYS: torch.zeros(3)}}, r"times of .*: float32 of shape \(3,\) for 3 links"),
        ({"negatives": {BUYS: torch.arange(3)}}, r"negatives of .*: int64 of shape \(3,\) for 3 links"),
    ],
)
def test_columns_that_do_not_fit_are_named(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Links(**{"edges": ENDS, **facts})


def loader(threads: int = 2, **settings: object) -> Loader:
    graph = shop()
    users, items = torch.arange(90) % 40, torch.arange(90) * 7 % 30
    links = Links({BUYS: torch.stack([users, items]), BOUGHT_BY: torch.stack([items, users])})
    sampler = LinkSampler(graph, [3, 2], negatives=UniformNegatives(2), exclude="edge")
    return Loader(sampler, links, 50, shuffle=True, columns=["x"], threads=threads, **settings)  # type: ignore[arg-type]


def test_a_loader_gives_batches_of_links_with_the_columns_of_their_ends() -> None:
    batches = list(loader(seed_columns=["age"]).epoch(0))
    assert [batch.num_global_seeds for batch in batches] == [50, 50, 50, 30]
    for batch in batches:
        nodes = {t: batch.sample.nodes[t][index] for t, index in batch.sample.seed_index.items()}
        assert all(torch.equal(batch.seed_nodes[t], ids) for t, ids in nodes.items())
        assert torch.equal(batch.seed_column("age"), batch.seed_nodes["user"] + 20)
        assert sum(rows.num_links for rows in batch.links.values()) == batch.num_global_seeds


def test_batches_of_links_do_not_depend_on_threads_and_continue_where_they_stood() -> None:
    whole = [bits(batch) for batch in loader(1).epoch(2)]
    assert [bits(batch) for batch in loader(4).epoch(2)] == whole
    begun = loader()
    walk = begun.epoch(2)
    next(walk)
    again = loader()
    again.load_state_dict(begun.state_dict())
    assert [bits(batch) for batch in again.epoch(2)] == whole[1:]


def test_the_mean_of_a_batch_of_links_is_over_pairs() -> None:
    batch = loader().batch(0, 3)
    pairs = sum(rows.source.numel() for rows in batch.links.values())
    assert pairs == 3 * batch.num_global_seeds
    assert float(batch.global_mean(torch.full((pairs,), 4.0))) == pytest.approx(4.0)


def test_links_of_no_edge_type_of_the_graph_are_named_by_the_loader() -> None:
    with pytest.raises(ValueError, match=r"links of .*likes.*: not an edge type; there are"):
        Loader(LinkSampler(shop(), [2]), Links({("user", "likes", "item"): ENDS[BUYS]}), 2)


@given(count=st.integers(0, 40), cut=st.integers(0, 40), width=st.integers(0, 3))
def test_digests_of_ranges_add_up_to_that_of_the_list(count: int, cut: int, width: int) -> None:
    cut = min(cut, count)
    facts = [torch.arange(2 * count).view(count, 2), torch.arange(count).half(), torch.ones(count, width)]
    stretches = ((0, facts, slice(0, cut)), (cut, facts, slice(cut, count)))
    every = torch.arange(facts[0].shape[0])
    total = sum(
        links_digest(torch.arange(first, first + of[0][some].shape[0]), [fact[some] for fact in of])
        for first, of, some in stretches
    )
    assert total % 2**64 == links_digest(every, facts)
    if count > 1:
        assert links_digest(every, [fact.flip(0) for fact in facts]) != links_digest(every, facts)
