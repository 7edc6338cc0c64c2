"""LightGCN is torch_geometric's with the same embeddings, on a graph of two node types.

With sparse and sharded embeddings it has no other weights, and trains by RowAdam alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from torch_geometric.nn import LightGCN as TheirLightGCN

import khop
from khop.batch import Batch
from khop.inference.node_outputs import layerwise_inference
from khop.models.light_gcn import LightGCN
from khop.sampling.rules.sum import SymmetricSum
from support.small_graphs import SmallGraph, one_type, shop, small_graph
from support.small_runs import Interrupting

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought_by", "user")


def both_ways() -> SmallGraph:
    """Users and items without columns, and every edge in both directions."""
    graph = small_graph({"user": 20, "item": 15}, {BUYS: 90, BOUGHT: 1}, {}, "item", dtype=torch.float64)
    source, destination = graph.edges[BUYS]
    # Every node has an edge, as torch_geometric leaves nodes without edges out of sums.
    source = torch.cat([source, torch.arange(20), torch.arange(15)])
    destination = torch.cat([destination, torch.arange(20) % 15, torch.arange(15)])
    return graph.with_edges_of({BUYS: (source, destination), BOUGHT: (destination, source)})


def outputs(model: LightGCN, batch: Batch) -> dict[str, torch.Tensor]:
    found = model(batch)
    assert isinstance(found, dict)
    return {node_type: rows.detach() for node_type, rows in found.items()}


def test_over_all_neighbors_it_is_that_of_torch_geometric() -> None:
    graph = both_ways()
    model = LightGCN.for_graph(graph.store, hidden=8, layers=3, target=["user", "item"]).double()
    source, destination = graph.edges[BUYS]
    ends = torch.stack([torch.cat([source, destination + 20]), torch.cat([destination + 20, source])])
    theirs = TheirLightGCN(35, 8, 3).double()
    rows = dict(model.named_parameters())
    tables = [rows[f"encoder.tables.node:{node_type}.weight"] for node_type in ("user", "item")]
    theirs.embedding.weight.data = torch.cat(tables).data
    expected = theirs.get_embedding(ends).detach()
    for node_type, wanted in (("user", expected[:20]), ("item", expected[20:])):
        rule = SymmetricSum()
        batch = graph.batch(torch.arange(len(wanted)), [-1] * 3, node_type, rule=rule)
        torch.testing.assert_close(outputs(model, batch)[node_type], wanted, rtol=0, atol=1e-6)
        exact = layerwise_inference(model, graph.store, graph.features, node_type, rule=rule, chunk_size=4)
        torch.testing.assert_close(exact, wanted, rtol=0, atol=1e-6)


def test_columns_and_embeddings_together_are_one_row_each() -> None:
    graph = shop()
    model = LightGCN.for_graph(graph.store, 8, 2, embedding=4, embedded_types="all")
    assert set(model.encoder.widths.values()) == {8}
    for fanouts in ([2, 2], [0, 0]):
        model.zero_grad(set_to_none=True)
        out = model(graph.batch(torch.arange(10), fanouts, "item", rule=SymmetricSum()))
        assert out.shape == (10, 3)
        out.sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_wrong_sizes_are_named() -> None:
    plain = both_ways()
    with pytest.raises(ValueError, match=r"embedding 4: LightGCN adds the rows .* embedding=8"):
        LightGCN.for_graph(plain.store, 8, target=["user"], embedding=4)
    with pytest.raises(ValueError, match="outputs 5: LightGCN returns rows of width hidden=8"):
        LightGCN.for_graph(plain.store, 8, target=["user"], outputs=5)
    with pytest.raises(ValueError, match=r"node types \['tag'\]: LightGCN needs input rows for each"):
        LightGCN.for_graph(shop().store, 8, 2, embedding=0)
    with pytest.raises(ValueError, match="embedded_types 'all' with embedding 0: give a width"):
        LightGCN.for_graph(one_type().store, 8, 2, embedding=0, embedded_types="all")


def purchases(out: Path, split: khop.LinkSplit, update: Literal["sparse", "sharded"]) -> khop.Trainer:
    """A run of LightGCN with dot products in steps of 16 links."""
    torch.manual_seed(0)
    encoder = LightGCN.for_graph(
        split.train, hidden=8, layers=1, target=["user", "item"], embedding_update=update
    )
    model = khop.models.LinkPredictor(encoder, {BUYS: khop.models.Dot()})
    negatives = khop.UniformNegatives(1, mode=khop.NegativeMode.TRIPLET)
    sampler = khop.LinkSampler(split.train, [5], negatives=negatives, rule=encoder.rule)

    def evaluate() -> dict[str, float]:
        return {"val": khop.evaluate_links(model, split.val, split.val_links)["mrr"]}

    return khop.Trainer(
        model,
        khop.LinkPrediction("bpr"),
        khop.Loader(sampler, split.train_links, batch_size=16),
        evaluate,
        khop.TrainerSettings(epochs=2, learning_rate=0.1, optimizer=khop.OptimizerSettings(clip_norm=1.0)),
        out=out,
        observer=Interrupting(1, 1) if out.name == "stopped" else None,
    )


@pytest.mark.core(1)
@pytest.mark.parametrize("update", ["sparse", "sharded"])
def test_without_other_weights_it_trains_and_resumes(
    tmp_path: Path, update: Literal["sparse", "sharded"]
) -> None:
    ends = torch.randint(15, (2, 90), generator=torch.Generator().manual_seed(0))
    edges = {
        BUYS: khop.EdgeTable(*ends, reverse_of=BOUGHT),
        BOUGHT: khop.EdgeTable(*ends.flip(0), reverse_of=BUYS),
    }
    nodes = {"user": khop.NodeTable(15), "item": khop.NodeTable(15)}
    graph = khop.open_graph(khop.write_graph(tmp_path / "graph", nodes, edges))
    split = khop.split_links(graph, BUYS, val=10, test=10)
    whole = purchases(tmp_path / "whole", split, update)
    before = {name: rows.clone() for name, rows in whole.model.state_dict().items()}
    losses = [record["loss"] for record in whole.fit().records]
    assert losses[1] < losses[0]
    assert all(not torch.equal(rows, before[name]) for name, rows in whole.model.state_dict().items())
    with pytest.raises(KeyboardInterrupt):
        purchases(tmp_path / "stopped", split, update).fit()
    (tmp_path / "stopped").rename(tmp_path / "again")
    again = purchases(tmp_path / "again", split, update)
    again.resume()
    assert [record["loss"] for record in again.fit().records] == losses
    assert all(
        torch.equal(rows, whole.model.state_dict()[name]) for name, rows in again.model.state_dict().items()
    )
