"""Single hops over parts on several servers.

Numbers of links over all parts.

Negatives over parts on several servers.

Splits of links over parts: each server splits its own edges.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.distributed import partitioned_graph as module
from khop.distributed.link_split import owned_links
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.draw import DegreeNegatives, DrawKey, DrawnNegatives, Frontier, Positives, UniformNegatives
from khop.errors import Unsupported
from khop.graph.features.store import Rows
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.rule import Hop
from khop.sampling.links.link_split import CountedLinks, LinkColumns, Shares
from khop.sampling.rules.uniform import Uniform
from khop.servers.messages import SplitArguments, SplitPart
from khop.servers.parts.served import SharedSplit
from support.parts_in_process import part_services
from support.same_samples import assert_same
from support.small_typed_folders import BUYS, LIKE

KEY = DrawKey(5)
HOP = Hop(2, {BUYS: 3, LIKE: -1}, Uniform(), edge_ids=True)


@pytest.fixture
def graph(typed_parts: Path) -> PartitionedGraph:
    graph: PartitionedGraph = part_services(typed_parts)[1]._part._graph  # type: ignore[union-attr,attr-defined]
    return graph


@pytest.mark.core(1)
@pytest.mark.parametrize("nodes", [[199, 3, 3, 70, 120], [], [0]])
def test_a_hop_is_that_of_all_parts_in_one_process(
    graph: PartitionedGraph, typed_parts: Path, nodes: list[int]
) -> None:
    frontier = {"item": Frontier(torch.tensor(nodes, dtype=torch.int64))}
    drawn = graph.sample_hop(frontier, HOP, KEY)
    expected = khop.open_graph(typed_parts).sample_hop(frontier, HOP, KEY)
    assert list(drawn) == list(expected)
    assert_same(dict(drawn), dict(expected))


def test_only_the_owners_of_a_frontier_are_asked(graph: PartitionedGraph) -> None:
    def requests() -> list[int]:
        return [len(owner.asked) for owner in graph.owners.exchange._owners.values()]  # type: ignore[attr-defined]

    first, _ = graph.owners.span(graph.nodes.bounds["item"], 1)
    graph.sample_hop({"item": Frontier(torch.tensor([first]))}, HOP, KEY)
    assert requests() == [0, 0]
    graph.sample_hop({"item": Frontier(torch.tensor([0]))}, HOP, KEY)
    assert requests() == [1, 0]


def test_a_node_of_no_part_is_named(graph: PartitionedGraph) -> None:
    with pytest.raises(ValueError, match=r"frontier node 200: not in \[0, 200\)"):
        graph.sample_hop({"item": Frontier(torch.tensor([200]))}, HOP, KEY)


def test_edges_are_counted_over_all_parts_unless_some_are_left_out(graph: PartitionedGraph) -> None:
    assert graph.num_edges(LIKE) == 900
    assert graph.only([LIKE]).schema.edge_types == (LIKE,)
    thinned = graph.held.keeping({LIKE: [torch.arange(3)]})
    with pytest.raises(Unsupported, match="each process counts only its parts"):
        PartitionedGraph(thinned, graph.owners).num_edges(LIKE)


def test_in_degrees_come_from_the_owners_of_the_nodes(graph: PartitionedGraph, typed_parts: Path) -> None:
    whole_graph = khop.open_graph(typed_parts)
    for nodes in (
        torch.tensor([199, 3, 3, 70, 120, 0]),
        torch.arange(200),
        torch.empty(0, dtype=torch.int64),
    ):
        for edge_type in (BUYS, LIKE):
            assert torch.equal(
                graph.in_degrees(edge_type, nodes), whole_graph.csc(edge_type).indptr.diff()[nodes]
            )


def test_a_list_of_links_has_the_digest_and_the_rows_of_the_local_one(typed_parts: Path) -> None:
    arguments = SplitArguments((BUYS,), Shares(0.2, 40), LinkColumns(2, "weight", "time"), 4)
    split = khop.split_links(
        khop.open_graph(typed_parts), BUYS, 0.2, 40, negatives=2, label="weight", time="time", seed=4
    )
    served = part_services(typed_parts)[1]._part
    found = served._views.split((), arguments)  # type: ignore[union-attr,attr-defined]
    for name, expected in (
        ("train", split.train_links),
        ("val", split.val_links),
        ("test", split.test_links),
    ):
        key = arguments.key.plus(("train", "val", "test").index(name))
        links = owned_links(found.links(name), found.graph, key, SplitPart(arguments, name))
        assert (dict(links.counts), links.facts) == (dict(expected.counts), expected.facts)
        assert links.digest() == expected.digest()
    wanted = {BUYS: Rows(torch.tensor([5, 1]), ("ends", "times"), {"times": 1})}
    rows = links.table.gather(wanted)[BUYS]
    assert rows["ends"].tolist() == split.test_links.edges[BUYS][:, [5, 1]].T.tolist()
    assert rows["times"].tolist() == [int(split.test_links.times[BUYS][5])]


def test_a_part_of_a_split_that_there_is_not_is_refused(typed_parts: Path) -> None:
    assert len(open_parts(typed_parts).parts) == 3
    arguments = SplitArguments((("user", "sells", "item"),), Shares(0.2, 40), LinkColumns(), 4)
    views = part_services(typed_parts)[0]._part._views  # type: ignore[union-attr,attr-defined]
    with pytest.raises(ValueError, match="no edge type"):
        views.split((), arguments)


NEGATIVES_KEY = DrawKey(9)


def graph_of(path: Path) -> PartitionedGraph:
    graph: PartitionedGraph = part_services(path)[2]._part._graph  # type: ignore[union-attr,attr-defined]
    return graph


@pytest.mark.parametrize("edge_type", [BUYS, LIKE], ids=["reverse type", "edges of other parts"])
@pytest.mark.parametrize("negatives", [UniformNegatives(2, exact=True), DegreeNegatives(3, exact=True)])
def test_exact_negatives_are_those_of_one_process(
    typed_parts: Path,
    edge_type: khop.EdgeType,
    negatives: DrawnNegatives,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EDGES_AT_ONCE", 100)  # so that edges by source come in several answers
    positives = Positives(torch.tensor([199, 0, 70, 0]), torch.tensor([4, 9, 0, 2]))
    found = graph_of(typed_parts).sample_negatives(edge_type, negatives, positives, NEGATIVES_KEY)
    expected = khop.open_graph(typed_parts).sample_negatives(edge_type, negatives, positives, NEGATIVES_KEY)
    assert torch.equal(found, expected)


def test_a_source_of_no_part_is_named(typed_parts: Path) -> None:
    positives = Positives(torch.tensor([300]), torch.tensor([0]))
    with pytest.raises(ValueError, match="source 300: there are 300 'user' nodes"):
        graph_of(typed_parts).sample_negatives(BUYS, UniformNegatives(exact=True), positives, NEGATIVES_KEY)


ARGUMENTS = SplitArguments((BUYS,), Shares(0.2, 40, 0.25), LinkColumns(2), 4)


@pytest.fixture(scope="module")
def splits(typed_parts: Path) -> list[SharedSplit]:
    """The same split on the server of each part."""
    return [
        service._part._views.split((), ARGUMENTS)  # type: ignore[union-attr,attr-defined]
        for service in part_services(typed_parts)
    ]


@pytest.mark.core(1)
@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_the_links_of_all_parts_are_those_of_one_process(
    splits: list[SharedSplit], typed_parts: Path, name: str
) -> None:
    split = khop.split_links(khop.open_graph(typed_parts), BUYS, 0.2, 40, disjoint_share=0.25, seed=4)
    expected = {"train": split.train_links, "val": split.val_links, "test": split.test_links}[name]
    held = [of_part.links(name) for of_part in splits]
    counts = torch.cat([of_part.counts(BUYS) for of_part in held])
    assert counts.tolist() == torch.bincount(expected.edges[BUYS][1], minlength=200).tolist()
    found = torch.cat([of_part.columns[BUYS]["ends"] for of_part in held])
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.edges[BUYS].T.tolist()))


def test_counts_of_links_need_no_other_part(splits: list[SharedSplit]) -> None:
    every = [int(of_part.counts(CountedLinks(BUYS))) for of_part in splits]
    assert sum(every) == 3000
    assert all(
        int(of.counts(CountedLinks(BUYS, 48)).sum()) == count for of, count in zip(splits, every, strict=True)
    )


def test_links_that_there_are_not_are_refused(splits: list[SharedSplit]) -> None:
    with pytest.raises(ValueError, match="part 'dev' of a split"):
        splits[0].part("dev")
    with pytest.raises(ValueError, match="the split has those of"):
        splits[0].links("val").counts(("item", "like", "item"))
