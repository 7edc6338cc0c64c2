"""The edges of all parts are a graph store with the draws of the graph that was cut."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop import Expansion, Output, Seeds
from khop.api.partition import partition_graph
from khop.data.partition.methods import PARTITIONERS
from khop.data.partition.verify import verify_partition
from khop.draw import DrawKey, Frontier
from khop.graph.build import write_graph
from khop.graph.features.store import Rows
from khop.graph.features.table import FeatureTable
from khop.graph.folder import open_folder
from khop.graph.partitions.local_partitions import LocalPartitionFeatures, LocalPartitionGraph
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.rule import Hop
from khop.graph.store import open_csc_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import gather_columns
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.uniform import Uniform
from khop.sampling.sampler import NeighborSampler
from khop.testing.graph_rules import INNER, TEMPORAL
from khop.testing.graph_rules import PROMISES as RULE_PROMISES
from khop.testing.graph_store import KEY, PROMISES, Make, same
from khop.testing.graphs import LIKE, TIMES, PlainGraph, int64, plain_graphs_with_columns
from support.parts_as_whole import GraphAsWhole, OldIds, assert_same
from support.small_typed_folders import write_tiny_graph, write_typed_graph

METHODS = ("hash", pytest.param("random", marks=pytest.mark.long))


def cut(home: Path, plain: PlainGraph, parts: int, method: str) -> OldIds:
    """The plain graph as a folder, and as a folder of parts."""
    whole = plain.written(home / "whole")
    partition_graph(whole, home / "parts", parts, method=method)
    return OldIds(open_folder(whole), open_parts(home / "parts"))


@pytest.fixture(params=METHODS)
def make(request: pytest.FixtureRequest, tmp_path: Path, many_cuts: None) -> Make:
    numbers = count()

    def as_whole(plain: PlainGraph) -> GraphAsWhole:
        number = next(numbers)
        (tmp_path / f"{number}").mkdir()
        ids = cut(tmp_path / f"{number}", plain, 2 + number % 2, request.param)
        return GraphAsWhole(ids, LocalPartitionGraph(ids.parts))

    return as_whole


@pytest.mark.parametrize("promise", [*PROMISES, *RULE_PROMISES], ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_is_that_of_the_graph_before_it_was_cut(method: str, tmp_path: Path, many_cuts: None) -> None:
    numbers = count()

    @given(plain=plain_graphs_with_columns(), parts=st.integers(1, 3), data=st.data())
    def check(plain: PlainGraph, parts: int, data: st.DataObject) -> None:
        home = tmp_path / f"{next(numbers)}"
        home.mkdir()
        ids = cut(home, plain, parts, method)
        whole, graph = open_csc_graph(ids.whole), LocalPartitionGraph(ids.parts)
        for _ in range(4):
            rule, key = data.draw(INNER | TEMPORAL), DrawKey(data.draw(st.integers(0, 2**64 - 1)))
            expansion = data.draw(st.sampled_from(Expansion))
            fanouts = data.draw(st.lists(st.integers(-1, 3), min_size=1, max_size=3))
            weighs = any(rule.has_weights(fanout) for fanout in fanouts)
            is_induced = expansion is Expansion.SUBGRAPH and not isinstance(rule, Temporal) and not weighs
            output = data.draw(st.sampled_from([Output.DIRECTIONAL, Output.INDUCED][: 1 + is_induced]))
            seeds = {
                t: int64(data.draw(st.lists(st.integers(0, n - 1), max_size=4)))
                for t, n in plain.counts.items()
            }
            times = {
                t: int64(data.draw(st.lists(TIMES, min_size=of.numel(), max_size=of.numel())))
                for t, of in seeds.items()
            }
            asked = Seeds(
                seeds,
                {t: torch.arange(of.numel()) for t, of in seeds.items()},
                times if isinstance(rule, Temporal) else None,
            )
            samplers = [
                NeighborSampler(g, fanouts, rule=rule, expansion=expansion, edge_ids=True, output=output)
                for g in (whole, graph)
            ]
            choice = ColumnChoice.of(whole.schema, {t: tuple(of) for t, of in plain.columns.items()}, (), ())
            wanted, columns, _ = gather_columns(
                FeatureTable.of(whole.schema, whole.columns), choice, samplers[0].sample(asked, key)
            )
            renumbered = Seeds(
                {t: ids.new_nodes(t, of) for t, of in seeds.items()}, asked.positions, asked.times
            )
            found, of_parts, _ = gather_columns(
                LocalPartitionFeatures(ids.parts), choice, samplers[1].sample(renumbered, key)
            )
            assert_same(ids, found, wanted)
            for type_, of_type in columns.items():
                assert all(torch.equal(of_parts[type_][name], column) for name, column in of_type.items())

    check()


@pytest.mark.core(1)
@pytest.mark.parametrize("method", sorted(PARTITIONERS.builtin.keys() - {"metis"}))
def test_parts_may_own_nothing(method: str, tmp_path: Path, many_cuts: None) -> None:
    """Five parts of three users, two items, one tag and no shop."""
    whole = write_tiny_graph(tmp_path / "whole")
    partition_graph(whole, tmp_path / "parts", 5, method=method)
    assert verify_partition(tmp_path / "parts") == []
    ids = OldIds(open_folder(whole), open_parts(tmp_path / "parts"))
    wanted, found = (
        NeighborSampler(graph, [2, -1], edge_ids=True).sample(Seeds({"user": users}, {"user": places}), KEY)
        for places in [torch.arange(3)]
        for graph, users in (
            (open_csc_graph(whole), places),
            (LocalPartitionGraph(ids.parts), ids.new_nodes("user", places)),
        )
    )
    assert_same(ids, found, wanted)
    rows = LocalPartitionFeatures(ids.parts).gather(
        {"user": Rows(found.nodes["user"], ("x",)), "shop": Rows(int64([]), ("x",))}
    )
    assert torch.equal(rows["user"]["x"], open_folder(whole).columns()["user"]["x"][wanted.nodes["user"]])
    assert rows["shop"]["x"].shape == (0, 2)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph and its four parts."""
    home = tmp_path_factory.mktemp("shop")
    partition_graph(write_typed_graph(home / "whole", renumbered=True), home / "parts", 4)
    return home


def test_parts_answer_for_the_nodes_that_they_own_alone(shop: Path) -> None:
    everything, some = (
        LocalPartitionGraph(open_parts(shop / "parts")),
        LocalPartitionGraph(open_parts(shop / "parts", [1, 2])),
    )
    first, end = some.folder.bounds("item")[0], some.folder.bounds("item")[-1]
    hop = Hop(1, {("user", "buys", "item"): 3, ("item", "like", "item"): -1}, Uniform(), edge_ids=True)
    own = {"item": Frontier(torch.arange(first, end).flip(0))}
    assert same(some.sample_hop(own, hop, KEY), everything.sample_hop(own, hop, KEY))
    assert some.num_nodes("item") == everything.num_nodes("item") == 200
    for stranger in (first - 1, end):
        with pytest.raises(
            ValueError,
            match=rf"frontier node {stranger}: not in \[{first}, {end}\), the nodes of parts 1 to 2",
        ):
            some.sample_hop({"item": Frontier(torch.tensor([first, stranger]))}, hop, KEY)


def test_it_pickles_as_the_path_of_its_parts(shop: Path) -> None:
    pickled = pickle.dumps(LocalPartitionGraph(open_parts(shop / "parts", [2, 3])))
    assert len(pickled) < 1000
    graph = pickle.loads(pickled)
    assert (graph.folder.held, graph.num_nodes("user")) == (range(2, 4), 300)


def test_a_part_that_is_not_here_is_named(shop: Path, tmp_path: Path) -> None:
    there = shutil.copytree(shop / "parts", tmp_path / "parts")
    shutil.rmtree(there / "part-0002")
    assert LocalPartitionGraph(open_parts(there, [0, 1])).folder.held == range(2)
    with pytest.raises(ValueError, match=r"part 2 of 4 is not on this machine: there is no part-0002; copy"):
        LocalPartitionGraph(open_parts(there))


@pytest.mark.parametrize("held", [[1, 3], [3, 2], [3, 4], [-1, 0]])
def test_parts_that_do_not_follow_each_other_are_refused(shop: Path, held: list[int]) -> None:
    with pytest.raises(ValueError, match=r"are requested; give consecutive ones, from 0 to 3"):
        LocalPartitionGraph(open_parts(shop / "parts", held))


def test_times_of_sources_that_rows_do_not_follow_are_named_with_the_way_out(tmp_path: Path) -> None:
    nodes = {"item": NodeTable(columns={"time": torch.tensor([4, 2, 3])})}
    edges = {LIKE: EdgeTable(torch.tensor([1, 0, 2]), torch.tensor([0, 1, 2]))}
    partition_graph(write_graph(tmp_path / "whole", nodes, edges), tmp_path / "parts", 2, method="range")
    graph, frontier = (
        LocalPartitionGraph(open_parts(tmp_path / "parts")),
        {"item": Frontier(int64([0]), int64([9]))},
    )
    with pytest.raises(ValueError, match=r"like.*rows do not follow 'time'.*khop graph sort .* --by time"):
        graph.sample_hop(frontier, Hop(1, {LIKE: 2}, Temporal("time")), KEY)
    untimed = graph.sample_hop({"item": Frontier(int64([0]))}, Hop(1, {LIKE: 2}, Uniform()), KEY)
    assert untimed[LIKE].nodes.tolist() == [1]


def test_an_edge_type_that_no_part_has_is_named(shop: Path) -> None:
    with pytest.raises(ValueError, match=r"no edge type \('a', 'b', 'c'\); there are .*'buys'"):
        LocalPartitionGraph(open_parts(shop / "parts")).folder.num_edges(("a", "b", "c"))
    with pytest.raises(ValueError, match=r"no node type 'shop'; there are \['user', 'item', 'tag'\]"):
        LocalPartitionGraph(open_parts(shop / "parts")).num_nodes("shop")
