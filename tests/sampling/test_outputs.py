"""A subgraph shows the edges drawn, both directions of them, or all among its nodes, with their ids."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from khop import (
    DrawKey,
    Expansion,
    Graph,
    Links,
    LinkSampler,
    Loader,
    NeighborSampler,
    Output,
    Sample,
    Schema,
    Seeds,
    Uniform,
)
from khop.batch import Adjacency
from khop.graph.store import CscGraph
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import gather_columns
from khop.sampling import outputs
from khop.schema import EdgeType
from reference.hops import PlainGraph
from support.random_graphs import EDGE, RowQuery, as_seeds, questions, ring, seeds
from support.typed_shop import BOUGHT_BY, BUYS, shop

KEY = DrawKey(11)
OTHERS = pytest.mark.parametrize("output", [Output.BIDIRECTIONAL, Output.INDUCED])
Flat = tuple[int, int, int]  # source, destination (global ids) and edge id


def answer(question: RowQuery, output: Output) -> Sample:
    sampler = NeighborSampler(
        question.graph.opened(),
        question.fanouts,
        rule=Uniform(question.replacement),
        expansion=Expansion.SUBGRAPH,
        edge_ids=True,
        output=output,
    )
    return sampler.sample(as_seeds(question.seeds), DrawKey(question.key))


def flat(sample: Sample, edge_type: EdgeType, adjacency: Adjacency) -> list[Flat]:
    sources, destinations = adjacency.edge_index
    assert adjacency.edge_ids is not None
    return list(
        zip(
            sample.nodes[edge_type[0]][sources].tolist(),
            sample.nodes[edge_type[2]][destinations].tolist(),
            adjacency.edge_ids.tolist(),
            strict=True,
        )
    )


def adjacencies(sample: Sample) -> dict[EdgeType, Adjacency]:
    assert sample.subgraph is not None
    return dict(sample.subgraph.adjacencies)


def in_csc_order(graph: PlainGraph, edge_type: EdgeType) -> list[Flat]:
    indptr, indices = graph.csc(edge_type)
    rows = [row for row in range(len(indptr) - 1) for _ in range(indptr[row], indptr[row + 1])]
    return [(source, row, number) for number, (source, row) in enumerate(zip(indices, rows, strict=True))]


@given(question=questions())
def test_an_induced_subgraph_has_every_edge_among_its_nodes(question: RowQuery) -> None:
    """Those of the graph and no other, in the order of local destinations, then of the graph."""
    sample = answer(question, Output.INDUCED)
    plain = answer(question, Output.DIRECTIONAL)
    assert [ids.tolist() for ids in sample.nodes.values()] == [ids.tolist() for ids in plain.nodes.values()]
    assert set(adjacencies(sample)) == set(question.graph.edges)
    for edge_type, adjacency in adjacencies(sample).items():
        sources, destinations = (sample.nodes[edge_type[end]].tolist() for end in (0, 2))
        among = [
            e for e in in_csc_order(question.graph, edge_type) if e[0] in sources and e[1] in destinations
        ]
        expected = sorted(among, key=lambda edge: (destinations.index(edge[1]), edge[2]))
        assert flat(sample, edge_type, adjacency) == expected


@given(question=questions())
def test_a_bidirectional_subgraph_has_both_directions_of_what_was_drawn(question: RowQuery) -> None:
    """One edge per direction between two nodes; each says whose id it carries and which way that leads."""
    sample = answer(question, Output.BIDIRECTIONAL)
    drawn = adjacencies(answer(question, Output.DIRECTIONAL))
    shown = adjacencies(sample)
    for edge_type, adjacency in drawn.items():
        of_graph = {number: (a, b) for a, b, number in in_csc_order(question.graph, edge_type)}
        ends = [(a, b) for a, b, _ in flat(sample, edge_type, adjacency)]
        back = outputs.reversed_type(edge_type)
        both = {(t, pair) for t, way in ((edge_type, 1), (back, -1)) for pair in (e[::way] for e in ends)}
        found = []
        for t in dict.fromkeys((edge_type, back)):
            assert shown[t].reverse is not None
            for (a, b, number), turned in zip(
                flat(sample, t, shown[t]), shown[t].reverse.tolist(), strict=True
            ):
                assert of_graph[number] == ((b, a) if turned else (a, b))
                assert turned or (a, b) in ends
                assert not turned or t != edge_type or (a, b) not in ends
                found.append((t, (a, b)))
        assert len(found) == len(both)
        assert set(found) == both


@OTHERS
def test_every_block_is_the_whole_subgraph(output: Output) -> None:
    sampler = NeighborSampler(
        ring(100, 6), [3, 2], expansion=Expansion.SUBGRAPH, edge_ids=True, output=output
    )
    sample = sampler.sample(seeds(0, 50, 0), KEY)
    assert len(sample.blocks) == 2
    for block in sample.blocks:
        assert block.num_src == block.num_dst == sample.nodes["node"].numel()
        assert block.adjacency is adjacencies(sample)[EDGE]
    assert sample.nodes["node"][sample.seed_index["node"]].tolist() == [0, 50, 0]
    again = sample.map(lambda tensor: tensor.clone())
    assert torch.equal(again.blocks[0].edge_index, sample.blocks[0].edge_index)


def test_nodes_are_induced_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def edges() -> list[list[int]]:
        sampler = NeighborSampler(
            ring(200, 5), [4, 4], expansion=Expansion.SUBGRAPH, edge_ids=True, output=Output.INDUCED
        )
        return adjacencies(sampler.sample(seeds(0, 50), KEY))[EDGE].edge_index.tolist()

    whole = edges()
    monkeypatch.setattr(outputs, "ROWS_AT_ONCE", 7)
    assert edges() == whole


def test_columns_of_edges_come_with_both_directions() -> None:
    graph = shop()
    one_way = Schema(("user", "item"), (BUYS,), columns=graph.schema.columns)
    topology = graph.topology
    assert isinstance(topology, CscGraph)
    store = CscGraph(one_way, topology.counts, {BUYS: topology.edges[BUYS]})
    sampler = NeighborSampler(
        store, [3], expansion=Expansion.SUBGRAPH, edge_ids=True, output=Output.BIDIRECTIONAL
    )
    sample = sampler.sample(Seeds({"item": torch.tensor([4, 9])}, {"item": torch.arange(2)}), KEY)
    choice = ColumnChoice.of(one_way, {BUYS: ["amount"]}, (), ["item"])
    filled, _, _ = gather_columns(graph.features, choice, sample)
    for edge_type in (BUYS, outputs.reversed_type(BUYS)):
        adjacency = adjacencies(filled)[edge_type]
        assert adjacency.edge_ids is not None
        assert adjacency.edge_ids.numel() > 0
        assert torch.equal(adjacency.columns["amount"], adjacency.edge_ids)
        assert all(block.adjacencies[edge_type].columns for block in filled.blocks)


def test_columns_of_edges_come_with_an_induced_subgraph() -> None:
    graph = shop()
    sampler = NeighborSampler(graph, [3], expansion=Expansion.SUBGRAPH, output=Output.INDUCED)
    sample = sampler.sample(Seeds({"item": torch.tensor([4, 9])}, {"item": torch.arange(2)}), KEY)
    choice = ColumnChoice.of(graph.schema, {BUYS: ["amount"]}, (), ["item"])
    filled, _, _ = gather_columns(graph.features, choice, sample)
    adjacency = adjacencies(filled)[BUYS]
    assert adjacency.edge_ids is not None
    assert torch.equal(adjacency.columns["amount"], adjacency.edge_ids)


@pytest.mark.parametrize("output", list(Output))
def test_columns_of_edges_come_with_links_through_a_loader(output: Output) -> None:
    whole = shop()
    graph = Graph(whole.topology.only([BUYS]), whole.features)  # type: ignore[attr-defined]
    sampler = LinkSampler(graph, [3, 2], expansion=Expansion.SUBGRAPH, edge_ids=True, output=output)
    links = Links({BUYS: torch.tensor([[1, 5, 9, 2], [4, 4, 20, 7]])})
    for batch in Loader(sampler, links, 2, columns={BUYS: ["amount"]}).epoch(0):
        shown = adjacencies(batch.sample)
        assert len(shown) == (2 if output is Output.BIDIRECTIONAL else 1)
        for adjacency in shown.values():
            assert adjacency.edge_ids is not None
            assert adjacency.edge_ids.numel() > 0
            assert torch.equal(adjacency.columns["amount"], adjacency.edge_ids)


@OTHERS
def test_blocks_per_layer_are_refused(output: Output) -> None:
    with pytest.raises(ValueError, match=f"output {output} with blocks per layer"):
        NeighborSampler(ring(10, 2), [2], output=output)


def test_an_output_or_an_expansion_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"output 'both': must be one of \['directional', 'bidirectional', "):
        NeighborSampler(ring(10, 2), [2], output="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expansion 'graph': must be one of \['layered', 'subgraph'\]"):
        NeighborSampler(ring(10, 2), [2], expansion="graph")  # type: ignore[arg-type]


def test_an_induced_subgraph_of_disjoint_trees_is_refused() -> None:
    with pytest.raises(ValueError, match="edges among all nodes would cross trees"):
        NeighborSampler(
            ring(10, 2), [2], expansion=Expansion.SUBGRAPH, trees="disjoint", output=Output.INDUCED
        )


@pytest.mark.parametrize(
    "schema",
    [
        Schema(("user", "item"), (BUYS, BOUGHT_BY), reverse_of={BUYS: BOUGHT_BY, BOUGHT_BY: BUYS}),
        Schema(("user", "item"), (BUYS, ("item", "rev_buys", "user"))),
    ],
)
def test_a_graph_that_has_its_reverses_is_not_turned_round(schema: Schema) -> None:
    topology = shop().topology
    assert isinstance(topology, CscGraph)
    edges = dict(zip(schema.edge_types, topology.edges.values(), strict=True))
    store = CscGraph(schema, topology.counts, edges)
    with pytest.raises(ValueError, match=r"the graph has the reverse of .* use directional"):
        NeighborSampler(store, [2], expansion=Expansion.SUBGRAPH, output=Output.BIDIRECTIONAL)
