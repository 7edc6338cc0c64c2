"""Inputs of an evaluation by forward(batch): the columns and hops of whoever names them first."""

from __future__ import annotations

import pytest
from torch import nn

from khop.inference.forward_inputs import all_neighbors, columns_read, evaluation_sampler
from khop.loading.columns import ColumnChoice
from khop.sampling.neighbor import Expansion, NeighborSampler
from support.small_graphs import shop

GRAPH = shop()
SCHEMA = GRAPH.store.schema
BUYS, HAS = ("user", "buys", "item"), ("item", "has", "tag")


class Reading(nn.Module):
    """A model that names its columns and its hops."""

    input_columns = ("x",)
    num_layers = 3


def test_columns_are_the_given_ones_or_the_models_or_the_loaders_or_all_but_labels() -> None:
    loaders = ColumnChoice({"item": ("x",)}, {}, {"item": ("y",)})
    plain = nn.Linear(1, 1)
    assert columns_read(Reading(), SCHEMA, {"user": ["x"]}, loaders).of_nodes == {"user": ("x",)}
    assert columns_read(Reading(), SCHEMA, None, loaders).of_nodes == {"user": ("x",), "item": ("x",)}
    of_loader = columns_read(plain, SCHEMA, None, loaders)
    assert (of_loader.of_nodes, of_loader.of_seeds) == ({"item": ("x",)}, {})
    of_all = columns_read(plain, SCHEMA, None, None).of_nodes
    assert {t: names for t, names in of_all.items() if names} == {"user": ("x",), "item": ("x",)}


def test_a_sampler_has_the_settings_of_the_loaders() -> None:
    like = NeighborSampler(GRAPH.store, [2], expansion=Expansion.SUBGRAPH)
    made = evaluation_sampler(GRAPH.store, [-1, -1], ColumnChoice({}, {}, {}), like)
    assert isinstance(made, NeighborSampler)
    assert (made.expansion, made.num_layers) == (Expansion.SUBGRAPH, 2)
    plain = evaluation_sampler(GRAPH.store, [-1], ColumnChoice({}, {BUYS: ("w",)}, {}), None)
    assert isinstance(plain, NeighborSampler)
    assert plain.hops[0].edge_ids


def test_hops_are_the_samplers_or_the_models() -> None:
    followed = NeighborSampler(GRAPH.store, [{BUYS: 2, "*": 0}, {HAS: 1, BUYS: 1, "*": 0}])
    exact = all_neighbors(nn.Linear(1, 1), followed, warn=False)
    hops = NeighborSampler(GRAPH.store, exact).hops
    assert [{t for t, fanout in hop.fanouts.items() if fanout} for hop in hops] == [{BUYS}, {BUYS, HAS}]
    with pytest.warns(UserWarning, match="Reading does not expose its layers: .* 3 hops deep"):
        assert list(all_neighbors(Reading(), None, warn=True)) == [-1, -1, -1]
    with pytest.raises(ValueError, match="the number of hops is unknown"):
        all_neighbors(nn.Linear(1, 1), None, warn=False)
