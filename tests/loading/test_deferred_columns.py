"""Columns that the model gathers give the losses and gradients of columns that are gathered ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import khop
from khop.graph.features.table import FeatureTable
from khop.kernels.lazy_rows import RowsById
from khop.loading.columns import ColumnChoice, DeferredColumns
from khop.loading.device.batch_slot import BatchSlot, StepInput
from khop.models.stack import Sequential
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_sampler import measured_capacities
from support.knowledge import BACK, FACT, RELATIONS, Triples, as_column, as_types
from support.recorders import recorder
from support.small_graphs import one_type, shop
from support.triton_rows import DEVICE
from support.triton_segments import by_triton

SMALL = one_type()


def loader(
    graph: khop.Graph, gather: str, rule: khop.Uniform | khop.SymmetricSum, **more: object
) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, [3, 2], rule=rule)
    seeds = torch.arange(20)
    return khop.Loader(sampler, seeds, 8, columns=["x"], gather=gather, **more)  # type: ignore[arg-type]


class Rows(nn.Module):
    """A layer of one's own, for which a batch has ordinary rows."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, adjacency: khop.batch.Adjacency) -> Tensor:
        mean = torch.stack(
            [
                x[adjacency.edge_index[0][adjacency.edge_index[1] == i]].sum(0)
                for i in range(adjacency.num_dst)
            ]
        )
        out: Tensor = self.linear(x[: adjacency.num_dst] + mean)
        return out


def made(kind: str, graph: khop.Graph) -> nn.Module:
    torch.manual_seed(0)
    if kind == "sage":
        return khop.models.SAGE.for_graph(graph, 8, 2, residual="add")
    if kind == "gcn":
        return khop.models.GCN.for_graph(graph, 8, 2)
    if kind == "gat":
        return khop.models.GAT.for_graph(graph, 8, 2)
    if kind.startswith("rgcn"):
        encoder: Literal["none", "linear"] = "linear" if kind == "rgcn" else "none"
        return khop.models.RGCN.for_graph(graph, 8, 2, encoder=encoder)
    return Sequential([Rows(7, 8), Rows(8, 3)])


def steps(kind: str, gather: str) -> list[Tensor]:
    """Outputs and gradients of an epoch."""
    graph = khop.Graph(SMALL.store, SMALL.features)
    model, found = made(kind, graph), list[Tensor]()
    rule = khop.SymmetricSum() if kind == "gcn" else khop.Uniform()
    for batch in loader(graph, gather, rule):
        assert (type(batch["x"]) is RowsById) is (gather == "deferred")
        model.zero_grad()
        out = model(batch)
        out.sum().backward()
        found += [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return found


@pytest.mark.core(2)
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "rgcn", "rgcn of columns", "own"])
def test_steps_have_the_same_bits(kind: str) -> None:
    ahead, deferred = steps(kind, "ahead"), steps(kind, "deferred")
    assert len(ahead) > 3
    for a, b in zip(ahead, deferred, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("kind", "is_fused"), [("sage", True), ("rgcn of columns", True), ("rgcn", False)])
def test_fused_layers_gather_the_rows_of_destinations_alone(kind: str, is_fused: bool) -> None:
    graph = khop.Graph(SMALL.store, SMALL.features)
    batch = loader(graph, "deferred", khop.Uniform()).batch(0, 0)
    made(kind, graph)(batch)
    rows = batch["x"]
    assert isinstance(rows, RowsById)
    assert (rows._gathered is None) is is_fused


@pytest.mark.parametrize("bases", [0, 3])
@pytest.mark.parametrize("relations_of", ["column", "types"])
def test_relations_are_summed_in_the_table(
    tmp_path: Path, bases: int, relations_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a column of edges and as joined edge types, with mixtures of bases and with a matrix each."""
    monkeypatch.setattr("khop.models.rgcn.MANY_TYPES", 1)
    write, is_column = (as_column, True) if relations_of == "column" else (as_types, False)
    graph = write(tmp_path / "facts", Triples.drawn())
    columns = {"entity": ["x"], **({FACT: ["r"], BACK: ["r"]} if is_column else {})}
    relations = khop.models.RelationColumn("r", {FACT: RELATIONS, BACK: RELATIONS}) if is_column else None
    torch.manual_seed(0)
    sizes = khop.models.ModelSizes.of(graph, ["entity"], outputs=5)
    model = khop.models.RGCN(sizes, 8, 2, bases=bases, relations=relations, encoder="none")
    sampler, found = khop.NeighborSampler(graph, [3, 2], edge_ids=is_column), []
    for gather in ("ahead", "deferred"):
        given = khop.Loader(sampler, torch.arange(20), 20, columns=columns, gather=gather)  # type: ignore[arg-type]
        batch = given.batch(0, 0)
        model.zero_grad()
        out = model(batch)["entity"]
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    rows = batch.columns["entity"]["x"]
    assert isinstance(rows, RowsById)
    assert rows._gathered is None
    assert len(found[0]) == 1 + len(list(model.parameters()))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_narrow_columns_and_columns_on_disk_are_gathered_ahead(tmp_path: Path) -> None:
    columns = {"x": torch.randn(30, 4), "half": torch.randn(30, 4).half(), "y": torch.arange(30)}
    edges = {("node", "to", "node"): khop.EdgeTable(torch.arange(30), torch.arange(30).roll(1))}
    khop.write_graph(tmp_path / "graph", {"node": khop.NodeTable(columns=columns)}, edges)
    graph = khop.open_graph(tmp_path / "graph")
    names = ["x", "half", "y"]
    sampler = khop.NeighborSampler(graph, [2])
    batch = khop.Loader(sampler, "all", 8, columns=names, seed_columns=["x"], gather="deferred").batch(0, 0)
    assert [type(batch[name]) is RowsById for name in names] == [True, False, False]
    assert type(batch.seed_column("x")) is Tensor
    on_disk = khop.NeighborSampler(graph.on("cpu", columns="disk"), [2])
    gathered = khop.Loader(on_disk, "all", 8, columns=["x"], gather="deferred").batch(0, 0)["x"]
    assert type(gathered) is Tensor
    assert torch.equal(gathered, batch["x"] + 0)


def test_types_are_deferred_each_by_itself() -> None:
    small = shop()
    graph = khop.Graph(small.store, small.features)
    seeds = {"item": torch.arange(5)}
    sampler = khop.NeighborSampler(graph, [2, 2])
    ahead, deferred = (
        khop.Loader(sampler, seeds, 5, columns=["x"], gather=gather).batch(0, 0)
        for gather in ("ahead", "deferred")
    )
    assert ahead.columns.keys() == deferred.columns.keys()
    for node_type, columns in ahead.columns.items():
        assert torch.equal(deferred.columns[node_type]["x"] + 0, columns["x"])


def test_an_unknown_time_is_named() -> None:
    with pytest.raises(ValueError, match="gather 'later': must be one of 'ahead', 'deferred'"):
        loader(khop.Graph(SMALL.store, SMALL.features), "later", khop.Uniform())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sage", "rgcn of columns"])
def test_a_batch_of_static_shape_reads_the_table_on_the_device(kind: str) -> None:
    """Also one that has no place, which is made with its own shapes."""
    sampler = khop.NeighborSampler(SMALL.store, [3, 2])
    ids = [torch.randint(60, (6,), generator=torch.Generator().manual_seed(n)) for n in range(3)]
    given = [
        StepInput(khop.Seeds({"node": of}, {"node": torch.arange(6)}), khop.DrawKey(n), 1 / 6)
        for n, of in enumerate(ids)
    ]
    plan = BatchPlan(sampler, measured_capacities(sampler, [(g.seeds, g.key) for g in given]), DEVICE)
    table = SMALL.features.columns["node"]["x"].to(DEVICE)
    model = made(kind, khop.Graph(SMALL.store, SMALL.features)).to(DEVICE)
    with by_triton():
        deferred = DeferredColumns({"node": {"x": table}})
        slot = BatchSlot(plan, FeatureTable({}), ColumnChoice(), recorder(), deferred=deferred)
        for one in given[1:]:
            slot.make(one)
            exact = slot.exact(one)
            assert torch.equal(exact["x"] + 0, table[exact.input_nodes])
            assert isinstance(slot.batch["x"], RowsById)
            count = exact.input_nodes.numel()
            assert torch.equal(slot.batch["x"][:count], exact["x"] + 0)
            assert torch.equal(model(slot.batch)[:6], model(exact)[:6])
