"""An R-GCN gives what its formula says; what is shared is shared.

R-GCN over a column of relations equals R-GCN over as many edge types, and the formula.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import RGCNConv

import khop
from khop.api.graph_from import MemoryEdges, memory_graph
from khop.batch import Batch
from khop.inference.node_outputs import layerwise_inference
from khop.models.layer import Layer
from khop.models.rgcn import RGCN, RelationColumn
from support.host_reads import counting
from support.knowledge import BACK, ENTITIES, FACT, RELATIONS, Triples, as_column, as_types, relation_type
from support.small_graphs import SmallGraph, one_type, shop, small_graph
from support.triton_rows import DEVICE
from support.triton_segments import by_triton


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
        ValueError, match=r"input rows have widths \{'item': 6, 'user': 4\}.*of the same width, or"
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


@pytest.mark.core(1)
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


TRIPLES = Triples.drawn()
COLUMN = RelationColumn("r", {FACT: RELATIONS, BACK: RELATIONS})


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[khop.Graph, khop.Graph]:
    home = tmp_path_factory.mktemp("facts")
    return as_column(home / "column", TRIPLES), as_types(home / "types", TRIPLES)


def model_of(graph: khop.Graph, bases: int, relations: RelationColumn | None) -> RGCN:
    torch.manual_seed(3)
    return RGCN.for_graph(
        graph, hidden=8, layers=2, target=["entity"], outputs=5, bases=bases, relations=relations
    ).double()


def batch_of(graph: khop.Graph, rule: khop.Rule | None = None) -> Batch:
    sampler = khop.NeighborSampler(graph, [-1, -1], edge_ids=True, rule=rule or khop.Uniform())
    columns: dict[object, list[str]] = {"entity": ["x"]}
    if FACT in graph.schema.edge_types:
        columns |= {FACT: ["r"], BACK: ["r"]}
    return khop.Loader(sampler, torch.arange(0, ENTITIES, 2), ENTITIES, columns=columns).batch(0, 0)  # type: ignore[arg-type]


def moved(model: RGCN, from_column: RGCN) -> RGCN:
    """Give a model of edge types the weights of one with columns."""
    state, there = dict(from_column.state_dict()), model.state_dict()
    for name in there:
        if name not in state:
            place, _, words = name.rpartition(".")
            _, relation, _ = words.split(":")
            of_type = f"{place}.{':'.join(BACK if relation.endswith('-back') else FACT)}"
            there[name] = state[of_type][int(relation[1])]
        elif not name.endswith("_extra_state"):
            there[name] = state[name]
    model.load_state_dict(there)
    return model


@pytest.mark.parametrize("bases", [0, 3])
@pytest.mark.parametrize("many", [0, 100])
def test_a_column_equals_as_many_edge_types(
    graphs: tuple[khop.Graph, khop.Graph], bases: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("khop.models.rgcn.MANY_TYPES", many or 1)
    by_column = model_of(graphs[0], bases, COLUMN)
    by_types = moved(model_of(graphs[1], bases, None), by_column)
    found, gradients = [], []
    for model, graph in zip((by_column, by_types), graphs, strict=True):
        rows = model(batch_of(graph))["entity"]
        rows.square().sum().backward()
        found.append(rows.detach())
        gradients.append({name: each.grad for name, each in model.named_parameters() if "encoder" in name})
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=0, atol=1e-9)


def test_the_weight_of_a_relation_is_a_mixture_or_its_own(graphs: tuple[khop.Graph, khop.Graph]) -> None:
    """One layer by its formula, relation by relation."""
    for bases in (0, 2):
        model, batch = model_of(graphs[0], bases, COLUMN), batch_of(graphs[0])
        layer, block = model.layers[0], batch.blocks[0]
        h, table = model.encode(batch), layer.weights.table()  # type: ignore[union-attr, operator]
        expected = layer.weights.bias + h["entity"][: block.num_dst] @ layer.weights.own.T  # type: ignore[union-attr, operator]
        for number, edge_type in enumerate((FACT, BACK)):
            edges = block.adjacencies[edge_type]
            source, destination = edges.edge_index
            for relation in range(RELATIONS):
                mine = edges.columns["r"] == relation
                matrix = torch.zeros(block.num_dst, block.num_src, dtype=torch.float64)
                matrix.index_put_((destination[mine], source[mine]), torch.ones(1).double(), accumulate=True)
                mean = matrix / matrix.sum(1, keepdim=True).clamp(min=1) @ h["entity"]
                expected = expected + mean @ table[number * RELATIONS + relation].T
        torch.testing.assert_close(layer(h, block)["entity"], expected.relu())


@pytest.mark.parametrize("bases", [0, 3])
def test_exact_inference_equals_a_batch_of_all_neighbors(
    graphs: tuple[khop.Graph, khop.Graph], bases: int
) -> None:
    graph = graphs[0]
    model = model_of(graph, bases, COLUMN)
    rows = khop.node_rows(model, graph, graph.features, ["entity"], chunk_size=7)["entity"]
    expected = model(batch_of(graph))["entity"]
    torch.testing.assert_close(rows[torch.arange(0, ENTITIES, 2)], expected.detach(), rtol=0, atol=1e-12)


def test_sums_use_the_weights_of_the_rule(graphs: tuple[khop.Graph, khop.Graph]) -> None:
    by_column = model_of(graphs[0], 3, COLUMN)
    by_types = moved(model_of(graphs[1], 3, None), by_column)
    found: list[Tensor] = [
        model(batch_of(graph, khop.Sum()))["entity"]
        for model, graph in zip((by_column, by_types), graphs, strict=True)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)  # weights of rules are float32


@pytest.mark.long
@pytest.mark.parametrize(
    ("bases", "reads"), [(3, set()), (0, {"nonzero", "bincount", "repeat_interleave"})], ids=["bases", "none"]
)
def test_a_device_reads_numbers_of_pairs_without_bases_and_nothing_with_them(
    graphs: tuple[khop.Graph, khop.Graph], bases: int, reads: set[str]
) -> None:
    model, batch = model_of(graphs[0], bases, COLUMN), batch_of(graphs[0])
    expected = model(batch)["entity"]
    model.to(DEVICE)
    with by_triton(), counting() as found:
        rows = model(batch.to(DEVICE))["entity"]
        rows.sum().backward()
    torch.testing.assert_close(rows.cpu(), expected, rtol=0, atol=1e-12)
    of_the_check = {"_local_scalar_dense"}  # of relations on the CPU, which stands for the device
    names = {read.removeprefix("aten::").partition(" ")[0] for read in found}
    assert names - of_the_check == reads


@pytest.mark.parametrize("bases", [0, 3])
@pytest.mark.parametrize(
    ("rule", "count"), [(khop.Sum(), 1), (khop.Weighted("w", replacement=True), 2)], ids=str
)
def test_edge_types_with_weights_are_joined(
    rule: khop.Rule, count: int, bases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a sum all edge types have weights; by weight only those of which all neighbors are drawn."""
    monkeypatch.setattr("khop.models.rgcn.MANY_TYPES", 1)
    ends = {relation_type(number): TRIPLES.of(number) for number in range(RELATIONS)}
    edges = {t: MemoryEdges(*of, {"w": torch.rand(of.shape[1]) + 0.1}) for t, of in ends.items()}
    graph = memory_graph({"entity": ENTITIES}, edges, {"entity": {"x": torch.randn(ENTITIES, 6)}})
    model = model_of(graph, bases, None)
    sampler = khop.NeighborSampler(graph, [{"* r0 *": 3, "*": -1}] * 2, rule=rule)
    batch = khop.Loader(sampler, torch.arange(0, ENTITIES, 2), ENTITIES, columns=["x"]).batch(0, 0)
    h, layer, block = model.encode(batch), model.layers[0], batch.blocks[0]
    assert len(layer.weights.slots.groups("entity", h, block)) == count  # type: ignore[union-attr, operator]
    together = layer(h, block)["entity"]
    one_by_one = Layer.totals(layer, h, block)("entity", "relu")  # type: ignore[arg-type]
    torch.testing.assert_close(together, one_by_one, rtol=0, atol=1e-6)  # weights of rules are float32


@pytest.mark.long
@pytest.mark.parametrize("bases", [0, 3])
def test_the_mean_over_many_keys_is_exact_by_the_rule_of_means(
    graphs: tuple[khop.Graph, khop.Graph], bases: int
) -> None:
    """Before the nonlinearity, within five standard errors, and far from the mean of plain draws."""
    graph, rule, draws = graphs[0], khop.RelationMean("r"), 400
    torch.manual_seed(3)
    model = RGCN.for_graph(graph, 8, 1, ["entity"], outputs=5, bases=bases, relations=COLUMN).double()
    torch.nn.init.constant_(model.layers[0].weights.bias, 99.0)  # type: ignore[union-attr, arg-type]
    exact = khop.node_rows(model, graph, graph.features, ["entity"], rule=rule)["entity"]
    plain = khop.node_rows(model, graph, graph.features, ["entity"])["entity"]
    torch.testing.assert_close(exact, plain, rtol=0, atol=1e-5)  # weights of rules are float32
    off = []
    for drawn_by in (rule, khop.Uniform()):
        sampler = khop.NeighborSampler(graph, [2], rule=drawn_by, edge_ids=True)
        columns = {"entity": ["x"], FACT: ["r"], BACK: ["r"]}
        loader = khop.Loader(sampler, torch.arange(ENTITIES), ENTITIES, columns=columns)  # type: ignore[arg-type]
        with torch.no_grad():
            found = torch.stack([model(loader.batch(epoch, 0))["entity"] for epoch in range(draws)])
        error = 5 * found.std(0) / draws**0.5 + 1e-5
        off.append(float(((found.mean(0) - exact).abs() / error).max()))
    assert off[0] < 1
    assert off[1] > 3


def test_types_without_edges_leave_zero_gradients(graphs: tuple[khop.Graph, khop.Graph]) -> None:
    for graph, relations in ((graphs[0], COLUMN), (graphs[1], None)):
        for bases in (0, 3):
            model = model_of(graph, bases, relations)
            sampler = khop.NeighborSampler(graph, [0, 0], edge_ids=True)
            columns = {"entity": ["x"], **({FACT: ["r"], BACK: ["r"]} if relations else {})}
            batch = khop.Loader(sampler, torch.arange(4), 4, columns=columns).batch(0, 0)  # type: ignore[arg-type]
            model(batch)["entity"].sum().backward()
            assert all(parameter.grad is not None for parameter in model.parameters())


def test_unfit_columns_are_errors(graphs: tuple[khop.Graph, khop.Graph]) -> None:
    graph = graphs[0]
    few = model_of(graph, 2, RelationColumn("r", {FACT: 2, BACK: RELATIONS}))
    with pytest.raises(ValueError, match="relations from 0 to 3, but the model has 2; make it with more"):
        few(batch_of(graph))
    model, batch = model_of(graph, 2, COLUMN), batch_of(graph)
    bare = [
        replace(block, adjacencies={t: replace(a, columns={}) for t, a in block.adjacencies.items()})
        for block in batch.blocks
    ]
    with pytest.raises(
        ValueError, match=r"column 'r' of .* the model reads it, but the batch does not have it"
    ):
        model(replace(batch, sample=replace(batch.sample, blocks=tuple(bare))))
    with pytest.raises(ValueError, match="must be at least 1"):
        RelationColumn("r", {FACT: 0})
    assert relation_type(0) in graphs[1].schema.edge_types
