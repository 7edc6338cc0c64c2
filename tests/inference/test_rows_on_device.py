"""Layers over rows on a device give the rows of the CPU, with the host as the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn
from torch_geometric.nn import GATConv

import khop
from khop.batch import Adjacency
from khop.graph.rule import Rule
from khop.graph.store import CscGraph
from khop.inference import rows_on_device
from khop.inference.node_outputs import ExactDraws, Layers
from khop.inference.rows_on_device import DeviceChunks
from khop.inference.stages import ChunkLimits
from khop.kernels.choice import Engine, forcing
from khop.loading.device.device_memory import MachineRanks
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.placed_stores import Conditions, placed_stores
from khop.models.stack import Layered, Sequential
from support import triton_interpreter
from support.host_as_device import HostAsDevice
from support.machine_threads import Threads

Model = Callable[[khop.Graph], nn.Module]
COUNTS = {"user": 23, "item": 31, "tag": 5}
EDGES = {"user buys item": 90, "item bought_by user": 90, "user knows user": 60, "tag on item": 40}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    random = torch.Generator().manual_seed(3)
    nodes = {
        t: khop.NodeTable(columns={"x": torch.randn(count, 4, generator=random, dtype=torch.float64)})
        for t, count in COUNTS.items()
    }
    nodes["tag"] = khop.NodeTable(COUNTS["tag"])
    edges = {}
    for name, count in EDGES.items():
        source, _, destination = name.split()
        sources, destinations = (
            torch.randint(COUNTS[t], (count,), generator=random) for t in (source, destination)
        )
        edges[name] = khop.EdgeTable(sources, destinations, {"w": torch.rand(count, generator=random)})
    return khop.open_graph(khop.write_graph(tmp_path_factory.mktemp("typed") / "g", nodes, edges))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    random = torch.Generator().manual_seed(4)
    nodes = {"node": khop.NodeTable(columns={"x": torch.randn(37, 4, generator=random, dtype=torch.float64)})}
    ends = torch.randint(37, (2, 150), generator=random)
    edges = {"node to node": khop.EdgeTable(ends[0], ends[1], {"w": torch.rand(150, generator=random)})}
    return khop.open_graph(khop.write_graph(tmp_path_factory.mktemp("plain") / "g", nodes, edges))


def placed(graph: khop.Graph, columns: str = "device") -> khop.Graph:
    """The graph with copies of its stores in what stands for the memory of a device."""
    request = DevicePlacement.of("cuda", "device", columns)
    assert isinstance(graph.topology, CscGraph)
    stores = placed_stores(graph.topology, graph.columns, request, HostAsDevice(), Conditions(is_mapped=True))
    return replace(graph, stores=stores)


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch, limits: ChunkLimits) -> Iterator[list[str]]:
    """Collect the node types of chunks that are made on the device; chunks have these limits."""
    made: list[str] = []
    given = DeviceChunks.made

    def counted(self: DeviceChunks, node_type: str, *rest: object) -> object:
        made.append(node_type)
        return given(self, node_type, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(rows_on_device, "LEAST", limits)
        patched.setattr(DeviceChunks, "made", counted)
        yield made


def of(name: str, **options: object) -> Model:
    return lambda graph: getattr(khop.models, name).for_graph(
        graph, hidden=8, layers=2, outputs=3, **{"target": "node", **options}
    )


class Attention(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.layer = GATConv(width, out, add_self_loops=False)

    def forward(self, x: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
        out: torch.Tensor = self.layer((x, x[: adjacency.num_dst]), adjacency.edge_index)
        return out


def of_pyg(graph: khop.Graph) -> nn.Module:
    return Sequential([Attention(4, 8), Attention(8, 3)])


PLAIN: dict[str, Model] = {
    **{name.lower(): of(name) for name in ("SAGE", "GCN", "GIN", "GAT", "LightGCN")},
    "convolutions of torch_geometric": of_pyg,
}  # fmt: skip
TYPED: dict[str, Model] = {
    "sage": of("SAGE", target="item", embedding=4), "rgcn": of("RGCN", target="item", embedding=4),
    "hgt": of("HGT", target="item", heads=2, embedding=4), "gat": of("GAT", target="item", embedding=4),
}  # fmt: skip
SMALL = ChunkLimits(5, 23)


def compared(
    graph: khop.Graph,
    made: Model,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    rule: Rule | None = None,
    engine: Engine = Engine.NATIVE,
) -> None:
    model = made(graph).double()
    assert isinstance(model, Layered)

    def rows(graph: khop.Graph) -> torch.Tensor:
        place = (model, graph, graph.features, target)
        return khop.layerwise_inference(*place, nodes=[3, 1, 8, 2], rule=rule, chunk_size=4, chunk_edges=8)

    wanted, on_device = rows(graph), placed(graph)
    with counting(monkeypatch, SMALL) as chunks, forcing(engine):
        found = rows(on_device)
    assert len(chunks) > model.num_layers
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.core(1)
@pytest.mark.parametrize("made", PLAIN.values(), ids=PLAIN)
def test_rows_of_one_type(plain: khop.Graph, made: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    compared(plain, made, monkeypatch, "node")


@pytest.mark.core(1)
@pytest.mark.parametrize("made", TYPED.values(), ids=TYPED)
def test_rows_of_several_types(typed: khop.Graph, made: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    compared(typed, made, monkeypatch, "item")


@pytest.mark.parametrize("rule", [khop.Weighted("w"), khop.Sum(), khop.SymmetricSum()], ids=str)
def test_neighbors_are_weighed_by_the_rule(
    plain: khop.Graph, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(plain, of("SAGE"), monkeypatch, "node", rule)


def test_files_have_the_rows(typed: khop.Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = of("SAGE", target=["item", "user"], embedding=4)(typed).double()
    types = ["item", "user"]
    wanted = khop.infer(model, typed, tmp_path / "cpu.npy", node_types=types)
    with counting(monkeypatch, SMALL) as chunks:
        found = khop.infer(model, placed(typed), tmp_path / "device.npy", node_types=types)
    assert len(chunks) > 4
    for node_type, file in wanted.items():
        np.testing.assert_allclose(np.load(found[node_type]), np.load(file), rtol=1e-12, atol=1e-12)


def test_columns_on_the_host_leave_the_chunks_there(
    plain: khop.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, model = placed(plain, "host"), of("SAGE")(plain).double()
    with counting(monkeypatch, SMALL) as chunks:
        khop.layerwise_inference(model, graph, graph.features, "node")
    assert chunks == []


def test_a_full_device_leaves_the_chunks_to_the_host(
    plain: khop.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, model = placed(plain), of("SAGE")(plain).double()
    monkeypatch.setattr(rows_on_device, "_free_bytes", lambda device: 37 * 8 * 8)
    wanted = khop.layerwise_inference(model, plain, plain.features, "node")
    with counting(monkeypatch, SMALL) as chunks:
        found = khop.layerwise_inference(model, graph, graph.features, "node")
    assert chunks == []
    assert torch.equal(found, wanted)


@pytest.mark.long
def test_kernels_of_a_device_give_the_rows(typed: khop.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    triton_interpreter.correct()
    compared(typed, of("SAGE", target="item", embedding=4), monkeypatch, "item", engine=Engine.TRITON)


@pytest.mark.parametrize("rule", [khop.Uniform(), khop.Weighted("w")], ids=str)
def test_ranks_that_divide_the_edges_have_the_rows_also_if_one_has_no_chunk(
    plain: khop.Graph, rule: Rule
) -> None:
    """Rank 1 computes no chunk, but takes part where arrays of the rule are divided."""
    model = of("SAGE")(plain).double()

    def rows(graph: khop.Graph) -> torch.Tensor:
        return khop.layerwise_inference(model, graph, graph.features, "node", rule=rule)

    def of_rank(machine: MachineRanks) -> torch.Tensor | Layers:
        assert isinstance(plain.topology, CscGraph)
        request, conditions = DevicePlacement.of("cuda", "sharded", "sharded"), Conditions(is_mapped=True)
        stores = placed_stores(plain.topology, plain.columns, request, HostAsDevice(), conditions, machine)
        graph = replace(plain, stores=stores)
        if machine.rank == 0:
            return rows(graph)
        wanted = {"node": torch.arange(37)}
        return Layers.of(model, graph, graph.features, wanted, SMALL, draws=ExactDraws(rule))

    wanted = rows(plain)
    with forcing(Engine.TORCH):
        found, layers = Threads(2).run(of_rank)
    assert isinstance(found, torch.Tensor), found
    assert isinstance(layers, Layers), layers
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_sparse_rows_stay_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take the memory of dense ones."""

    class Means(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = nn.Linear(90, 3)

        def forward(self, x: torch.Tensor, adjacency: Adjacency) -> torch.Tensor:
            out: torch.Tensor = self.product(x)[: adjacency.num_dst]
            return out

    words = khop.SparseColumn.of(sparse.eye_array(12, 90, format="csr"))
    edges = {"node to node": khop.EdgeTable(torch.arange(12), torch.arange(12).flip(0))}
    path = khop.write_graph(tmp_path / "g", {"node": khop.NodeTable(columns={"x": words})}, edges)
    graph, model = khop.open_graph(path), Sequential([Means()], sparse_width=90)
    with counting(monkeypatch, SMALL) as chunks:
        found = khop.layerwise_inference(model, placed(graph), graph.features, "node")
    assert chunks == []
    assert torch.equal(found, khop.layerwise_inference(model, graph, graph.features, "node"))


def test_more_nodes_than_local_ids_stay_on_the_host(
    plain: khop.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, model = placed(plain), of("SAGE")(plain).double()
    monkeypatch.setattr(rows_on_device, "MOST_ROWS", 37)
    with counting(monkeypatch, SMALL) as chunks:
        khop.layerwise_inference(model, graph, graph.features, "node")
    assert chunks == []
