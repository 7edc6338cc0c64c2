"""Node sets number nodes type by type, and go round among their users.

In a batch of disjoint trees every seed's tree is the sample of that seed alone, under the tree's key.
"""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop import DrawKey, Expansion, NeighborSampler, Sample, Seeds, Uniform
from khop.sampling.node_set import NodeSet, NodeSetPool
from khop.sampling.seeds import check_ids
from khop.testing.reference import tree_key
from reference import hops
from reference.hops import PlainBlock, PlainSample, as_plain
from support.random_graphs import RowQuery, questions, ring, seeds


def test_every_type_has_its_own_numbers() -> None:
    nodes = NodeSet({"user": 10, "item": 10})
    assert nodes.insert("user", torch.tensor([7, 3, 7])).tolist() == [0, 1, 0]
    assert nodes.insert("item", torch.tensor([3, 9])).tolist() == [0, 1]
    assert nodes.insert("user", torch.tensor([9, 3], dtype=torch.int32)).tolist() == [2, 1]
    assert nodes.counts() == {"user": 3, "item": 2}
    assert {t: ids.tolist() for t, ids in nodes.nodes().items()} == {"user": [7, 3, 9], "item": [3, 9]}
    frontier = nodes.frontier(start={"user": 1, "item": 0})
    assert {t: of_type.nodes.tolist() for t, of_type in frontier.items()} == {"user": [3, 9], "item": [3, 9]}


def test_a_set_comes_back_empty_also_after_a_failure() -> None:
    pool = NodeSetPool(ring(10, 2), NodeSet)
    with pool.lend() as first:
        first.insert("node", torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="10"), pool.lend() as again:
        again.insert("node", torch.tensor([5, 10]))
    with pool.lend() as last:
        assert last is again is first
        assert last.counts() == {"node": 0}


def test_two_users_at_once_have_two_sets() -> None:
    pool = NodeSetPool(ring(10, 2), NodeSet)
    with pool.lend() as one, pool.lend() as other:
        assert one is not other


def test_ids_are_checked_with_the_name_of_what_they_are() -> None:
    check_ids("nodes", torch.tensor([0, 9]), 10)
    check_ids("nodes", torch.empty(0, dtype=torch.int64), 0)
    with pytest.raises(ValueError, match="nodes: there is no node 10; ids go from 0 to 9"):
        check_ids("nodes", torch.tensor([0, 10]), 10)


KEY = DrawKey(11)
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))


def tree_of(sample: Sample, tree: int) -> PlainSample:
    """One tree of a sample, with local ids of its own."""
    assert sample.trees is not None
    plain = as_plain(sample)
    chosen = {
        t: [row for row, owner in enumerate(of.tolist()) if owner == tree] for t, of in sample.trees.items()
    }
    new = {t: {row: number for number, row in enumerate(rows)} for t, rows in chosen.items()}
    blocks = []
    for block in plain.blocks:
        rows = {}
        for edge_type, (indptr, indices, edge_ids) in block.rows.items():
            source, _, destination = edge_type
            row_ends, sources, edges = [0], [], []
            for row in (row for row in chosen[destination] if row < block.dst_counts[destination]):
                part = slice(indptr[row], indptr[row + 1])
                sources += [new[source][index] for index in indices[part]]
                edges += edge_ids[part]
                row_ends.append(len(sources))
            rows[edge_type] = (row_ends, sources, edges)
        counts = (
            {t: sum(row < count for row in chosen[t]) for t, count in of.items()}
            for of in (block.src_counts, block.dst_counts)
        )
        blocks.append(PlainBlock(rows, *counts))
    nodes = {t: [plain.nodes[t][row] for row in rows] for t, rows in chosen.items()}
    index = {t: [new[t][row] for row in rows if row in new[t]] for t, rows in plain.seed_index.items()}
    return PlainSample(nodes, index, blocks)


@EXPANSIONS
@given(question=questions(), start=st.integers(0, 10**12))
def test_a_tree_is_the_sample_of_its_seed_alone(question: RowQuery, expansion: Expansion, start: int) -> None:
    sampler = NeighborSampler(
        question.graph.opened(),
        question.fanouts,
        rule=Uniform(question.replacement),
        expansion=expansion,
        edge_ids=True,
        trees="disjoint",
    )
    nodes = {t: torch.tensor(ids, dtype=torch.int64) for t, ids in question.seeds.items()}
    positions, at = {}, start
    for node_type, ids in nodes.items():
        positions[node_type] = torch.arange(at, at + ids.numel())
        at += ids.numel()
    sample = sampler.sample(Seeds(nodes, positions), DrawKey(question.key))
    roots = [(t, node) for t, ids in question.seeds.items() for node in ids]
    for tree, (node_type, node) in enumerate(roots):
        expected = hops.sample(
            question.graph,
            {t: [node] if t == node_type else [] for t in question.seeds},
            question.fanouts_by_type(),
            question.replacement,
            expansion is Expansion.LAYERED,
            tree_key(question.key, start + tree),
        )
        assert tree_of(sample, tree) == expected
    assert sample.trees is not None
    assert all(of.numel() == sample.nodes[t].numel() for t, of in sample.trees.items())


def test_duplicate_seeds_have_a_tree_and_a_row_each() -> None:
    sample = NeighborSampler(ring(1000, 40), [3], trees="disjoint").sample(seeds(7, 3, 7), KEY)
    assert sample.seed_index["node"].tolist() == [0, 1, 2]
    assert sample.trees is not None
    assert sample.trees["node"][:3].tolist() == [0, 1, 2]
    first, _, again = sample.blocks[0].adjacency.indices[:9].reshape(3, 3)
    assert not torch.equal(sample.nodes["node"][first.long()], sample.nodes["node"][again.long()])


def test_batches_of_any_size_go_through_one_sampler() -> None:
    sampler = NeighborSampler(ring(50, 5), [2, 2], edge_ids=True, trees="disjoint")
    alone = as_plain(sampler.sample(seeds(3), KEY))
    many = sampler.sample(seeds(*range(50), *range(50)), KEY)
    assert many.trees is not None
    assert int(many.trees["node"].max()) == 99
    assert as_plain(sampler.sample(seeds(3), KEY)) == alone
    assert as_plain(pickle.loads(pickle.dumps(sampler)).sample(seeds(3), KEY)) == alone


def test_trees_are_moved_with_the_sample() -> None:
    sample = NeighborSampler(ring(50, 5), [2], trees="disjoint").sample(seeds(3, 4), KEY)
    moved = sample.map(lambda tensor: tensor + 1)
    assert moved.trees is not None
    assert sample.trees is not None
    assert torch.equal(moved.trees["node"], sample.trees["node"] + 1)
    assert NeighborSampler(ring(50, 5), [2]).sample(seeds(3), KEY).trees is None
