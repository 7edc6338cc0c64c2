"""An R-GCN gives what its formula says; what is shared is shared."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import RGCNConv

from khop.inference.node_outputs import layerwise_inference
from khop.models.rgcn import RGCN
from support.small_graphs import SmallGraph, one_type, shop, small_graph


def dense(model: RGCN, graph: SmallGraph, node_type: str) -> Tensor:
    """The full-graph forward pass with one dense matrix per edge type: the formula and nothing else."""
    weights, counts = dict(model.named_parameters()), graph.store.counts
    h = {
        t: F.linear(
            x["x"], weights[f"encoder.linear.node:{t}.weight"], weights[f"encoder.linear.node:{t}.bias"]
        )
        for t, x in graph.features.columns.items()
        if f"encoder.linear.node:{t}.weight" in weights
    } or {t: x["x"] for t, x in graph.features.columns.items()}
    for index, layer in enumerate(model.layers):
        name, after = f"layers.{index}.weights", {}
        for t in layer.destinations:  # type: ignore[union-attr]
            z = weights[f"{name}.bias"].expand(counts[t], -1)
            z = z + h[t] @ weights[f"{name}.own"].T if t in h else z
            for number, edge_type in enumerate(layer.weights.slots.first):  # type: ignore[union-attr]
                if edge_type[2] != t:
                    continue
                if f"{name}.shares" in weights:
                    share = weights[f"{name}.shares"][number]
                    weight = sum(share[b] * weights[f"{name}.bases.{b}"] for b in range(len(share)))
                else:
                    weight = weights[f"{name}.neighbors.{':'.join(edge_type)}"]
                sources, destinations = graph.edges[edge_type]
                matrix = torch.zeros(counts[t], counts[edge_type[0]], dtype=z.dtype)
                matrix.index_put_((destinations, sources), torch.ones(1, dtype=z.dtype), accumulate=True)
                z = z + matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1) @ h[edge_type[0]] @ weight.T
            after[t] = F.relu(z)
        h = after
    return F.linear(
        h[node_type], weights[f"heads.node:{node_type}.weight"], weights[f"heads.node:{node_type}.bias"]
    )


@pytest.mark.parametrize("bases", [0, 3])
@pytest.mark.parametrize(("make", "target"), [(one_type, "node"), (shop, "item")])
def test_a_batch_of_all_neighbors_gives_the_dense_full_graph_forward(
    make: type[SmallGraph], target: str, bases: int
) -> None:
    graph = make(torch.float64)  # type: ignore[call-arg, arg-type]
    model = RGCN.for_graph(graph.store, hidden=8, embedding=0, layers=2, bases=bases).double()
    seeds = torch.arange(0, graph.store.num_nodes(target), 3).flip(0)
    output = model(graph.batch(seeds, [-1, -1], target))
    torch.testing.assert_close(output, dense(model, graph, target)[seeds], rtol=0, atol=1e-12)


@pytest.mark.parametrize("bases", [0, 1, 3])
def test_without_an_encoder_the_first_layer_reads_the_columns(bases: int) -> None:
    """With one basis, the edge types of both layers are computed together."""
    counts = {("a", "to", "a"): 90, ("b", "to", "a"): 90, ("a", "to", "b"): 60}
    graph = small_graph({"a": 30, "b": 20}, counts, {"a": 5, "b": 5}, "a", dtype=torch.float64)
    model = RGCN.for_graph(graph.store, 8, 2, bases=bases, encoder="none").double()
    assert not model.encoder.linear
    seeds = torch.arange(0, 30, 2)
    output = model(graph.batch(seeds, [-1, -1], "a"))
    torch.testing.assert_close(output, dense(model, graph, "a")[seeds], rtol=0, atol=1e-12)


def test_without_an_encoder_all_rows_have_one_width() -> None:
    with pytest.raises(
        ValueError, match=r"input rows have widths \{'item': 6, 'user': 4\}.*of one width, or"
    ):
        RGCN.for_graph(shop().store, embedding=0, encoder="none")


def by_torch_geometric(model: RGCN, graph: SmallGraph, target: str) -> Tensor:
    """The forward pass of RGCNConv layers with the model's weights, over all types as one type."""
    weights, counts = dict(model.named_parameters()), graph.store.counts
    first, total = {}, 0
    for t, count in counts.items():
        first[t], total = total, total + count
    x = torch.zeros(total, 8, dtype=torch.float64)
    for t, columns in graph.features.columns.items():
        if f"encoder.linear.node:{t}.weight" in weights:
            x[first[t] : first[t] + counts[t]] = model.encoder.linear[f"node:{t}"](columns["x"])
    for index, layer in enumerate(model.layers):
        slots = list(layer.weights.slots.first)  # type: ignore[union-attr]
        own, bias = (weights[f"layers.{index}.weights.{name}"] for name in ("own", "bias"))
        shares = weights.get(f"layers.{index}.weights.shares")
        bases = None if shares is None else shares.shape[1]
        convolution = RGCNConv(8, 8, len(slots), num_bases=bases).double()
        if shares is None:
            names = [f"layers.{index}.weights.neighbors.{':'.join(t)}" for t in slots]
        else:
            names = [f"layers.{index}.weights.bases.{number}" for number in range(shares.shape[1])]
            convolution.comp.data = shares.detach()
        convolution.weight.data = torch.stack([weights[name].detach().T for name in names])
        convolution.root.data, convolution.bias.data = own.detach().T, bias.detach()
        ends = [torch.stack(graph.edges[t]) + torch.tensor([[first[t[0]]], [first[t[2]]]]) for t in slots]
        kinds = torch.cat([torch.full((pairs.shape[1],), number) for number, pairs in enumerate(ends)])
        x = convolution(x, torch.cat(ends, 1), kinds).relu()
    rows: Tensor = model.heads[f"node:{target}"](x[first[target] : first[target] + counts[target]])
    return rows.detach()


@pytest.mark.parametrize("bases", [0, 3])
@pytest.mark.parametrize(("make", "target"), [(one_type, "node"), (shop, "item")])
def test_over_all_neighbors_it_is_that_of_torch_geometric(
    make: type[SmallGraph], target: str, bases: int
) -> None:
    graph = make(torch.float64)  # type: ignore[call-arg, arg-type]
    model = RGCN.for_graph(graph.store, hidden=8, embedding=0, layers=2, bases=bases).double()
    for layer in model.layers:
        torch.nn.init.normal_(layer.weights.bias)  # type: ignore[union-attr]
    expected = by_torch_geometric(model, graph, target)
    nodes = torch.arange(graph.store.num_nodes(target))
    found = model(graph.batch(nodes, [-1, -1], target)).detach()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    exact = layerwise_inference(model, graph.store, graph.features, target, chunk_size=7)
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-10)


def test_bases_take_fewer_parameters_than_a_matrix_per_edge_type() -> None:
    def count(bases: int) -> int:
        model = RGCN.for_graph(shop().store, hidden=8, embedding=0, layers=2, bases=bases)
        return sum(p.numel() for name, p in model.layers.named_parameters() if "bias" not in name)

    # Own weights of both layers; then 3 edge types that something flows along, and 2.
    assert (count(0), count(2)) == (2 * 64 + 5 * 64, 2 * 64 + 2 * 2 * 64 + 2 * (3 + 2))


def test_a_wrong_number_of_bases_is_named() -> None:
    with pytest.raises(ValueError, match="bases -1: must be at least 1, or 0 for a matrix per edge type"):
        RGCN.for_graph(shop().store, bases=-1)
