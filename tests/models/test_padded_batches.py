"""Static shapes through every model: tail rows without edges and seeds of weight 0 change nothing.

The same batches go through the kernels of devices, where a training step reads nothing on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from khop import Graph
from khop.batch import Adjacency, Batch
from khop.draw import NegativeMode
from khop.graph.rule import Rule
from khop.kernels.activations import dropout_key
from khop.kernels.lazy_rows import packed
from khop.kernels.segment import segment_max, segment_mean
from khop.kernels.segment_attention import segment_softmax
from khop.models.decoders import DecoderKind
from khop.models.encoder import ModelSizes
from khop.models.gat import GAT
from khop.models.gcn import GCN
from khop.models.gin import GIN
from khop.models.hgt import HGT
from khop.models.light_gcn import LightGCN
from khop.models.link_predictor import EdgePredictor
from khop.models.rgcn import MANY_TYPES, RGCN
from khop.models.sage import SAGE
from khop.models.stack import Sequential
from khop.sampling.rules.sum import Sum, SymmetricSum
from khop.sampling.rules.uniform import Uniform
from khop.schema import EdgeType
from khop.training.edge_tasks import EdgeClassification, EdgeRegression, LinkPrediction
from khop.training.tasks import MultiLabelClassification, NodeClassification, NodeRegression, Task
from support.edge_index_layer import Convolution
from support.host_reads import counting
from support.padded_batches import SPARE, in_use, padded
from support.small_graphs import one_type, shop, small_graph
from support.small_links import BUYS, WIDTH, LinkBatches, predictor
from support.triton_rows import DEVICE
from support.triton_segments import by_triton


class Attention(nn.Module):
    """A convolution with a softmax over in-edges and maxima of neighbors."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.rows = nn.Linear(inputs, outputs)
        self.score = nn.Linear(outputs, 1)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        h = self.rows(x)
        of_edges = h.index_select(0, adjacency.indices.clamp(max=x.shape[0] - 1))
        share = segment_softmax(self.score(of_edges), adjacency.indptr)
        edges = torch.arange(adjacency.indices.numel(), dtype=torch.int32, device=x.device)
        attended = segment_mean(of_edges * share, adjacency.indptr, edges)
        return attended + segment_max(h, adjacency.indptr, adjacency.indices)


@dataclass(frozen=True)
class Case:
    """A model, a batch for it and its task, in float64."""

    model: nn.Module
    batch: Batch
    task: Task


def plain(make: Callable[[Graph], nn.Module], rule: Rule = Uniform()) -> Case:
    small = one_type(torch.float64)
    batch = small.batch(torch.arange(3, 20), [4, 3], "node", rule=rule)
    return Case(make(Graph(small.store, small.features)).double(), batch, NodeClassification("node", "y"))


def typed(make: Callable[[Graph], nn.Module], rule: Rule = Uniform()) -> Case:
    """Two edge types lead to the seeds."""
    small = shop(torch.float64)
    batch = small.batch(torch.arange(2, 19), [4, 3], "item", rule=rule)
    return Case(make(Graph(small.store, small.features)).double(), batch, NodeClassification("item", "y"))


def many_typed(make: Callable[[Graph], nn.Module]) -> Case:
    """As many edge types as the CPU computes together."""
    edge_counts = {("node", f"to-{number}", "node"): 12 for number in range(MANY_TYPES + 1)}
    small = small_graph({"node": 20}, edge_counts, {"node": 4}, "node", dtype=torch.float64)
    batch = small.batch(torch.arange(3, 8), [2, 2], "node")
    return Case(make(Graph(small.store, small.features)).double(), batch, NodeClassification("node", "y"))


def links(mode: NegativeMode, decoder: DecoderKind = "mlp") -> Case:
    """Links of two edge types: a decoder of relations scores them together."""
    return Case(predictor(decoder), LinkBatches(mode).batch(), LinkPrediction())


def of_edges(make: Callable[[EdgeType, str], Task], labels: Tensor, outputs: int) -> Case:
    """Links of one edge type with labels."""
    batch = LinkBatches(None).batch()
    rows = replace(batch.links[BUYS], labels=labels)
    model = EdgePredictor.of(predictor("dot").encoder, [BUYS], WIDTH, outputs).double()
    return Case(model, replace(batch, sample=replace(batch.sample, links={BUYS: rows})), make(BUYS, "stars"))


def with_labels(task: Task, labels: Tensor, outputs: int) -> Case:
    """Numbers or several labels for each of the 17 seeds."""
    case = typed(lambda graph: SAGE.for_graph(graph, 8, 2, "item", embedding=5, outputs=outputs))
    return replace(case, batch=replace(case.batch, seed_columns={"item": {"y": labels}}), task=task)


def sparse() -> Case:
    """Rows of up to 4 of 20 words."""
    case, edge_type = plain(lambda _: nn.Identity()), ("node", "to", "node")
    nodes = case.batch.sample.nodes["node"].numel()
    counts, random = torch.arange(nodes) % 5, torch.Generator().manual_seed(0)
    entries = torch.arange(int(counts.sum())) % 20, torch.randn(int(counts.sum()), generator=random)
    words = packed(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), *entries, 4)
    sizes = ModelSizes({"node": 20}, (edge_type,), "node", 3, sparse=frozenset({"node"}))
    batch = replace(case.batch, columns={"node": {"x": words}})
    return Case(SAGE(sizes, 8, 2, encoder="linear").double(), batch, case.task)


def unknown(graph: Graph) -> nn.Module:
    """A model that drops half of the embeddings of a step."""
    return SAGE(ModelSizes.of(graph, "item", embedding=5, unknown=0.5), 8, 2)


CASES: dict[str, Callable[[], Case]] = {
    "sage": lambda: plain(lambda graph: SAGE.for_graph(graph, 8, 2, norm="layer", residual="add")),
    "sage, typed": lambda: typed(lambda graph: SAGE.for_graph(graph, 8, 2, embedding=5, encoder="linear")),
    "rgcn": lambda: typed(lambda graph: RGCN.for_graph(graph, 8, 2, embedding=5)),
    "rgcn, bases": lambda: typed(lambda graph: RGCN.for_graph(graph, 8, 2, embedding=5, bases=2)),
    "rgcn, columns": lambda: plain(lambda graph: RGCN.for_graph(graph, 8, 2, encoder="none")),
    "rgcn, many types": lambda: many_typed(lambda graph: RGCN.for_graph(graph, 8, 2)),
    "gcn": lambda: plain(lambda graph: GCN.for_graph(graph, 8, 2), SymmetricSum()),
    "gcn, typed": lambda: typed(lambda graph: GCN.for_graph(graph, 8, 2, embedding=5), SymmetricSum()),
    "gin": lambda: plain(lambda graph: GIN.for_graph(graph, 8, 2), Sum()),
    "gat": lambda: plain(lambda graph: GAT.for_graph(graph, 8, 2, heads=2)),
    "gat, typed": lambda: typed(lambda graph: GAT.for_graph(graph, 8, 2, heads=2, embedding=5)),
    "gatv2": lambda: typed(lambda graph: GAT.for_graph(graph, 8, 2, heads=2, embedding=5, attention="gatv2")),
    "hgt": lambda: typed(lambda graph: HGT.for_graph(graph, 8, 2, heads=2, embedding=5)),
    "light_gcn": lambda: plain(lambda graph: LightGCN.for_graph(graph, 8, 2), SymmetricSum()),
    "sequential": lambda: plain(lambda _: Sequential([Attention(7, 6), Attention(6, 3)])),
    "links, binary": lambda: links(NegativeMode.BINARY),
    "links, triplet": lambda: links(NegativeMode.TRIPLET),
    "links, distmult": lambda: links(NegativeMode.BINARY, "distmult"),
    "links, transe": lambda: links(NegativeMode.TRIPLET, "transe"),
    "unknown rows": lambda: typed(unknown),
    "sparse columns": sparse,
    "classes of edges": lambda: of_edges(EdgeClassification, torch.arange(16) % 4 - 1, 3),
    "numbers of edges": lambda: of_edges(EdgeRegression, torch.arange(32.0).double().view(16, 2).sin(), 2),
    "numbers of nodes": lambda: with_labels(
        NodeRegression("item", "y"), torch.arange(17.0).double().sin(), 1
    ),
    "several labels": lambda: with_labels(
        MultiLabelClassification("item", "y"), torch.arange(51).view(17, 3) % 2, 3
    ),
}
every_case = pytest.mark.parametrize("make", CASES.values(), ids=CASES)


def step(case: Case, batch: Batch, used: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """Losses, and the gradients of all parameters."""
    case.model.zero_grad()
    losses = case.task.losses(case.model(batch), batch)
    torch.autograd.backward((losses if used is None else losses * used).sum())
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in case.model.parameters()
    ]  # moving the model would move its own
    return losses.detach(), gradients


def assert_equal(
    found: tuple[Tensor, list[Tensor]], used: Tensor, expected: tuple[Tensor, list[Tensor]]
) -> None:
    torch.testing.assert_close(found[0][used], expected[0], rtol=0, atol=1e-12)
    assert any(bool(gradient.any()) for gradient in expected[1])
    for a, b in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.core(5)
@every_case
def test_padding_changes_neither_losses_nor_gradients(make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    case = make()
    expected = step(case, case.batch)
    used = in_use(case.batch)
    assert_equal(step(case, padded(case.batch), used.double()), used, expected)


@pytest.mark.core(1)
@every_case
def test_a_step_by_the_kernels_of_devices_is_that_of_the_cpu_and_reads_nothing(
    make: Callable[[], Case],
) -> None:
    torch.manual_seed(0)
    case = make()
    expected = step(case, case.batch)
    longer, used = padded(case.batch, spare_edges=SPARE).to(DEVICE), in_use(case.batch)
    case.model.to(DEVICE)
    with by_triton(), counting() as found:
        made = step(case, longer, used.double().to(DEVICE))
    made = made[0].cpu(), [gradient.cpu() for gradient in made[1]]
    assert found == {}
    assert_equal(made, used, expected)


def test_a_layer_that_reads_the_ends_of_edges_is_refused_before_it_computes() -> None:
    case = plain(lambda _: Sequential([Convolution(7, 6), Convolution(6, 3)]))
    step(case, case.batch)
    longer = padded(case.batch, spare_edges=SPARE).to(DEVICE)
    with pytest.raises(
        RuntimeError, match='edge_index: a static shape has unused edges; set launches="single"'
    ):
        case.model.to(DEVICE)(longer)


@pytest.mark.long
def test_dropout_by_a_key_reads_nothing() -> None:
    case = plain(lambda graph: SAGE.for_graph(graph, 8, 2, dropout=0.5))
    case.model.to(DEVICE)
    batch, outputs = case.batch.to(DEVICE), []
    for key in (torch.tensor([number], device=DEVICE) for number in (1, 1, 2)):
        with by_triton(), dropout_key(key), counting() as found:
            outputs.append(step(case, batch)[0])
        assert found == {}
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_a_seed_without_a_valid_label_has_a_loss_that_is_not_a_number() -> None:
    case = plain(lambda graph: SAGE.for_graph(graph, 8, 2))
    case.batch.seed_column("y")[[2, 5]] = torch.tensor([-1, 99])
    case.model.to(DEVICE)
    batch = case.batch.to(DEVICE)
    with by_triton(), counting() as found:
        losses = case.task.losses(case.model(batch), batch)
    assert found == {}
    assert losses.isnan().nonzero().flatten().tolist() == [2, 5]


def test_products_add_up_in_the_dtype_that_autocast_chooses() -> None:
    case = plain(lambda graph: SAGE.for_graph(graph, 8, 2))
    case.model.float()
    for column in case.batch.columns.values():
        column["x"] = column["x"].float()  # type: ignore[index]
    expected = step(case, case.batch)[0]
    case.model.to(DEVICE)
    with by_triton(), torch.autocast(DEVICE.type, torch.bfloat16):
        found = step(case, case.batch.to(DEVICE))[0]
    torch.testing.assert_close(found.cpu().float(), expected.float(), rtol=0, atol=0.1)
