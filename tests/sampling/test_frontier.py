"""A function of the user's own is a sampler, with the draws and the checks of khop's."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop import DrawKey, Edges, FrontierSampler, FrontierView, NeighborSampler, Sample, Uniform
from khop.draw import stream
from khop.kernels.philox import philox
from khop.sampling.frontier import EdgesByType, NodesByType
from khop.testing.sampler import PROMISES, Make
from reference.hops import PlainGraph, as_plain
from support.random_graphs import EDGE, RowQuery, as_seeds, questions, ring, seeds
from support.shop_links import BUYS, bought

KEY = DrawKey(5)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None]) -> None:
    promise(lambda graph: FrontierSampler(graph, lambda _, view, nodes: view.sample_in_edges(nodes, 3), 2))


def sample(question: RowQuery, sampler: NeighborSampler | FrontierSampler) -> Sample:
    return sampler.sample(as_seeds(question.seeds), DrawKey(question.key))


@given(question=questions().filter(lambda question: bool(question.fanouts)))
def test_neighbor_sampling_written_anew_gives_the_same_bits(question: RowQuery) -> None:
    graph = question.graph.opened()
    rule = Uniform(question.replacement)
    layers = len(question.fanouts)

    def edges_for(layer: int, view: FrontierView, nodes: NodesByType) -> EdgesByType:
        return view.sample_in_edges(nodes, question.fanouts[layers - 1 - layer], rule)

    ours = sample(question, NeighborSampler(graph, question.fanouts, rule=rule, edge_ids=True))
    anew = sample(question, FrontierSampler(graph, edges_for, layers))
    assert as_plain(anew) == as_plain(ours)


@given(question=questions().filter(lambda question: bool(question.fanouts)))
def test_the_order_of_the_edges_is_kept_within_a_row_only(question: RowQuery) -> None:
    """The same edges, turned round: every row holds what it held, the other way round."""
    graph = question.graph.opened()

    def edges_for(layer: int, view: FrontierView, nodes: NodesByType) -> EdgesByType:
        return {t: turned(edges) for t, edges in view.in_edges(nodes).items()}

    def turned(edges: Edges) -> Edges:
        assert edges.edge_ids is not None
        return Edges(edges.sources.flip(0), edges.destinations.flip(0), edges.edge_ids.flip(0))

    ours = sample(question, NeighborSampler(graph, [-1], edge_ids=True))
    anew = sample(question, FrontierSampler(graph, edges_for, 1))
    for edge_type, adjacency in ours.blocks[0].adjacencies.items():
        other = anew.blocks[0].adjacencies[edge_type]
        assert adjacency.edge_ids is not None
        assert other.edge_ids is not None
        assert other.indptr.tolist() == adjacency.indptr.tolist()
        bounds = adjacency.indptr.tolist()
        for begin, end in itertools.pairwise(bounds):
            assert other.edge_ids[begin:end].tolist() == adjacency.edge_ids[begin:end].tolist()[::-1]


def test_layers_are_numbered_from_the_input_and_asked_from_the_seeds() -> None:
    asked: list[tuple[int, int]] = []

    def edges_for(layer: int, view: FrontierView, nodes: NodesByType) -> EdgesByType:
        asked.append((layer, nodes["node"].numel()))
        return view.in_edges(nodes)

    sampled = FrontierSampler(ring(100, 2), edges_for, 3).sample(seeds(0), KEY)
    assert asked == [(2, 1), (1, 3), (0, 5)]
    assert [block.num_dst for block in sampled.blocks] == [5, 3, 1]


def test_a_views_draws_in_a_layer_are_independent_and_repeatable() -> None:
    drawn: list[list[int]] = []

    def edges_for(layer: int, view: FrontierView, nodes: NodesByType) -> EdgesByType:
        view.in_edges(nodes)  # draws nothing, and so does not count
        for _ in range(2):
            edges = view.sample_in_edges(nodes, 5)
            drawn.append(edges[EDGE].sources.tolist())
        return edges

    sampler = FrontierSampler(ring(1000, 50), edges_for, 1)
    sampler.sample(seeds(3), KEY)
    sampler.sample(seeds(3), KEY)
    first, second, first_again, second_again = drawn
    assert first != second
    assert (first_again, second_again) == (first, second)
    expected = NeighborSampler(ring(1000, 50), [5]).sample(seeds(3), KEY.plus(1))
    assert second == expected.nodes["node"][1:].tolist()


def test_edges_may_come_from_anywhere_in_the_graph_and_as_one_value() -> None:
    """Random walks and the like: sources that are no neighbors of the frontier by any rule of khop's."""

    def edges_for(layer: int, view: FrontierView, nodes: NodesByType) -> Edges:
        return Edges(torch.tensor([90, 91, 90]), torch.tensor([1, 0, 1]))

    block = FrontierSampler(ring(100, 2), edges_for, 1).sample(seeds(0, 1), KEY).blocks[0]
    assert block.adjacency.indptr.tolist() == [0, 1, 3]
    assert block.adjacency.indices.tolist() == [2, 3, 3]
    assert block.adjacency.edge_ids is None


def test_a_view_knows_the_graph_and_takes_any_nodes() -> None:
    def edges_for(layer: int, view: FrontierView, nodes: NodesByType) -> EdgesByType:
        assert view.num_nodes("node") == 100
        assert view.schema.edge_types == (EDGE,)
        assert view.in_edges(torch.tensor([7, 7]))[EDGE].sources.tolist() == [8, 9, 8, 9]
        return view.sample_in_edges(nodes["node"][:1], 1)

    sampled = FrontierSampler(ring(100, 2), edges_for, 1).sample(seeds(4, 5), KEY)
    assert sampled.blocks[0].adjacency.indptr.tolist() == [0, 1, 1]


def one_layer(*columns: Tensor) -> Sample:
    edges = Edges(*columns)
    return FrontierSampler(ring(10, 2), lambda layer, view, nodes: {EDGE: edges}, 1).sample(seeds(0, 1), KEY)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (([3, 4], [0, 5]), "into node 5, which is not in `nodes`"),
        (([3, 10], [0, 1]), "sources: there is no node 10; ids go from 0 to 9"),
        (([3, 4], [0, 10]), "destinations: there is no node 10"),
        (([3, 4], [0]), "{'sources': 2, 'destinations': 1}: one of each per edge"),
        (([3], [0], [1, 2]), "'edge_ids': 2}: one of each per edge"),
        (([3.0], [0]), "sources: torch.float32"),
        (([3], [0], [1.0]), "edge_ids: torch.float32 of shape .*must be torch.int64"),
        (([3], [0], [[1]]), r"edge_ids: torch.int64 of shape \(1, 1\); must be torch.int64"),
        (([3], [0], [1], [1]), "weights: torch.int64 of shape .*must be torch.float32"),
    ],
)
def test_edges_that_cannot_be_are_named(edges: tuple[list[int], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_layer(*(torch.tensor(ids) for ids in edges))


def test_an_edge_type_that_is_not_there_is_named() -> None:
    none = Edges(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    sampler = FrontierSampler(ring(10, 2), lambda layer, view, nodes: {("a", "b", "c"): none}, 1)
    with pytest.raises(ValueError, match=r"edges_for gave \('a', 'b', 'c'\): not an edge type"):
        sampler.sample(seeds(0), KEY)


def test_an_error_leaves_no_trace_in_the_next_sample() -> None:
    wanted = [Edges(torch.tensor([3]), torch.tensor([5])), Edges(torch.tensor([3]), torch.tensor([0]))]
    sampler = FrontierSampler(ring(10, 2), lambda layer, view, nodes: wanted.pop(0), 1)
    with pytest.raises(ValueError, match="into node 5"):
        sampler.sample(seeds(0), KEY)
    assert sampler.sample(seeds(0), KEY).nodes["node"].tolist() == [0, 3]


def test_typed_graphs_need_their_types_named() -> None:
    graph = PlainGraph({"a": 2, "b": 2}, {("a", "to", "b"): [(0, 1)], ("b", "to", "a"): [(0, 1)]}).opened()
    edges = Edges(torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(ValueError, match="edges_for gave one Edges: the graph has 2"):
        FrontierSampler(graph, lambda *_: edges, 1).sample(as_seeds({"a": [0]}), KEY)
    with pytest.raises(ValueError, match="nodes given as one tensor"):
        FrontierSampler(graph, lambda layer, view, nodes: view.in_edges(nodes["a"]), 1).sample(
            as_seeds({"a": [0]}), KEY
        )


def test_a_sampler_has_a_layer_at_least() -> None:
    with pytest.raises(ValueError, match="layers 0: must be 1 or more"):
        FrontierSampler(ring(10, 2), lambda layer, view, nodes: view.in_edges(nodes), 0)


def test_seeds_are_checked_before_the_function_is_asked() -> None:
    sampler = FrontierSampler(ring(10, 2), lambda layer, view, nodes: 1 // 0, 1)
    with pytest.raises(ValueError, match="there is no node 10"):
        sampler.sample(seeds(10), KEY)


def test_a_layer_may_have_no_edges() -> None:
    sampled = FrontierSampler(ring(10, 2), lambda layer, view, nodes: {}, 2).sample(seeds(2), KEY)
    assert sampled.nodes["node"].tolist() == [2]
    assert [block.adjacencies for block in sampled.blocks] == [{}, {}]


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30), data=st.data())
def test_out_edges_are_those_of_a_count_by_hand(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    """Through the reverse edge type, whichever of the two types names the other."""
    users = data.draw(st.lists(st.integers(0, 5), unique=True))
    view = FrontierView(bought(pairs), 1, KEY)
    found = view.out_edges({"user": torch.tensor(users, dtype=torch.int64)})
    assert list(found) == [BUYS]
    out = sorted(zip(found[BUYS].sources.tolist(), found[BUYS].destinations.tolist(), strict=True))
    assert out == sorted(pair for pair in pairs if pair[0] in users)
    drawn = view.sample_out_edges({"user": torch.tensor(users, dtype=torch.int64)}, 2)[BUYS]
    assert Counter(drawn.sources.tolist()) == {
        user: min(2, count) for user, count in Counter(user for user, _ in pairs).items() if user in users
    }
    assert set(zip(drawn.sources.tolist(), drawn.destinations.tolist(), strict=True)) <= set(pairs)


def test_out_edges_without_a_reverse_type_are_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match="the schema has none; write the graph with EdgeTable"):
        FrontierView(ring(5, 2), 1, KEY).out_edges(torch.arange(2))


def test_random_words_belong_to_the_node_the_draw_and_the_layer() -> None:
    graph, nodes = ring(50, 2), torch.arange(50)
    view, again, other = FrontierView(graph, 1, KEY), FrontierView(graph, 1, KEY), FrontierView(graph, 2, KEY)
    words = view.random_words(EDGE[0], nodes)
    assert torch.equal(again.random_words(EDGE[0], nodes.flip(0)), words.flip(0))
    assert 0 <= int(words.min()) < int(words.max()) < 1 << 32
    assert not torch.equal(view.random_words(EDGE[0], nodes), words)
    assert not torch.equal(other.random_words(EDGE[0], nodes), words)
    assert int(words[7]) == philox(KEY.value, torch.tensor([[7, 0, stream(1, (EDGE[0],)), 0]]))[0, 0]
