"""An edge type is a tuple or its three words, wherever a script names one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.schema import edge_type_of, type_of
from support.typed_shop import bits

BUYS = ("user", "buys", "item")
TEXT = "user buys item"
SOURCES, DESTINATIONS = torch.arange(20) % 6, torch.arange(20) % 8


def written(path: Path, buys: object, bought_by: object) -> khop.Graph:
    nodes = {
        "user": khop.NodeTable(6, {"x": torch.arange(12.0).view(6, 2)}),
        "item": khop.NodeTable(8, {"x": torch.arange(16.0).view(8, 2)}),
    }
    edges = {
        buys: khop.EdgeTable(SOURCES, DESTINATIONS, {"amount": torch.arange(20)}),
        bought_by: khop.EdgeTable(DESTINATIONS, SOURCES, reverse_of=buys),  # type: ignore[arg-type]
    }
    return khop.open_graph(khop.write_graph(path, nodes, edges))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    path = tmp_path_factory.mktemp("names")
    named = written(path / "text", TEXT, "item bought_by user")
    assert named.schema == written(path / "tuples", BUYS, ("item", "bought_by", "user")).schema
    return named


def test_columns_of_nodes_have_each_name_once() -> None:
    x, y = khop.ColumnSpec("float32", (4,)), khop.ColumnSpec("int64", ())
    columns = {"a": {"y": y, "x": x}, "b": {"x": x}, ("a", "to", "b"): {"w": y}}
    assert khop.Schema(("a", "b"), (("a", "to", "b"),), columns=columns).node_columns == ("x", "y")


def test_a_graph_is_asked_by_text(graph: khop.Graph) -> None:
    assert graph.csc(TEXT) is not None
    assert torch.equal(graph.csc(TEXT).indices, graph.csc(BUYS).indices)
    assert graph.only([TEXT]).schema.edge_types == (BUYS,)
    assert graph.schema.column(TEXT, "amount") == graph.schema.column(BUYS, "amount")
    assert graph.schema.reverse(TEXT) == ("item", "bought_by", "user")
    more = graph.with_edges({"item near item": khop.EdgeTable(torch.tensor([0]), torch.tensor([1]))})
    assert ("item", "near", "item") in more.schema.edge_types
    assert khop.Schema(("user", "item"), (TEXT,)) == khop.Schema(("user", "item"), (BUYS,))  # type: ignore[arg-type]
    assert torch.equal(
        torch.as_tensor(khop.cooccurrence(graph, TEXT, min_count=1).sources),
        torch.as_tensor(khop.cooccurrence(graph, BUYS, min_count=1).sources),
    )


def test_loaders_and_links_are_given_text(graph: khop.Graph) -> None:
    ends = torch.stack([SOURCES, DESTINATIONS])[:, :6]

    def loader(name: object) -> khop.Loader:
        links = khop.Links({name: ends}, {name: torch.ones(6)}, negatives={name: torch.ones(6, 1).long()})
        sampler = khop.LinkSampler(graph, [{name: 2, "*": 1}], negatives=khop.GivenNegatives(), edge_ids=True)
        return khop.Loader(sampler, links, 4, columns={"user": ["x"], name: ["amount"]})

    assert [bits(batch) for batch in loader(TEXT)] == [bits(batch) for batch in loader(BUYS)]


def test_a_split_is_of_one_text_or_several(graph: khop.Graph) -> None:
    wanted = khop.split_links(graph, BUYS, 0.2, 0.2).val_links.edges[BUYS]
    for name in (TEXT, [TEXT], [BUYS], (TEXT,)):
        assert torch.equal(khop.split_links(graph, name, 0.2, 0.2).val_links.edges[BUYS], wanted)


def test_decoders_and_own_edges_are_named_by_text(graph: khop.Graph) -> None:
    model = khop.models.LinkPredictor(torch.nn.Identity(), {TEXT: torch.nn.Identity()})
    assert model.edge_types == (BUYS,)
    assert model.decoder(TEXT) is model.decoder(BUYS)
    assert khop.models.LinkPredictor.of(torch.nn.Identity(), [TEXT], "dot", 3).edge_types == (BUYS,)

    def edges_for(layer: int, view: khop.FrontierView, nodes: object) -> dict[str, khop.Edges]:
        return {TEXT: khop.Edges(torch.tensor([4]), torch.tensor([2]))}

    batch = khop.Loader(khop.FrontierSampler(graph, edges_for, 1), {"item": [2]}, 1).batch(0, 0)
    assert batch.sample.nodes["user"].tolist() == [4]


@pytest.mark.parametrize("given", ["user buys", "a b c d", "", ("user", "buys"), ("user", 1, "item"), 5])
def test_what_names_no_edge_type_is_an_error(given: object) -> None:
    with pytest.raises(ValueError, match=r"edge type .*: give source type, relation and destination type"):
        edge_type_of(given)


def test_an_edge_type_that_is_given_twice_is_an_error(graph: khop.Graph) -> None:
    ends = torch.stack([SOURCES, DESTINATIONS])
    with pytest.raises(
        ValueError, match=r"edge type .*: given twice, as a string and as a tuple; give it once"
    ):
        khop.Links({BUYS: ends, TEXT: ends})  # type: ignore[dict-item]


def test_three_words_are_a_node_type_where_the_schema_has_one() -> None:
    schema = khop.Schema(("a b c", "a"), ())
    assert type_of(schema, "a b c") == "a b c"
    assert type_of(schema, "a to a") == ("a", "to", "a")
