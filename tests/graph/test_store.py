"""The base of graph stores: a small store keeps the protocol by its defaults, and says what it lacks.

The graph store over CSC arrays, in memory and mapped from a folder.

A graph is shown in five lines, without its tensors.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch

from khop import (
    EdgeTable,
    Graph,
    GraphStoreBase,
    Links,
    LinkSampler,
    Loader,
    NeighborSampler,
    NodeTable,
    UniformNegatives,
    open_graph,
    write_graph,
)
from khop.api.open_graph import WIDTH
from khop.draw import DrawKey, Frontier, FrontierByType, NeighborsByType, Positives
from khop.errors import Unsupported
from khop.graph.features.table import FeatureTable
from khop.graph.folder import open_folder
from khop.graph.needs import Columns
from khop.graph.rule import Hop
from khop.graph.store import CscGraph, csc_graph_from_edges, open_csc_graph
from khop.kernels.csc import Csc
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.schema import NodeType, Schema
from khop.testing.graph_rules import PROMISES as RULE_PROMISES
from khop.testing.graph_store import KEY, PROMISES, Make, same
from khop.testing.graphs import BUYS, LIKE, SHOP, PlainGraph, int64, shop_frontier
from support.commands import PROGRAM
from support.random_graphs import EDGE, ring
from support.typed_shop import shop

INNER = ring(20, 3)


class Small(GraphStoreBase):
    """Three members, as a store from outside may have."""

    schema = INNER.schema

    def num_nodes(self, node_type: NodeType) -> int:
        return INNER.num_nodes(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        return INNER.sample_hop(frontier, hop, key)


def test_three_members_are_enough_for_a_loader() -> None:
    small, whole = (
        Loader(NeighborSampler(graph, [2, 2], edge_ids=True), torch.arange(20), 6, shuffle=True)
        for graph in (Small(), INNER)
    )
    for ours, theirs in zip(small.epoch(0), whole.epoch(0), strict=True):
        assert torch.equal(ours.input_nodes, theirs.input_nodes)
        for block, other in zip(ours.blocks, theirs.blocks, strict=True):
            assert torch.equal(block.adjacency.edge_ids, other.adjacency.edge_ids)


def test_by_default_a_store_is_one_partition_of_this_process() -> None:
    store = Small()
    assert not store.is_collective
    assert store.original_ids("node") is None
    assert store.partition_bounds("node") == (0, 20)
    store.prepare(())


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda g: g.local_csc(EDGE), "the edges of a Small are not in this process"),
        (lambda g: g.num_edges(EDGE), "the edges of a Small are not in this process"),
        (lambda g: g.in_one_piece("save"), "save: the edges of a Small are not in this process"),
        (lambda g: g.only([EDGE]), "Small cannot exclude edge types; give the sampler fanouts of 0"),
        (lambda g: g.keeping({EDGE: [torch.arange(3)]}), "Small cannot exclude edges"),
        (
            lambda g: g.sample_negatives(
                EDGE, UniformNegatives(), Positives(torch.arange(1), torch.arange(1)), DrawKey(0)
            ),
            "Small does not draw negatives; give negatives with khop.Links",
        ),
    ],
)
def test_an_operation_that_a_store_lacks_names_the_remedy(
    ask: Callable[[GraphStoreBase], object], sentence: str
) -> None:
    with pytest.raises(Unsupported, match=sentence):
        ask(Small())


def test_visits_that_cannot_be_computed_are_unknown() -> None:
    seeds = {"node": torch.arange(5)}
    assert NeighborSampler(Small(), [2]).visits(seeds, 2) is None
    assert NeighborSampler(INNER, [2]).visits(seeds, 2) is not None


def test_seeds_that_a_sampler_does_not_take_are_named() -> None:
    links = Links({EDGE: torch.tensor([[1], [0]])})
    with pytest.raises(
        ValueError, match=r"NeighborSampler takes seeds that are \['nodes'\].*links: give khop"
    ):
        Loader(NeighborSampler(INNER, [2]), links, 1)
    assert len(Loader(LinkSampler(INNER, [2]), links, 1)) == 1


@pytest.fixture(params=["in memory", "mapped", "unpickled"])
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Make:
    numbers, home = count(), tmp_path_factory.mktemp("graphs")

    def mapped(plain: PlainGraph) -> CscGraph:
        return open_csc_graph(plain.written(home / str(next(numbers))))

    def unpickled(plain: PlainGraph) -> CscGraph:
        graph = plain.in_memory()
        return pickle.loads(pickle.dumps(graph))

    return {"in memory": PlainGraph.in_memory, "mapped": mapped, "unpickled": unpickled}[request.param]


@pytest.mark.parametrize("promise", [*PROMISES, *RULE_PROMISES], ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


def test_renumbering_changes_no_draw(make: Make) -> None:
    """The same graph with items and users in another order draws the same nodes, by their original ids."""
    new_of = {"user": [3, 0, 5, 1, 4, 2], "item": [8, 1, 7, 0, 2, 6, 3, 5, 4]}  # original id -> new id
    old_of = {name: [new.index(n) for n in range(len(new))] for name, new in new_of.items()}
    renumbered = PlainGraph(
        SHOP.counts,
        {
            name: [(new_of[name[0]][s], new_of[name[2]][d]) for s, d in pairs]
            for name, pairs in SHOP.edges.items()
        },
        old_of,
    )
    items, hop = [5, 1, 1, 8, 0], Hop(3, {LIKE: 4, BUYS: 2}, Uniform())
    old = make(SHOP).sample_hop({"item": Frontier(int64(items))}, hop, KEY)
    new = make(renumbered).sample_hop({"item": Frontier(int64([new_of["item"][n] for n in items]))}, hop, KEY)
    for edge_type, drawn in new.items():
        assert [old_of[edge_type[0]][n] for n in drawn.nodes] == old[edge_type].nodes.tolist()


def test_a_mapped_graph_pickles_as_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SHOP.written(tmp_path / "g")
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(open_csc_graph("g"))
    assert len(pickled) < 1000
    code = f"import pickle; print(pickle.loads({pickled!r}).num_nodes('item'))"
    done = subprocess.run(
        [*PROGRAM, code], cwd=os.sep, capture_output=True, text=True, check=True, env=_with_khop()
    )
    assert done.stdout == "9\n"


def test_damaged_offsets_are_an_error_and_no_crash(tmp_path: Path) -> None:
    path = SHOP.written(tmp_path / "g")
    with (path / "edges/item__like__item/indptr.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")  # the highest byte of the last offset
    graph = open_csc_graph(path)
    with pytest.raises(ValueError, match=r"like.*row 8.*damaged"):
        graph.sample_hop({"item": Frontier(int64([0, 8]))}, Hop(1, {LIKE: 2}, Uniform()), KEY)


def test_a_folder_that_is_open_need_not_be_opened_again(tmp_path: Path) -> None:
    folder = open_folder(SHOP.written(tmp_path / "g"))
    graph, hop = open_csc_graph(folder), Hop(1, {LIKE: 2}, Uniform())
    assert graph.edges[LIKE].indices.data_ptr() == folder.csc(LIKE).indices.data_ptr()
    assert same(
        graph.sample_hop(shop_frontier(1), hop, KEY), SHOP.in_memory().sample_hop(shop_frontier(1), hop, KEY)
    )


def test_arrays_that_do_not_fit_the_schema_are_refused() -> None:
    schema, csc = Schema(("item",), (LIKE,)), Csc(int64([0, 1]), int64([0]))
    with pytest.raises(ValueError, match=r"like.*has no edges"):
        CscGraph(schema, {"item": 1}, {})
    with pytest.raises(ValueError, match=r"like.*1 rows for 2 'item' nodes"):
        CscGraph(schema, {"item": 2}, {LIKE: csc})


def test_an_edge_list_in_memory_is_checked() -> None:
    with pytest.raises(ValueError, match="3"):
        csc_graph_from_edges({"item": 3}, {LIKE: (int64([0, 3]), int64([1, 1]))})
    assert csc_graph_from_edges({"item": 2}, {}).edges == {}
    empty = csc_graph_from_edges({"item": 0}, {LIKE: (int64([]), int64([]))})
    assert empty.edges[LIKE].indptr.tolist() == [0]
    assert empty.edges[LIKE].indices.dtype == torch.int32


DAYS, WEIGHTS = int64([5, 2, 3, 4]), torch.tensor([0.5, 2, 3, 4])
GIVEN = {LIKE: (int64([0, 1, 2, 1]), int64([0, 0, 1, 1]))}  # the first row is not in the order of DAYS


def test_rows_sorted_by_time_are_marked_and_their_columns_follow() -> None:
    told: list[tuple[str, int, int]] = []
    columns = {LIKE: {"day": DAYS, "weight": WEIGHTS}}

    def notice(what: str, done: int, total: int) -> None:
        told.append((what, done, total))

    graph = csc_graph_from_edges({"item": 3}, GIVEN, columns=columns, sort_by="day", notice=notice)
    assert told == [("rows of item__like__item were not in the order of 'day': sorted", 64, 64)]
    assert graph.csc(LIKE).indices.tolist() == [1, 0, 2, 1]
    assert graph.columns[LIKE]["day"].tolist() == [2, 5, 3, 4]
    assert graph.columns[LIKE]["weight"].tolist() == [2, 0.5, 3, 4]
    told.clear()
    in_order = {LIKE: {"day": DAYS.sort().values}}
    csc_graph_from_edges({"item": 3}, GIVEN, columns=in_order, sort_by="day", notice=notice)
    assert told == []


@pytest.mark.parametrize(
    ("columns", "sort_by", "message"),
    [
        ({LIKE: {"day": DAYS}}, "dya", r"sort_by 'dya': no such column of times; there are .*\['day'\]"),
        ({LIKE: {"day": DAYS / 2}}, "day", r"like.*column 'day' is float32 of shape \(4,\): times are whole"),
        ({LIKE: {"day": DAYS > 2}}, "day", r"like.*column 'day' is bool of shape \(4,\): times are whole"),
        (
            {"item": {"day": torch.zeros(3, 2).long()}},
            "day",
            r"'item': column 'day' is int64 of shape \(3, 2\)",
        ),
        ({"item": {"day": DAYS}}, None, "column 'day' has 4 rows, but node type 'item' has 3 nodes"),
        ({LIKE: {"day": DAYS[:3]}}, None, "column 'day' has 3 rows, but edge type .*like.* has 4 edges"),
        ({LIKE: {"weight": WEIGHTS + 0j}}, None, "column 'weight' is complex64: convert it to one of"),
        ({BUYS: {"day": DAYS}}, None, r"columns of .*buys.*: no such type; there are \['item', "),
    ],
    ids=["misspelt", "float", "bool", "two per row", "too many", "too few", "complex", "of no type"],
)
def test_columns_that_do_not_fit_the_edges_in_memory_are_named(
    columns: Columns, sort_by: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        csc_graph_from_edges({"item": 3}, GIVEN, columns=columns, sort_by=sort_by)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, -math.inf])
def test_a_weight_that_is_none_is_named_with_its_position(weight: float) -> None:
    columns = {LIKE: {"weight": torch.tensor([1, 1, weight, 1])}}
    graph = csc_graph_from_edges({"item": 3}, GIVEN, columns=columns)
    with pytest.raises(ValueError, match=rf"like.*column 'weight': weight {weight} at position 2: must be a"):
        graph.sample_hop({"item": Frontier(int64([0]))}, Hop(1, {LIKE: 1}, Weighted("weight")), KEY)


def test_a_graph_of_fewer_edge_types_has_their_nodes_columns_and_ids_and_no_others(make: Make) -> None:
    graph = make(SHOP)
    assert isinstance(graph, CscGraph)
    likes = graph.only([LIKE])
    assert (likes.schema.edge_types, likes.schema.node_types) == ((LIKE,), ("item",))
    assert (dict(likes.counts), list(likes.edges)) == ({"item": 9}, [LIKE])
    assert likes.csc(LIKE) is graph.csc(LIKE)
    assert set(likes.columns) <= {"item", LIKE}
    hop = Hop(1, {LIKE: 2}, Uniform())
    items = {"item": Frontier(int64([0, 8]))}
    assert same(likes.sample_hop(items, hop, KEY), graph.sample_hop(items, hop, KEY))


def test_types_that_are_not_in_the_graph_are_named(make: Make) -> None:
    graph = make(SHOP)
    assert isinstance(graph, CscGraph)
    missing = ("user", "hates", "item")
    asked: list[Callable[[], object]] = [
        lambda: graph.csc(missing),
        lambda: graph.only([missing]),
        lambda: graph.sample_hop({"item": Frontier(int64([0]))}, Hop(1, {missing: 2}, Uniform()), KEY),
    ]
    for ask in asked:
        with pytest.raises(ValueError, match=r"no edge type \('user', 'hates', 'item'\); there are \["):
            ask()
    with pytest.raises(ValueError, match=r"no node type 'shop'; there are \["):
        graph.num_nodes("shop")


def test_the_edge_type_whose_rows_are_damaged_is_named_among_several() -> None:
    edges = {BUYS: Csc(int64([0, 1]), int64([0])), LIKE: Csc(int64([0, 9]), int64([0]))}
    graph = CscGraph(Schema(("user", "item"), (BUYS, LIKE)), {"user": 1, "item": 1}, edges)
    with pytest.raises(ValueError, match=r"edge type \('item', 'like', 'item'\): .*damaged"):
        graph.sample_hop({"item": Frontier(int64([0]))}, Hop(1, {BUYS: 1, LIKE: 1}, Uniform()), KEY)


def _with_khop() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_a_folder_shows_its_path_nodes_edges_columns_and_splits(tmp_path: Path) -> None:
    item = NodeTable(
        columns={"x": torch.zeros(1200, 4), "y": torch.arange(1200) % 3},
        splits={"train": torch.arange(1000), "val": torch.arange(1000, 1200)},
        num_classes={"y": 3},
    )
    edges = {("item", "next", "item"): EdgeTable(torch.arange(1200), torch.arange(1200).roll(1))}
    path = write_graph(tmp_path / "g", {"item": item}, edges)
    assert repr(open_graph(path)).splitlines() == [
        f"khop.Graph of {path}",
        "  nodes    item 1,200",
        "  edges    item next item 1,200",
        "  columns  item: x float32[4], y int64 (3 classes)",
        "  splits   train 1,000 item, val 200 item",
    ]


def test_a_graph_in_memory_counts_its_edges() -> None:
    lines = repr(shop()).splitlines()
    assert lines[0] == "khop.Graph in memory"
    assert f"user buys item {shop().csc(BUYS).num_edges}" in lines[2]
    assert lines[-1] == "  splits   none"
    assert "tensor" not in "".join(lines)


def test_many_types_are_cut_to_one_line() -> None:
    counts = {f"type number {i}": i for i in range(40)}
    ends = torch.empty(0, dtype=torch.int64)
    topology = csc_graph_from_edges(counts, {(t, "to", t): (ends, ends) for t in counts})
    lines = repr(Graph(topology, FeatureTable({}))).splitlines()
    assert len(lines) == 5
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[1].startswith("  nodes    type number 0 0, type number 1 1, ")
    assert lines[1].endswith(", ...")


def test_a_name_longer_than_a_line_is_cut() -> None:
    topology = csc_graph_from_edges({"n" * 300: 1}, {})
    assert repr(Graph(topology, FeatureTable({}))).splitlines()[1] == f"  nodes    {'n' * (WIDTH - 15)} ..."
