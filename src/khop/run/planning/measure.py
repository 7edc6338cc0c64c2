"""Measurement of the costs on this machine; it takes a few seconds, 1 GB and two processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch.nn import functional

from khop.api.launch import launch
from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.batch import Batch
from khop.distributed.exchange.peers import Message, open_peers
from khop.distributed.processes.group import this_group
from khop.graph.features.table import FeatureTable
from khop.graph.needs import Columns
from khop.graph.store import CscGraph
from khop.kernels.csc import Csc
from khop.kernels.gather import RowFile, read_file_rows
from khop.models.sage import SAGE
from khop.run.planning.prediction import MEASURED_EDGES, Constants, training_flop
from khop.sampling.sampler import NeighborSampler
from khop.schema import ColumnSpec, Schema
from khop.training.settings import TrainerSettings
from khop.training.step_clock import Unwatched
from khop.training.steps import seeded
from khop.training.tasks import NodeClassification
from khop.training.trainer import Trainer

_DEGREE, _WIDTH, _HIDDEN, _CLASSES = 20, 100, 256, 47
_FANOUTS, _SEEDS = [15, 10, 5], 1024
_BATCHES, _STEPS, _WARM_UP = 12, 6, 2
_MESSAGE_BYTES, _MESSAGES = 32 << 20, 6
_EMPTY_MESSAGES, _SMALL_STEPS, _TINY = 100, 24, 1000
_PAGE, _PAGES_READ, _DISK_BYTES = 4096, 1 << 14, 1 << 28
_NODE, _TO = "node", ("node", "to", "node")


def measured(nodes: int = MEASURED_EDGES // _DEGREE, disk_bytes: int = _DISK_BYTES) -> Constants:
    """Measure the costs on this machine, with a graph of `nodes` nodes and a file of `disk_bytes`."""
    graph = _graph(nodes)
    sampling, gathering = [], []
    for batch in islice(_loader(graph, _SEEDS).epoch(0), _BATCHES):
        edges = sum(a.indices.numel() for block in batch.blocks for a in block.adjacencies.values())
        seconds = {span.stage: span.seconds for span in batch.spans}
        sampling.append(seconds["sampling"] / edges)
        gathering.append(batch.columns[_NODE]["x"].nbytes / seconds["gathering"])
    rates, (reads_per_s, bytes_per_s) = _together(), _disk(disk_bytes)
    return Constants(
        sample_ns=median(sampling[_WARM_UP:]) * 1e9,
        gather_bytes_per_s=median(gathering[_WARM_UP:]),
        train_flop_per_s=_training(graph, batch),
        exchange_bytes_per_s=rates["bytes_per_s"],
        step_s=rates["step_s"],
        exchange_s=rates["exchange_s"],
        disk_reads_per_s=reads_per_s,
        disk_bytes_per_s=bytes_per_s,
    )


def _disk(num_bytes: int) -> tuple[float, float]:
    """Measure random reads and bytes per second, on a file in the temporary folder."""
    with TemporaryDirectory() as place:
        path, pages = Path(place, "pages"), num_bytes // _PAGE
        with path.open("wb") as file:
            for _ in range(pages):
                file.write(os.urandom(_PAGE))
            file.flush()
            os.fsync(file.fileno())
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begun = time.perf_counter()
            while file.read(1 << 20):
                pass
            bytes_per_s = pages * _PAGE / (time.perf_counter() - begun)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        rows = RowFile.open(path, 0, pages, (_PAGE,), torch.uint8)
        ids = torch.randperm(pages, generator=torch.Generator().manual_seed(0))[:_PAGES_READ].sort().values
        begun = time.perf_counter()
        read_file_rows(rows, ids)
        return ids.numel() / (time.perf_counter() - begun), bytes_per_s


def _graph(nodes: int) -> Graph:
    """Make a graph with the same number of random in-neighbors for every node."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(nodes, (nodes * _DEGREE,), generator=generator, dtype=torch.int32)
    labels = torch.randint(_CLASSES, (nodes,), generator=generator)
    columns: Columns = {_NODE: {"x": torch.randn(nodes, _WIDTH, generator=generator), "y": labels}}
    specs = {"x": ColumnSpec("float32", (_WIDTH,)), "y": ColumnSpec("int64", (), _CLASSES)}
    schema = Schema((_NODE,), (_TO,), columns={_NODE: specs})
    edges = {_TO: Csc(torch.arange(nodes + 1) * _DEGREE, indices)}
    topology = CscGraph(schema, {_NODE: nodes}, edges, columns=columns)
    return Graph(topology, FeatureTable(columns))


def _loader(graph: Graph, seeds: int) -> Loader:
    """Make a loader with one thread, of one batch at a time."""
    sampler = NeighborSampler(graph, _FANOUTS)
    return Loader(
        sampler, "all", seeds, shuffle=True, columns=["x"], seed_columns=["y"], threads=1, prefetch=1
    )


def _training(graph: Graph, batch: Batch) -> float:
    """Measure the operations per second of one core, over complete training steps on a ready batch."""
    model = _model(graph)
    optimizer = torch.optim.Adam(model.parameters())
    seconds = []
    for _ in range(_STEPS):
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch), batch.seed_column("y"))
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    rows = [float(block.adjacencies[_TO].num_dst) for block in batch.blocks]
    work = training_flop([_WIDTH, _HIDDEN, _HIDDEN, _CLASSES], rows)
    return work / median(seconds[_WARM_UP:]) / torch.get_num_threads()


def _model(graph: Graph) -> SAGE:
    return seeded(0, lambda: SAGE.for_graph(graph, hidden=_HIDDEN, layers=len(_FANOUTS)))


def _together() -> dict[str, float]:
    """Measure the exchange and the joint training of two processes on this machine."""
    with TemporaryDirectory() as place:
        launch(together, procs=2, arguments=(place,), device="cpu")
        found: dict[str, float] = json.loads(Path(place, "rates.json").read_text())
        return found


def together(rank: int, device: torch.device, place: str) -> None:
    """Run the measurement in one of the two processes."""
    torch.set_num_threads(1)
    peers = open_peers(this_group())

    def exchange(size: int) -> None:
        peers.exchange([torch.zeros(size, dtype=torch.uint8)] * 2, Message("measuring", "row"), size)

    nothing = _own_seconds(lambda: exchange(8), _EMPTY_MESSAGES)
    seconds = _own_seconds(lambda: exchange(_MESSAGE_BYTES), _MESSAGES) - nothing
    found = {
        "bytes_per_s": 2 * _MESSAGE_BYTES / seconds,
        "exchange_s": nothing / 2,  # an exchange is two collectives
        "step_s": _smallest_step(Path(place)),
    }
    if rank == 0:
        Path(place, "rates.json").write_text(json.dumps(found))


def _own_seconds(function: Callable[[], None], count: int) -> float:
    """Measure the CPU time of this process for one call, in seconds."""
    function()
    begun = time.process_time()
    for _ in range(count):
        function()
    return (time.process_time() - begun) / count


def _smallest_step(place: Path) -> float:
    """Measure the CPU time of this process for a step with one seed per rank on a tiny graph.

    The time includes making the batch.
    """
    graph, observer = _graph(_TINY), _Stepping()
    loader = _loader(graph, 2)
    settings = TrainerSettings(epochs=1)
    task = NodeClassification(_NODE, "y")
    trainer = Trainer(_model(graph), task, loader, lambda: {"val": 0.0}, settings, place / "run", observer)
    trainer.rehearse(_SMALL_STEPS)
    return median(after - before for before, after in pairwise(observer.at[_WARM_UP:]))


class _Stepping(Unwatched):
    """An observer that records the CPU time of this process after each step."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        """See Observer."""
        self.at.append(time.process_time())
