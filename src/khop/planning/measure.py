"""Measuring what work costs on this machine: some seconds, a gigabyte, two processes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import distributed
from torch.nn import functional

from khop.batch import Batch
from khop.features.table import FeatureTable
from khop.graph.csc_graph import Columns, CscGraph
from khop.kernels.csc import Csc
from khop.launching import launch
from khop.loading.columns import ColumnChoice
from khop.loading.loader import BatchMaker
from khop.models.sage import SAGE
from khop.planning.constants import MEASURED_EDGES, Constants
from khop.planning.prediction import training_flop
from khop.sampling.neighbor import NeighborSampler
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.schema import ColumnSpec, Schema
from khop.training.initial import seeded

_DEGREE, _WIDTH, _HIDDEN, _CLASSES = 20, 100, 256, 47
_FANOUTS, _SEEDS = [15, 10, 5], 1024
_BATCHES, _STEPS, _WARM_UP = 12, 6, 2
_MESSAGE_BYTES, _MESSAGES = 32 << 20, 6
_NODE, _TO = "node", ("node", "to", "node")


def measured(nodes: int = MEASURED_EDGES // _DEGREE) -> Constants:
    """What work costs on this machine, of a graph of so many nodes."""
    graph = _graph(nodes)
    maker = _maker(graph)
    sampling, gathering = [], []
    for step in range(_BATCHES):
        batch = maker.batch(0, step)  # one at a time, as in a loader that reuses their memory
        edges = sum(a.indices.numel() for block in batch.blocks for a in block.adjacencies.values())
        sampling.append(batch.seconds["sampling"] / edges)
        gathering.append(batch.columns[_NODE]["x"].nbytes / batch.seconds["gathering"])
    return Constants(
        sample_ns=median(sampling[_WARM_UP:]) * 1e9,
        gather_bytes_per_s=median(gathering[_WARM_UP:]),
        train_flop_per_s=_training(graph, batch),
        exchange_bytes_per_s=_exchanging(),
    )


def _graph(nodes: int) -> CscGraph:
    """A graph in which every node hears from as many others, of no order."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(nodes, (nodes * _DEGREE,), generator=generator, dtype=torch.int32)
    labels = torch.randint(_CLASSES, (nodes,), generator=generator)
    columns: Columns = {_NODE: {"x": torch.randn(nodes, _WIDTH, generator=generator), "y": labels}}
    specs = {"x": ColumnSpec("float32", (_WIDTH,)), "y": ColumnSpec("int64", (), _CLASSES)}
    schema = Schema((_NODE,), (_TO,), columns={_NODE: specs})
    edges = {_TO: Csc(torch.arange(nodes + 1) * _DEGREE, indices)}
    return CscGraph(schema, {_NODE: nodes}, edges, columns=columns)


def _maker(graph: CscGraph) -> BatchMaker:
    """Batches of it, of a sampler with one thread."""
    order = SeedOrder(NodeSeeds({_NODE: torch.arange(graph.num_nodes(_NODE))}), _SEEDS, shuffle=True)
    choice = ColumnChoice.of(graph.schema, ["x"], ["y"], [_NODE])
    sampler = NeighborSampler(graph, _FANOUTS)
    return BatchMaker(order, sampler, FeatureTable(graph.columns), choice, torch.device("cpu"))


def _training(graph: CscGraph, batch: Batch) -> float:
    """Operations a second of one core, of whole steps on a batch that is there."""
    model = seeded(0, lambda: SAGE.for_graph(graph, hidden=_HIDDEN, layers=len(_FANOUTS)))
    optimizer = torch.optim.Adam(model.parameters())
    seconds = []
    for _ in range(_STEPS):
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch), batch.seed_column("y"))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    rows = [float(block.adjacencies[_TO].num_dst) for block in batch.blocks]
    work = training_flop([_WIDTH, _HIDDEN, _HIDDEN, _CLASSES], rows)
    return work / median(seconds[_WARM_UP:]) / torch.get_num_threads()


def _exchanging() -> float:
    """Bytes that a core sends and receives in a second, between two processes."""
    with TemporaryDirectory() as place:
        file = Path(place) / "rate"
        launch(exchange, procs=2, arguments=(str(file),), device="cpu")
        return float(json.loads(file.read_text()))


def exchange(rank: int, device: torch.device, file: str) -> None:
    """What each of the two processes does."""
    sent = torch.zeros(2 * _MESSAGE_BYTES, dtype=torch.uint8, device=device)
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent)
    begun = time.process_time()
    for _ in range(_MESSAGES):
        distributed.all_to_all_single(received, sent)
    rate = 2 * _MESSAGE_BYTES * _MESSAGES / (time.process_time() - begun)
    if rank == 0:
        Path(file).write_text(json.dumps(rate))
