"""Attention layers are torch_geometric's with the same weights, sampled, over all neighbors and exact."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, HGTConv

import khop
from khop.batch import Batch, Block
from khop.inference.node_outputs import layerwise_inference
from khop.models.gat import GAT, Attention
from khop.models.hgt import HGT, HgtLayer
from support.small_graphs import SmallGraph, one_type, shop


def weights_of(model: GAT, layer: int, edge_type: str) -> dict[str, Tensor]:
    """The weights of one edge type, and those of its destination type."""
    target, name = edge_type.rsplit(":", 1)[1], f"layers.{layer}"
    found = dict(model.named_parameters())
    inner = f"{name}.attention.{edge_type}"
    own = {"own": found[f"{name}.own.node:{target}"], "bias": found[f"{name}.bias.node:{target}"]}
    return own | {n: found[f"{inner}.{n}"] for n in ("values", "score", "destination")}


def convolution(model: GAT, layer: int, heads: int, attention: Attention) -> nn.Module:
    """The layer as torch_geometric's convolution of sources and destinations, with a residual weight."""
    weights = weights_of(model, layer, "node:to:node")
    hidden, inputs = weights["values"].shape
    kind = GATConv if attention == "gat" else GATv2Conv
    made = kind((inputs, inputs), hidden // heads, heads, add_self_loops=False, residual=True).double()
    score = weights["score"].unsqueeze(0)
    state = {"bias": weights["bias"], "res.weight": weights["own"]}
    if attention == "gatv2":
        state |= {"att": score, "lin_l.weight": weights["values"], "lin_r.weight": weights["destination"]}
        state |= {"lin_l.bias": torch.zeros(hidden), "lin_r.bias": torch.zeros(hidden)}
    else:
        # Theirs multiplies a row of the destination by a matrix and then by a vector for each head.
        att = torch.zeros(1, heads, hidden // heads, dtype=torch.float64)
        att[..., 0] = 1
        lin = torch.zeros(hidden, inputs, dtype=torch.float64)
        lin[:: hidden // heads] = weights["destination"].detach()
        state |= {"att_src": score, "att_dst": att}
        state |= {"lin_src.weight": weights["values"], "lin_dst.weight": lin}
    made.load_state_dict(state)
    return made


def theirs(model: GAT, batch: Batch, heads: int, attention: Attention) -> Tensor:
    x = batch["x"]
    for index, block in enumerate(batch.blocks):
        x = convolution(model, index, heads, attention)((x, x[: block.num_dst]), block.edge_index).relu()
    return model.head("node", x[batch.seed_index])


@pytest.mark.core(1)
@pytest.mark.parametrize("fanout", [-1, 2])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("attention", ["gat", "gatv2"])
def test_outputs_and_gradients_are_those_of_torch_geometric(
    attention: Attention, heads: int, fanout: int
) -> None:
    graph = one_type(torch.float64)
    model = GAT.for_graph(graph.store, hidden=8, layers=2, heads=heads, attention=attention).double()
    batch = graph.batch(torch.arange(0, 30, 2), [fanout, fanout], "node")
    ours, expected = model(batch), theirs(model, batch, heads, attention)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)

    columns = {"node": {"x": batch["x"].clone().requires_grad_()}}
    again = Batch(batch.sample, batch.seed_nodes, columns, batch.seed_columns, 0, 0, 15)
    found = torch.autograd.grad(model(again).sin().sum(), columns["node"]["x"])
    wanted = torch.autograd.grad(theirs(model, again, heads, attention).sin().sum(), columns["node"]["x"])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ["gat", "gatv2"])
@pytest.mark.parametrize(("make", "target"), [(one_type, "node"), (shop, "item")])
def test_exact_inference_is_the_full_graph(make: type[SmallGraph], target: str, attention: Attention) -> None:
    graph = make(torch.float64)  # type: ignore[call-arg, arg-type]
    model = GAT.for_graph(graph.store, 8, 2, embedding=0, norm="layer", heads=2, attention=attention).double()
    every = graph.batch(torch.arange(graph.store.num_nodes(target)), [-1, -1], target)
    exact = layerwise_inference(model, graph.store, graph.features, target, chunk_size=7)
    torch.testing.assert_close(exact, model(every).detach(), rtol=0, atol=1e-12)


def with_edges(path: Path, width: int) -> khop.Graph:
    random = torch.Generator().manual_seed(3)
    sources, destinations = torch.randint(30, (2, 150), generator=random)
    numbers = torch.randn(150, width, generator=random)
    x = torch.randn(30, 5, generator=random)
    tables = {("node", "to", "node"): khop.EdgeTable(sources, destinations, {"e": numbers})}
    return khop.open_graph(khop.write_graph(path, {"node": khop.NodeTable(columns={"x": x})}, tables))


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("attention", ["gat", "gatv2"])
def test_edge_columns_are_those_of_torch_geometric(tmp_path: Path, attention: Attention, heads: int) -> None:
    graph, edge = with_edges(tmp_path / "graph", 3), ("node", "to", "node")
    torch.manual_seed(1)
    model = GAT.for_graph(
        graph, 8, 1, target=["node"], outputs=4, heads=heads, attention=attention, edge_column="e"
    ).double()
    columns = {"node": ["x"], edge: ["e"]}
    sampler = khop.NeighborSampler(graph, [-1], edge_ids=True)
    batch = khop.Loader(sampler, torch.arange(30), 30, columns=columns).batch(0, 0)  # type: ignore[arg-type]
    kind = GATConv if attention == "gat" else GATv2Conv
    made = kind((5, 5), 8 // heads, heads, add_self_loops=False, residual=True, edge_dim=3).double()
    state = dict(made.state_dict()) | dict(convolution(model, 0, heads, attention).state_dict())
    weight = dict(model.named_parameters())["layers.0.attention.node:to:node.edge"].detach()
    if attention == "gatv2":
        state["lin_edge.weight"] = weight
    else:  # as for destinations, a matrix and then a vector for each head
        state["att_edge"] = state["att_dst"]
        state["lin_edge.weight"] = torch.zeros(8, 3, dtype=torch.float64)
        state["lin_edge.weight"][:: 8 // heads] = weight
    made.load_state_dict(state)
    block, x = batch.blocks[0], batch["x"].double()
    adjacency = block.adjacency
    theirs = made((x, x[: block.num_dst]), block.edge_index, adjacency.columns["e"].double()).relu()
    ours = model(batch)["node"]
    torch.testing.assert_close(ours, model.head("node", theirs)[batch.seed_index], rtol=0, atol=1e-12)
    exact = khop.node_rows(model, graph, graph.features, ["node"], chunk_size=7)["node"]
    torch.testing.assert_close(exact, ours.detach(), rtol=0, atol=1e-12)
    ours.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_edge_columns_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    graph = with_edges(tmp_path / "graph", 1)
    with pytest.raises(ValueError, match="edge column 'q': no edge type has it; there are"):
        GAT.for_graph(graph, 8, target=["node"], outputs=4, edge_column="q")
    model = GAT.for_graph(graph, 8, 1, target=["node"], outputs=4, edge_column="e")
    batch = khop.Loader(khop.NeighborSampler(graph, [2]), torch.arange(5), 5, columns=["x"]).batch(0, 0)
    with pytest.raises(
        ValueError, match=r"column 'e' of .* the model reads it, but the batch does not have it"
    ):
        model(batch)


@pytest.mark.parametrize("attention", ["gat", "gatv2"])
def test_every_parameter_has_a_gradient_in_every_batch(attention: Attention) -> None:
    graph = shop()
    model = GAT.for_graph(graph.store, 8, 2, embedding=0, heads=2, attention=attention, residual="add")
    for fanouts in ([2, 2], [0, 0]):
        model.zero_grad(set_to_none=True)
        model(graph.batch(torch.arange(10), fanouts, "item")).sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads 3: must divide hidden, 8"),
        ({"heads": 0}, "heads 0: must be"),
        ({"attention": "dot"}, "attention 'dot': must be one of"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GAT.for_graph(one_type().store, hidden=8, **options)  # type: ignore[arg-type]


# HGT is torch_geometric's with the same weights, sampled, over all neighbors and exact.


def convolution_hgt(layer: HgtLayer, heads: int, hidden: int) -> HGTConv:
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


def theirs_hgt(model: HGT, batch: Batch, heads: int) -> Tensor:
    h = model.encode(batch)
    for layer, block in zip(model.layers, batch.blocks, strict=True):
        assert isinstance(layer, HgtLayer)
        assert isinstance(block, Block)
        edges = {t: block.adjacencies[t].edge_index for t in layer.edge_types}
        made = convolution_hgt(layer, heads, model.layers[0].options.hidden)
        out = made({t: rows for t, rows in h.items()}, edges)
        h = {t: out[t][: block.dst_counts[t]] for t in layer.destinations}
    return model.head("item", h["item"].index_select(0, batch.sample.seed_index["item"]))


@pytest.mark.core(1)
@pytest.mark.parametrize(("heads", "fanout"), [(1, -1), (4, -1), (2, 3)])
def test_outputs_are_those_of_torch_geometric(heads: int, fanout: int) -> None:
    graph = shop(torch.float64)
    model = HGT.for_graph(graph.store, 8, 2, embedding=4, heads=heads).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "prior" in name or "skip" in name:
                parameter.copy_(torch.randn(parameter.shape))
    batch = graph.batch(torch.arange(0, 40, 3), [fanout, fanout], "item")
    ours, expected = model(batch), theirs_hgt(model, batch, heads)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_exact_inference_is_the_full_graph_hgt() -> None:
    graph = shop(torch.float64)
    model = HGT.for_graph(graph.store, 8, 2, embedding=0, norm="layer", heads=2).double()
    every = graph.batch(torch.arange(40), [-1, -1], "item")
    exact = layerwise_inference(model, graph.store, graph.features, "item", chunk_size=7)
    torch.testing.assert_close(exact, model(every).detach(), rtol=0, atol=1e-12)


def test_every_parameter_has_a_gradient_in_every_batch_hgt() -> None:
    graph = shop()
    model = HGT.for_graph(graph.store, 8, 2, embedding=0, heads=2)
    for fanouts in ([2, 2], [0, 0]):
        model.zero_grad(set_to_none=True)
        model(graph.batch(torch.arange(10), fanouts, "item")).sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_wrong_heads_are_named() -> None:
    with pytest.raises(ValueError, match="heads 3: must divide hidden, 8"):
        HGT.for_graph(shop().store, 8, embedding=4, heads=3)
