"""HGT is torch_geometric's with the same weights, sampled, over all neighbors and exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import HGTConv

from khop.batch import Batch, Block
from khop.inference.node_outputs import layerwise_inference
from khop.models.hgt import HGT, HgtLayer
from support.small_graphs import shop


def convolution(layer: HgtLayer, heads: int, hidden: int) -> HGTConv:
    """The layer as torch_geometric's convolution, of all node types that it reads or gives."""
    types = sorted({t for edge_type in layer.edge_types for t in (edge_type[0], edge_type[2])})
    made = HGTConv(hidden, hidden, (types, list(layer.edge_types)), heads).double()
    given = dict(layer.named_parameters())
    for node_type in types:
        for kind in ("weight", "bias"):
            parts = [given.get(f"{part}.node:{node_type}.{kind}") for part in ("keys", "queries", "values")]
            shape = (hidden, hidden) if kind == "weight" else (hidden,)
            rows = [torch.zeros(shape, dtype=torch.float64) if part is None else part for part in parts]
            getattr(made.kqv_lin.lins[node_type], kind).data = torch.cat(rows).data
            if f"out.node:{node_type}.{kind}" in given:
                getattr(made.out_lin.lins[node_type], kind).data = given[f"out.node:{node_type}.{kind}"].data
        if f"skip.node:{node_type}" in given:
            made.skip[node_type].data = given[f"skip.node:{node_type}"].data.reshape(1)
    for name, relations in (("k_rel", "score"), ("v_rel", "message")):
        weights = torch.zeros_like(getattr(made, name).weight)
        for edge_type, offset in made.edge_types_map.items():
            per_head = given[f"{relations}." + ":".join(edge_type)]
            for head in range(heads):
                weights[offset + head * len(layer.edge_types)] = per_head[head]
        getattr(made, name).weight.data = weights.data
    for edge_type in layer.edge_types:
        made.p_rel["__".join(edge_type)].data = given["prior." + ":".join(edge_type)].data.reshape(1, -1)
    return made


def theirs(model: HGT, batch: Batch, heads: int) -> Tensor:
    h = model.encode(batch)
    for layer, block in zip(model.layers, batch.blocks, strict=True):
        assert isinstance(layer, HgtLayer)
        assert isinstance(block, Block)
        edges = {t: block.adjacencies[t].edge_index for t in layer.edge_types}
        made = convolution(layer, heads, model.layers[0].options.hidden)
        out = made({t: rows for t, rows in h.items()}, edges)
        h = {t: out[t][: block.dst_counts[t]] for t in layer.destinations}
    return model.head("item", h["item"].index_select(0, batch.sample.seed_index["item"]))


@pytest.mark.parametrize(("heads", "fanout"), [(1, -1), (4, -1), (2, 3)])
def test_outputs_are_those_of_torch_geometric(heads: int, fanout: int) -> None:
    graph = shop(torch.float64)
    model = HGT.for_graph(graph.store, 8, 2, embedding=4, heads=heads).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "prior" in name or "skip" in name:
                parameter.copy_(torch.randn(parameter.shape))
    batch = graph.batch(torch.arange(0, 40, 3), [fanout, fanout], "item")
    ours, expected = model(batch), theirs(model, batch, heads)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_exact_inference_is_the_full_graph() -> None:
    graph = shop(torch.float64)
    model = HGT.for_graph(graph.store, 8, 2, embedding=0, norm="layer", heads=2).double()
    every = graph.batch(torch.arange(40), [-1, -1], "item")
    exact = layerwise_inference(model, graph.store, graph.features, "item", chunk_size=7)
    torch.testing.assert_close(exact, model(every).detach(), rtol=0, atol=1e-12)


def test_every_parameter_has_a_gradient_in_every_batch() -> None:
    graph = shop()
    model = HGT.for_graph(graph.store, 8, 2, embedding=0, heads=2)
    for fanouts in ([2, 2], [0, 0]):
        model.zero_grad(set_to_none=True)
        model(graph.batch(torch.arange(10), fanouts, "item")).sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_wrong_heads_are_named() -> None:
    with pytest.raises(ValueError, match="heads 3: must divide hidden, 8"):
        HGT.for_graph(shop().store, 8, embedding=4, heads=3)
