"""Columns come with the rows they belong to, by one gather per batch, and wrong names are named."""

from __future__ import annotations

import pytest
import torch

from khop import DrawKey, Expansion, NeighborSampler, Sample, Seeds
from khop.graph.features.store import FeatureStoreBase, Gathered, Rows, Wanted
from khop.loading.columns import ColumnChoice, NamesByType
from khop.loading.local_source import gather_columns
from support.typed_shop import BOUGHT_BY, BUYS, shop

GRAPH = shop()
EXPANSIONS = pytest.mark.parametrize("expansion", list(Expansion))


class Noting(FeatureStoreBase):
    """A feature store that notes what it is asked for."""

    specs = GRAPH.features.specs

    def __init__(self) -> None:
        self.asked: list[Wanted] = []

    def gather(self, wanted: Wanted) -> Gathered:
        self.asked.append(wanted)
        return GRAPH.features.gather(wanted)


class Generous(FeatureStoreBase):
    """A feature store that gives more rows than the limits ask for."""

    specs = GRAPH.features.specs

    def gather(self, wanted: Wanted) -> Gathered:
        return GRAPH.features.gather({t: Rows(rows.ids, rows.columns) for t, rows in wanted.items()})


def choice(columns: NamesByType | list[str], seed_columns: NamesByType | list[str] = ()) -> ColumnChoice:
    return ColumnChoice.of(GRAPH.schema, columns, seed_columns, ["item"])


def sample(
    expansion: Expansion = Expansion.LAYERED, fanouts: tuple[object, ...] = (3, 2), edge_ids: bool = True
) -> Sample:
    sampler = NeighborSampler(GRAPH, fanouts, expansion=expansion, edge_ids=edge_ids)
    items = torch.tensor([4, 9, 4, 29])
    return sampler.sample(Seeds({"item": items}, {"item": torch.arange(4)}), DrawKey(1))


def test_a_list_of_names_means_every_type_that_has_them() -> None:
    assert choice(["x"]).of_nodes == {"user": ("x",), "item": ("x",)}
    assert choice(["price", "x", "x"]).of_nodes == {"user": ("x",), "item": ("price", "x")}
    assert choice([]).is_empty
    assert choice([], ["x"]).of_seeds == {"item": ("x",)}


def test_a_mapping_names_the_columns_of_each_type() -> None:
    chosen = choice({"user": ["age"], "item": [], BUYS: ["amount"]}, {"item": ["price"]})
    assert chosen == ColumnChoice({"user": ("age",)}, {BUYS: ("amount",)}, {"item": ("price",)})


@pytest.mark.parametrize(
    ("columns", "seed_columns", "message"),
    [
        (["y"], [], r"columns: no node type has a column 'y'; there are {'user': \['age', 'x'\], 'item'"),
        (["amount"], [], "no node type has a column 'amount'"),
        ([], ["age"], r"seed_columns: no node type has a column 'age'; there are {'item': \['price', 'x'\]}"),
        ({"user": ["price"]}, [], r"column 'price' of 'user': not in the graph; there are \['age', 'x'\]"),
        ({BOUGHT_BY: ["amount"]}, [], "column 'amount' of"),
        (
            {"shop": ["x"]},
            [],
            r"column 'x' of 'shop': not a type of the graph; there are \['user', 'item', \(",
        ),
        ({("user", "sees", "item"): ["x"]}, [], r"of \('user', 'sees', 'item'\): not a type of the graph"),
        ([], {"user": ["x"]}, r"seed_columns of 'user': the seeds are of \['item'\]"),
        ([], {BUYS: ["amount"]}, "the seeds are of"),
        (3, [], r"columns 3: give a list of names, \['x'\]"),
        ({"user": 3}, [], r"columns 3: give a list of names"),
        ("x", [], r"columns 'x': give a list of names, \['x'\]"),
        ({"user": "age"}, [], r"columns 'age': give a list of names, \['age'\]"),
    ],
)
def test_a_wrong_name_is_named(columns: list[str], seed_columns: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choice(columns, seed_columns)


@EXPANSIONS
@pytest.mark.parametrize("features", [GRAPH.features, Generous()], ids=["to the limit", "beyond it"])
def test_columns_are_those_of_the_nodes_and_seeds(expansion: Expansion, features: Noting) -> None:
    sampled = sample(expansion)
    wanted = choice(["x", "price"], {"item": ["x", "price"]})
    _, columns, seed_columns = gather_columns(features, wanted, sampled)
    users, items = sampled.nodes["user"], sampled.nodes["item"]
    assert columns["user"]["x"].tolist() == [[float(user), -float(user)] for user in users.tolist()]
    assert columns["item"]["price"].tolist() == [item * 1.5 for item in items.tolist()]
    assert seed_columns["item"]["price"].tolist() == [6.0, 13.5, 6.0, 43.5]
    assert seed_columns["item"]["x"].tolist() == [[4 / 8], [9 / 8], [4 / 8], [29 / 8]]


@EXPANSIONS
def test_edge_columns_lie_beside_the_edges_of_every_block(expansion: Expansion) -> None:
    filled, *_ = gather_columns(GRAPH.features, choice({BUYS: ["amount"]}), sample(expansion))
    for block in filled.blocks:
        of_edges = block.adjacencies[BUYS]
        assert of_edges.edge_ids is not None
        assert (
            of_edges.columns["amount"].tolist() == of_edges.edge_ids.tolist()
        )  # the column is its own position
        assert block.adjacencies[BOUGHT_BY].columns == {}
    if filled.subgraph is not None:
        whole = filled.subgraph.adjacencies[BUYS].columns["amount"]
        assert all(
            b.adjacencies[BUYS].columns["amount"].data_ptr() == whole.data_ptr() for b in filled.blocks
        )


@EXPANSIONS
def test_an_edge_type_that_is_followed_at_some_hops_has_its_columns_there(expansion: Expansion) -> None:
    sampled = sample(expansion, fanouts=({BUYS: 2, BOUGHT_BY: 0}, {BUYS: 0, BOUGHT_BY: 2}, {BUYS: 1, "*": 0}))
    filled, *_ = gather_columns(GRAPH.features, choice({BUYS: ["amount"]}), sampled)
    found = [block.adjacencies[BUYS] for block in filled.blocks if BUYS in block.adjacencies]
    assert len(found) == 3
    for of_edges in found:
        assert of_edges.edge_ids is not None
        assert of_edges.columns["amount"].tolist() == of_edges.edge_ids.tolist()


@EXPANSIONS
def test_an_edge_type_that_is_never_followed_has_no_rows(expansion: Expansion) -> None:
    sampled = sample(expansion, fanouts=({BOUGHT_BY: 2, BUYS: 0},))
    filled, *_ = gather_columns(GRAPH.features, choice({BUYS: ["amount"]}), sampled)
    (block,) = filled.blocks
    assert block.adjacencies[BUYS].columns["amount"].shape == (0,)


def test_one_gather_brings_all_and_reads_seed_columns_for_seeds_alone() -> None:
    features = Noting()
    sampled = sample()
    gather_columns(features, choice({"user": ["x"], "item": ["x"], BUYS: ["amount"]}, ["price"]), sampled)
    (wanted,) = features.asked
    assert set(wanted) == {"user", "item", BUYS}
    assert wanted["item"].columns == ("x", "price")
    assert wanted["item"].limits == {"price": 3}
    assert wanted["user"].limits == {}
    assert wanted[BUYS].ids.numel() == sum(b.adjacencies[BUYS].indices.numel() for b in sampled.blocks)


def test_no_seeds_of_a_type_read_nothing_of_it() -> None:
    sampler = NeighborSampler(GRAPH, [2])
    empty = torch.empty(0, dtype=torch.int64)
    sampled = sampler.sample(Seeds({"item": empty}, {"item": empty}), DrawKey(1))
    _, columns, seed_columns = gather_columns(GRAPH.features, choice(["x"], ["price"]), sampled)
    assert seed_columns["item"]["price"].tolist() == []
    assert columns["user"]["x"].shape == (0, 2)


def test_edge_columns_need_edge_ids() -> None:
    with pytest.raises(ValueError, match=r"the sampler returned no edge ids; make it with edge_ids=True"):
        gather_columns(GRAPH.features, choice({BUYS: ["amount"]}), sample(edge_ids=False))
