"""Contract suite for samplers of seed nodes.

A test takes a function that makes the tested sampler from a graph store.

Example:
    >>> from khop.testing import sampler
    >>> for promise in sampler.PROMISES:
    ...     promise(lambda graph: khop.NeighborSampler(graph, fanouts=[3, 2]))
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import torch
from hypothesis import strategies as st
from torch import Tensor

from khop.batch import Adjacency, Block, LossWeights, Sample
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.rule import Hop
from khop.graph.store import GraphStore, GraphStoreBase
from khop.sampling.sampler import Sampler
from khop.sampling.seeds import Seeds
from khop.schema import EdgeType, NodeType
from khop.testing import group_sampler
from khop.testing.graphs import SHOP, PlainGraph, plain_graphs, plain_seeds, ring, seeds_of
from khop.testing.promises import examples, expect, expect_equal, expect_refusal, promise, unless_unsupported

KEY = DrawKey(11)
KINDS = {"nodes", "links", "groups"}
Make = Callable[[GraphStore], Sampler]


def values_of(sample: Sample) -> list[object]:
    """Return all values of a sample, with the dtypes of its tensors."""
    found: list[object] = []

    def note(tensor: Tensor) -> Tensor:
        found.append((str(tensor.dtype), tensor.tolist()))
        return tensor

    sample.map(note)
    blocks = [(list(b.adjacencies), dict(b.src_counts), dict(b.dst_counts)) for b in sample.blocks]
    return [list(sample.nodes), list(sample.seed_index), list(sample.links), blocks, *found]


def ring_seeds(*nodes: int) -> Seeds:
    """Return seeds in a ring."""
    return seeds_of({"node": list(nodes)})


@promise
def samples_are_functions_of_seeds_and_key(make: Make) -> None:
    """Return the same sample for the same seeds and key, also from another sampler with equal settings."""
    graph = ring(300, 20).in_memory()
    sampler, seeds = make(graph), ring_seeds(3, 150, 200)
    first = values_of(sampler.sample(seeds, KEY))
    expect_equal("the second sample", values_of(sampler.sample(seeds, KEY)), first)
    sampler.sample(ring_seeds(7), KEY.plus(1))
    expect_equal("the sample after another one", values_of(sampler.sample(seeds, KEY)), first)
    expect_equal("the sample by another sampler", values_of(make(graph).sample(seeds, KEY)), first)


@promise
def threads_share_it(make: Make) -> None:
    """Return the same samples when several threads call it concurrently."""
    sampler = make(ring(500, 6).in_memory())
    asked = [ring_seeds(*range(start, start + 20)) for start in range(0, 400, 20)] * 5
    expected = [values_of(sampler.sample(of_batch, KEY)) for of_batch in asked]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda of_batch: values_of(sampler.sample(of_batch, KEY)), asked))
    expect(together == expected, "four threads get other samples than one")


@promise
def numbers_of_threads_change_no_sample(make: Make) -> None:
    """Return a sampler with the same samples from `with_threads`."""
    # Several threads share a frontier of 512 nodes or more in khop's kernels.
    sampler, seeds = make(ring(900, 5).in_memory()), ring_seeds(*range(0, 800), 5)
    expected = values_of(sampler.sample(seeds, KEY))
    for threads in (1, 3):
        found = values_of(sampler.with_threads(threads).sample(seeds, KEY))
        expect_equal(f"the sample of with_threads({threads})", found, expected)


@promise
def every_seed_has_its_row(make: Make) -> None:
    """Return a row for the node of each seed; duplicate seeds share a row, and nodes are unique in a tree."""

    @examples(plain=plain_graphs(), data=st.data())
    def check(plain: PlainGraph, data: st.DataObject) -> None:
        nodes = data.draw(plain_seeds(plain))
        sample = make(plain.in_memory()).sample(seeds_of(nodes), KEY)
        expect_equal("node types", set(sample.nodes), set(plain.counts))
        for node_type, ids in nodes.items():
            index = sample.seed_index.get(node_type)
            expect(index is not None, f"seed_index has no {node_type!r}, must have all types of the seeds")
            assert index is not None
            expect_equal("dtype of seed_index", index.dtype, torch.int64)
            expect_equal(f"nodes of the seeds of {node_type!r}", sample.nodes[node_type][index].tolist(), ids)
            if sample.trees is None:
                rows = len(set(index.tolist()))
                expect_equal(f"rows of the seeds {ids} of {node_type!r}", rows, len(set(ids)))
        for node_type, of_type in sample.nodes.items():
            trees = of_type * 0 if sample.trees is None else sample.trees[node_type]
            pairs = list(zip(of_type.tolist(), trees.tolist(), strict=True))
            expect_equal(f"repeated nodes of {node_type!r}", len(pairs) - len(set(pairs)), 0)

    check()


@promise
def blocks_lead_from_all_nodes_to_the_seeds(make: Make) -> None:
    """Return consecutive blocks: the first has all nodes as sources, the last has rows for the seeds."""

    @examples(plain=plain_graphs(), data=st.data())
    def check(plain: PlainGraph, data: st.DataObject) -> None:
        nodes = data.draw(plain_seeds(plain))
        sampler = make(plain.in_memory())
        sample = sampler.sample(seeds_of(nodes), KEY)
        if sampler.num_layers is not None:
            expect_equal("number of blocks", len(sample.blocks), sampler.num_layers)
        counts = {t: ids.numel() for t, ids in sample.nodes.items()}
        if sample.blocks:
            expect_equal("src_counts of the first block", dict(sample.blocks[0].src_counts), counts)
        for outer, inner in pairwise(sample.blocks):
            expect_equal("src_counts after a block", dict(inner.src_counts), dict(outer.dst_counts))
        last = sample.blocks[-1].dst_counts if sample.blocks else counts
        for node_type, index in sample.seed_index.items():
            reached = int(index.max()) + 1 if index.numel() else 0
            what = f"dst_counts of the last block: {last[node_type]} of {node_type!r}"
            expect(reached <= last[node_type], f"{what}, and seed_index names row {reached - 1}")
        for block in sample.blocks:
            for edge_type, adjacency in block.adjacencies.items():
                _check_adjacency(edge_type, adjacency, block)

    check()


def _check_adjacency(edge_type: EdgeType, adjacency: Adjacency, block: Block) -> None:
    edges = adjacency.indices.numel()
    expect_equal(f"num_src of {edge_type}", adjacency.num_src, block.src_counts[edge_type[0]])
    expect_equal(f"num_dst of {edge_type}", adjacency.num_dst, block.dst_counts[edge_type[2]])
    dtypes = (adjacency.indptr.dtype, adjacency.indices.dtype)
    expect_equal(f"dtypes of indptr and indices of {edge_type}", dtypes, (torch.int64, torch.int32))
    degrees = adjacency.indptr.diff()
    is_whole = int(adjacency.indptr[0]) == 0 and int(adjacency.indptr[-1]) == edges
    expect(is_whole and bool((degrees >= 0).all()), f"indptr of {edge_type} does not split {edges} edges")
    inside = bool(((adjacency.indices >= 0) & (adjacency.indices < adjacency.num_src)).all())
    expect(inside, f"indices of {edge_type} are not in [0, {adjacency.num_src})")
    for name, values in (("edge_ids", adjacency.edge_ids), ("weight", adjacency.weight)):
        if values is not None:
            expect_equal(f"number of {name} of {edge_type}", values.numel(), edges)
    if adjacency.weight is not None:
        expect_equal(f"dtype of weight of {edge_type}", adjacency.weight.dtype, torch.float32)


@promise
def edges_are_edges_of_the_graph(make: Make) -> None:
    """Return edges of the graph; edge ids, if any, are their positions in CSC order."""

    @examples(plain=plain_graphs(), data=st.data())
    def check(plain: PlainGraph, data: st.DataObject) -> None:
        nodes = data.draw(plain_seeds(plain))
        sample = make(plain.in_memory()).sample(seeds_of(nodes), KEY)
        for block in sample.blocks:
            for edge_type, adjacency in block.adjacencies.items():
                # Bidirectional output has the reversed edges of a type between two node types as a type.
                is_reversed = edge_type not in plain.edges and edge_type[1].startswith("rev_")
                source, relation, to = edge_type
                stored = (to, relation.removeprefix("rev_"), source) if is_reversed else edge_type
                expect(stored in plain.edges, f"edges of {edge_type}, which the graph does not have")
                _check_edges(stored, _turned(adjacency, is_reversed), adjacency.edge_ids, sample, plain)

    check()


def _turned(adjacency: Adjacency, is_reversed: bool) -> Tensor:
    """Return sources over destinations as the graph stores the edges, int64 (2, edges)."""
    ends = adjacency.edge_index
    if is_reversed:
        return ends.flip(0)
    return ends if adjacency.reverse is None else torch.where(adjacency.reverse, ends.flip(0), ends)


def _check_edges(
    edge_type: EdgeType, ends: Tensor, edge_ids: Tensor | None, sample: Sample, plain: PlainGraph
) -> None:
    source, destination = ends
    sources = sample.nodes[edge_type[0]][source].tolist()
    destinations = sample.nodes[edge_type[2]][destination].tolist()
    found, pairs = list(zip(sources, destinations, strict=True)), plain.pairs(edge_type)
    if edge_ids is not None:
        named = [pairs[edge] for edge in edge_ids.tolist()]
        expect_equal(f"ends of the edges of {edge_type}, by edge id", found, named)
    strange = [pair for pair in found if pair not in pairs]
    expect_equal(f"edges of {edge_type} that the graph does not have", strange, [])


@promise
def loss_weights_do_not_depend_on_the_rank(make: Make) -> None:
    """Return one loss weight per seed, for any distribution of seeds, and the same total on every rank."""
    sampler = make(ring(40, 3).in_memory())
    nodes = torch.tensor([7, 3, 30, 7, 12])
    whole = _loss_weights(sampler, nodes, slice(0, 5))
    shares = [_loss_weights(sampler, nodes, share) for share in (slice(0, 3), slice(3, 5), slice(5, 5))]
    if whole is None:
        expect(not any(shares), "a rank's sample has loss_weights, and the sample of all seeds has none")
        return
    expect(all(shares), "a rank's sample has no loss_weights, and the sample of all seeds has them")
    expect_equal("types of loss_weights", list(whole.by_type), ["node"])
    found = torch.cat([share.by_type["node"] for share in shares if share is not None])
    expect_equal("number of loss weights of five seeds", whole.by_type["node"].numel(), 5)
    expect_equal("loss weights of three ranks", found.tolist(), whole.by_type["node"].tolist())
    totals = [share.total for share in shares if share is not None]
    expect_equal("totals of three ranks", totals, [whole.total] * 3)


def _loss_weights(sampler: Sampler, nodes: Tensor, share: slice) -> LossWeights | None:
    """Sample the seeds of one rank."""
    positions = torch.arange(nodes.numel())[share]
    seeds = Seeds({"node": nodes[share]}, {"node": positions}, batch_nodes={"node": nodes})
    return sampler.sample(seeds, KEY).loss_weights


class _Failing(GraphStoreBase):
    """A store that fails at one call of `sample_hop`, counted from 1."""

    def __init__(self, inner: GraphStore, failing: int) -> None:
        self.schema = inner.schema
        self._inner = inner
        self._failing = failing
        self.calls = 0

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        return self._inner.num_nodes(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw, or fail."""
        self.calls += 1
        if self.calls == self._failing:
            raise OSError("the disk is gone")
        return self._inner.sample_hop(frontier, hop, key)


@promise
def a_failed_sample_changes_no_later_one(make: Make) -> None:
    """Return the same sample after a hop that failed with an error of the store."""
    graph = ring(60, 20).in_memory()
    counting = _Failing(graph, 0)
    expected = values_of(make(counting).sample(ring_seeds(5), KEY))
    if not counting.calls:
        return  # the sampler reads the edges in another way
    sampler = make(_Failing(graph, counting.calls))
    try:
        sampler.sample(ring_seeds(0), KEY)
    except OSError:
        found = values_of(sampler.sample(ring_seeds(5), KEY))
        expect_equal("the sample after a failed one", found, expected)
        return
    raise AssertionError("the store's OSError was not raised")


@promise
def no_seeds_give_a_sample(make: Make) -> None:
    """Return a sample for an empty list of seeds, because a rank can have no seeds in a step."""
    sample = make(ring(10, 2).in_memory()).sample(ring_seeds(), KEY)
    expect_equal("seed_index", sample.seed_index["node"].tolist(), [])


@promise
def wrong_seeds_are_named(make: Make) -> None:
    """Raise ValueError that names a seed that is not a node, and its type."""
    sampler = make(ring(10, 2).in_memory())
    wrong: dict[tuple[str, ...], dict[str, Tensor]] = {
        ("10", "'node'"): {"node": torch.tensor([3, 10])},
        ("-1",): {"node": torch.tensor([-1])},
        ("'user'",): {"user": torch.tensor([1])},
        ("float32",): {"node": torch.tensor([0.5])},
        ("(1, 1)",): {"node": torch.tensor([[1]])},
    }
    for words, nodes in wrong.items():
        expect_refusal(lambda nodes=nodes: sampler.sample(Seeds(nodes, {}), KEY), f"seeds {nodes}", *words)  # type: ignore[misc]


@promise
def it_states_what_it_takes(make: Make) -> None:
    """Return the graph, the kinds of seeds, needs that the graph supports, and settings or an error."""
    graph = SHOP.in_memory()
    sampler = make(graph)
    expect(sampler.graph is graph, f"graph is {sampler.graph}, must be the store that it was made with")
    kinds = sampler.seed_kinds
    expect(bool(kinds) and kinds <= KINDS, f"seed_kinds are {set(kinds)}, must be some of {KINDS}")
    graph.prepare(sampler.needs(("user", "item")))
    expect_equal("needs, asked twice", sampler.needs(("user",)), sampler.needs(("user",)))
    settings = unless_unsupported(sampler.settings)
    expect(
        settings is None or settings == make(graph).settings(),
        f"settings are {settings}, must be equal for equal samplers",
    )


@promise
def visits_are_probabilities_of_nodes(make: Make) -> None:
    """Return probabilities from `visits`, float64 (nodes), above 0 for nodes of samples; or None."""
    plain = replace(SHOP, columns={})
    sampler, seeds = make(plain.in_memory()), {"item": torch.arange(4)}
    visits = sampler.visits(seeds, 2)
    if visits is None:
        return
    for node_type, of_type in visits.items():
        what = f"visits of {node_type!r}"
        expect_equal(f"dtype of {what}", of_type.dtype, torch.float64)
        expect_equal(f"shape of {what}", tuple(of_type.shape), (plain.counts[node_type],))
        inside = bool(((of_type >= 0) & (of_type <= 1 + 1e-9)).all())
        expect(inside, f"{what}: {of_type.tolist()}, must be in [0, 1]")
    expect_equal("node types of visits", set(visits), set(plain.counts))
    likely = bool((visits["item"][:4] >= 0.5 - 1e-9).all())
    expect(
        likely,
        f"visits of seeds, of which a batch has half: {visits['item'][:4].tolist()}, must be 0.5 or more",
    )
    for number in range(20):
        sample = sampler.sample(seeds_of({"item": [number % 4, (number + 1) % 4]}), KEY.plus(number))
        for node_type, ids in sample.nodes.items():
            unlikely = [node for node in ids.tolist() if visits[node_type][node] <= 0]
            expect_equal(f"nodes of {node_type!r} in a sample with visits of 0", unlikely, [])


@promise
def evaluation_uses_a_sampler_or_the_default(make: Make) -> None:
    """Return a sampler or None from `for_evaluation`; `exact_fanouts` has one fanout per layer."""
    graph = SHOP.in_memory()
    sampler = make(graph)
    wide = ring(60, 20).in_memory()
    for edge_ids in (False, True):
        evaluation = make(wide).for_evaluation(wide, [2, 2], edge_ids=edge_ids)
        if evaluation is not None:
            _check_evaluation(evaluation, wide, edge_ids)
    fanouts = sampler.exact_fanouts
    if fanouts is not None:
        expect_equal("number of exact_fanouts", len(fanouts), sampler.num_layers)
    expect(sampler.averaged_types <= {*graph.schema.edge_types}, "averaged_types: some are not in the graph")
    kernels = unless_unsupported(sampler.for_kernels)
    if kernels is not None:
        seeds = seeds_of({"item": [1, 3]})
        planted = kernels.planted(seeds)
        found = values_of(kernels.over(graph).sample(planted.seeds, KEY))
        expect_equal("the sample of for_kernels()", found, values_of(sampler.sample(seeds, KEY)))


def _check_evaluation(evaluation: Sampler, graph: GraphStore, edge_ids: bool) -> None:
    """Compare the sampler of an evaluation with the two fanouts of 2 and the graph that it was made for."""
    expect_equal("layers of for_evaluation with two fanouts", evaluation.num_layers, 2)
    expect(evaluation.graph is graph, f"graph of for_evaluation is {evaluation.graph}, must be the given one")
    sample = evaluation.sample(ring_seeds(1), KEY)
    found = sample.nodes["node"][sample.seed_index["node"]].tolist()
    expect_equal("node of the seed of an evaluation", found, [1])
    # The seed is expanded twice, by two nodes each, and two nodes once.
    count = sample.nodes["node"].numel()
    expect(
        count <= 9, f"{count} nodes in an evaluation of one seed with the fanouts 2 and 2, must be 9 or fewer"
    )
    for block in sample.blocks:
        for edge_type, adjacency in block.adjacencies.items():
            has_ids = adjacency.edge_ids is not None
            expect(
                has_ids or not edge_ids,
                f"no edge ids of {edge_type}, although edge_ids is True",
            )


@promise
def draws_depend_on_the_key(make: Make) -> None:
    """Return different samples for different keys."""
    sampler, seeds = make(ring(300, 40).in_memory()), ring_seeds(3, 200)
    first = values_of(sampler.sample(seeds, KEY))
    expect(values_of(sampler.sample(seeds, KEY.plus(1))) != first, "another key gives the same sample")


PROMISES: tuple[Callable[[Make], None], ...] = (
    samples_are_functions_of_seeds_and_key,
    threads_share_it,
    numbers_of_threads_change_no_sample,
    every_seed_has_its_row,
    blocks_lead_from_all_nodes_to_the_seeds,
    edges_are_edges_of_the_graph,
    loss_weights_do_not_depend_on_the_rank,
    a_failed_sample_changes_no_later_one,
    no_seeds_give_a_sample,
    wrong_seeds_are_named,
    it_states_what_it_takes,
    visits_are_probabilities_of_nodes,
    evaluation_uses_a_sampler_or_the_default,
    *group_sampler.PROMISES,
)
RANDOM_PROMISES: tuple[Callable[[Make], None], ...] = (draws_depend_on_the_key,)  # for samplers that draw
