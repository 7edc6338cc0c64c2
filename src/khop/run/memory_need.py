"""Memory that a run needs on a CPU, and the prefetch depth that fits in the free memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import torch
from torch import nn

from khop.api.loader import Loader, drawn_size
from khop.api.open_graph import Graph
from khop.batch import Sample
from khop.components import LINK_PREDICTION
from khop.distributed.processes.group import Group
from khop.graph.atomic import in_bytes
from khop.kernels.memory import free_memory_bytes, own_memory_bytes
from khop.run.read import RawRun
from khop.run.run_type import component_of
from khop.run.values import RunConfig
from khop.sampling.sampler import fanouts_by_type
from khop.schema import EdgeType, NodeType

_FLOAT = 4
_UPDATED = 3  # values per parameter, in addition to itself: its gradient and Adam's two moments
_LATER_BYTES = (
    64 << 20
)  # allocated later by the process: libraries and threads that start with the first step, I/O buffers
_BATCHES = 3  # batches drawn for an estimate
_MARGIN = 1.05  # over the largest of these batches
_EDGE_BYTES, _NODE_BYTES = 8, 16  # of a drawn edge, and of a node of a chunk, without columns
_EDGE_NUMBERS = 16  # per edge of a layer with attention: scores and coefficients of the heads, with gradients
_ROWS_AT_ONCE = 1 << 20
_FILLED = 0.8  # share of free memory that a proposed setting fills: smaller batches share fewer nodes


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of a rank on the CPU, in bytes; 0 for parts that the work does not have.

    Mapped files are not counted, because the system can evict them.
    """

    process: int  # interpreter, torch and the model
    updates: int  # gradients and the optimizer's moments
    batch: int  # the largest of some drawn batches, with its rows
    step: int  # activations of a step and their gradients
    layers: int  # outputs of layers for all nodes, in exact evaluation
    chunk: int  # the largest batch of evaluation
    chunk_step: int  # activations of a chunk
    ahead: int  # 1 if batches of training are in memory during an evaluation, else 0
    readers: int  # threads that read rows from disk, each into a copy of a batch; 0: rows are mapped

    def batches(self, prefetch: int) -> int:
        """Return the most batches in memory: `prefetch` ahead, the one in use, and copies of `readers`."""
        return prefetch + 1 + min(prefetch, self.readers)

    def training(self, prefetch: int) -> int:
        """Return the memory of a step."""
        return self.process + self.updates + self.batches(prefetch) * self.batch + self.step

    def evaluation(self, prefetch: int) -> int:
        """Return the memory of an evaluation."""
        chunks = self.batches(prefetch) * self.chunk + self.chunk_step
        return self.process + self.updates + self.layers + chunks + self._waiting(prefetch)

    def total(self, prefetch: int) -> int:
        """Return the peak memory if freed memory is returned to the system."""
        return max(self.training(prefetch), self.evaluation(prefetch))

    def kept(self, prefetch: int) -> int:
        """Return the peak memory if the process keeps memory freed by training during evaluation."""
        counted_twice = self.process + self.updates + self._waiting(prefetch)
        return self.training(prefetch) + self.evaluation(prefetch) - counted_twice

    def _waiting(self, prefetch: int) -> int:
        """Return the memory of batches of training during an evaluation."""
        return self.ahead * self.batches(prefetch) * self.batch


@dataclass(frozen=True)
class MemoryFit:
    """How a run fits in free memory."""

    prefetch: int
    line: str | None = None  # None: the run fits unchanged


def memory_need(config: RunConfig, graph: Graph, loader: Loader | None, model: nn.Module) -> MemoryNeed:
    """Estimate the memory of a rank from some batches, drawn without their rows, and from degrees.

    Without a loader, the rank does not train.
    """
    steps = 0 if loader is None else min(_BATCHES, len(loader))
    drawn = [drawn_size(loader, 0, step) for step in range(steps) if loader is not None]
    batch = max((size + rows for _, size, rows in drawn), default=0)
    step = max((_step_bytes(config, graph, sample, rows) for sample, _, rows in drawn), default=0)
    updated = [] if loader is None else [p for p in model.parameters() if p.requires_grad]
    trained = sum(p.numel() * p.element_size() for p in updated)
    return MemoryNeed(
        own_memory_bytes() + _LATER_BYTES,
        _UPDATED * trained,
        int(_MARGIN * batch),
        int(_MARGIN * step),
        *_evaluation_bytes(config, graph),
        int(config.evaluation.every < 1 or config.evaluation.every_steps > 0),
        config.threads if _is_on_disk(config, graph) else 0,
    )


def fit_memory(
    config: RunConfig, need: MemoryNeed, group: Group, raw: RawRun, room: int | None = None
) -> MemoryFit:
    """Return the prefetch that fits in the free memory; the same on all ranks. Collective.

    `room` is the total memory that the process may use, in bytes (default: its current memory plus its share
    of the free memory). Raises ValueError if not even one prefetched batch fits.
    """
    room = own_memory_bytes() + free_memory_bytes() // group.local_world_size if room is None else room
    found = group.gather(torch.tensor([*astuple(need), -room]))
    *most, room = found.amax(0).tolist()
    need, room = MemoryNeed(*most), -room
    by_bytes = config.prefetch_bytes // max(1, min(need.batch or need.chunk, need.chunk)) + config.threads
    wanted = min(config.prefetch, by_bytes)
    if need.kept(wanted) <= room:
        return MemoryFit(config.prefetch)
    fitting = [count for count in range(1, wanted + 1) if need.total(count) <= room]
    if not fitting:
        raise ValueError(_too_little(config, need, room, raw))
    count = fitting[-1]
    words = f"of {in_bytes(room)} of free memory, the run needs {in_bytes(need.total(count))}"
    is_lower = count < wanted
    if is_lower:
        least = f"prefetch is {count} instead of {config.prefetch}"
        words += f": {least}, because a batch takes {in_bytes(max(need.batch, need.chunk))}"
    return MemoryFit(
        count if is_lower else config.prefetch, f"{words}; freed memory is returned to the system"
    )


def _too_little(config: RunConfig, need: MemoryNeed, room: int, raw: RawRun) -> str:
    """Return the sentences about a run that does not fit, with settings to change."""
    base, batches = need.process + need.updates, need.batches(1)
    left, training, evaluation = room - base, config.training, config.evaluation
    sentences = [
        f"the run needs at least {in_bytes(need.total(1))} of memory, and {in_bytes(room)} is free "
        f"({raw.where('training.batch_size')}): {in_bytes(base)} for Python, torch, the "
        f"model{' and its updates' if need.updates else ''}"
    ]
    share = max(0.0, _FILLED * left / max(1, batches * need.batch + need.step))
    seeds, remedy = int(training.batch_size * share), "use a machine with more memory"
    if need.batch and need.training(1) > room:
        if seeds:
            parts = training.micro_batches * math.ceil(1 / share)
            remedy = f"try --batch-size {seeds}, --micro-batches {parts}, or smaller --fanouts"
        sentences.append(
            f"Training needs {in_bytes(need.training(1))}: {batches} x {in_bytes(need.batch)} for batches of "
            f"{training.batch_size:,} seeds, {in_bytes(need.step)} for a step; {remedy}"
        )
    if need.evaluation(1) > room:
        share = max(0.0, _FILLED * (left - need.layers) / max(1, batches * need.chunk + need.chunk_step))
        size, remedies = int(evaluation.batch_size * share), []
        if size:
            remedies.append(f"--evaluation-batch-size {size}")
        if not evaluation.fanouts and seeds and need.batch:
            fanouts, seeds = ",".join(map(str, config.sampler.fanouts)), min(seeds, evaluation.batch_size)
            remedies.append(f"--evaluation-fanouts {fanouts} --evaluation-batch-size {seeds}")
        what = "Evaluation needs" if need.batch else "That is"
        sentences.append(
            f"{what} {in_bytes(need.evaluation(1))}: {in_bytes(need.layers)} for rows of all nodes, "
            f"{batches} x {in_bytes(need.chunk)} for chunks of {evaluation.batch_size:,} nodes, "
            f"{in_bytes(need.chunk_step)} to compute one; try {', or '.join(remedies) or 'smaller fanouts'}"
        )
    return ". ".join(sentences)


def _step_bytes(config: RunConfig, graph: Graph, sample: Sample, row_bytes: int) -> int:
    """Return the bytes of activations and their gradients: inputs and outputs of each matrix product."""
    rows = sum(ids.numel() for ids in sample.nodes.values())
    out, into = _FLOAT * config.model.hidden, row_bytes / max(1, rows)
    total = rows * out * 2.0 if _encodes(config, graph) else 0.0
    for block in sample.blocks:
        sources, destinations = sum(block.src_counts.values()), sum(block.dst_counts.values())
        edges = sum(of_type.indices.numel() for of_type in block.adjacencies.values())
        total += _layer_bytes(config, sources, destinations, edges, into)
        into = out
    if not sample.blocks:
        total += 4.0 * rows * out * len(config.sampler.fanouts)
    cast = row_bytes * {"float64": 2.0, "bfloat16": 0.5}.get(config.precision, 0.0)
    return int(cast + total * (2 if config.precision == "float64" else 1))


def _layer_bytes(config: RunConfig, sources: float, destinations: float, edges: float, into: float) -> float:
    out = _FLOAT * config.model.hidden
    total = 2 * destinations * (into + 2 * out)
    if not getattr(component_of(config, "model").declared, "multiplies_destinations", False):
        total += 2 * sources * out + _FLOAT * _EDGE_NUMBERS * edges
    return total


def _encodes(config: RunConfig, graph: Graph) -> bool:
    """Return True if input rows pass an encoder before the first layer."""
    return bool(config.model.embedding) or len(graph.schema.node_types) > 1


def _evaluation_bytes(config: RunConfig, graph: Graph) -> tuple[int, int, int]:
    """Return the bytes of layers, of the largest chunk, and of its activations."""
    hidden = _FLOAT * config.model.hidden
    inputs = {t: max(hidden, _input_bytes(config, graph, t)) for t in graph.schema.node_types}
    layers = config.model.layers or len(config.sampler.fanouts)
    if config.evaluation.fanouts:
        rows, inner, edges = _drawn_nodes(config, graph)
        chunk = sum(rows[t] * (inputs[t] + _NODE_BYTES) for t in rows) + _EDGE_BYTES * edges
        return (
            0,
            int(chunk),
            int(_layer_bytes(config, sum(rows.values()), inner, edges, max(inputs.values())) / 2),
        )
    nodes = sum(map(graph.num_nodes, graph.schema.node_types))
    of_all = layers if config.task.kind == LINK_PREDICTION else layers - 1
    chunk, step = 0.0, 0.0
    for node_type in graph.schema.node_types:
        seeds = min(config.evaluation.batch_size, graph.num_nodes(node_type))
        into = {t: _chunk_edges(config, graph, t) for t in graph.schema.edge_types if t[2] == node_type}
        found = {t: _distinct(graph, t[0], edges) for t, edges in into.items()}
        sources = sum(found.values())
        size = seeds * inputs[node_type] + sum(count * inputs[t[0]] for t, count in found.items())
        size += _EDGE_BYTES * sum(into.values()) + _NODE_BYTES * (seeds + sources)
        encoded = hidden * (seeds + sources) if _encodes(config, graph) else 0
        work = _layer_bytes(config, sources, seeds, sum(into.values()), inputs[node_type]) + encoded
        chunk, step = max(chunk, size), max(step, work / 2)  # without gradients
    return nodes * hidden * min(2, of_all), int(chunk), int(step)


def _is_on_disk(config: RunConfig, graph: Graph) -> bool:
    """Return True if input rows are read from disk, not mapped."""
    having = [t for t in graph.schema.node_types if config.model.column in graph.schema.columns.get(t, {})]
    return any(len(graph.features.resident_rows(t)) < graph.num_nodes(t) for t in having)


def _chunk_edges(config: RunConfig, graph: Graph, edge_type: EdgeType) -> int:
    """Return the most edges of a type in a chunk of exact evaluation."""
    size, most = config.evaluation.batch_size, 0
    for degrees in _degrees(graph, edge_type, size):
        most = max(most, min(int(degrees.sum()), max(config.evaluation.batch_edges, int(degrees.max()))))
    return most


def _degrees(graph: Graph, edge_type: EdgeType, size: int) -> Iterator[torch.Tensor]:
    """Yield the in-degrees of consecutive nodes, `size` at a time."""
    count = graph.num_nodes(edge_type[2])
    for first in range(0, count, max(size, _ROWS_AT_ONCE // size * size)):
        last = min(count, first + max(size, _ROWS_AT_ONCE // size * size))
        yield from graph.topology.in_degrees(edge_type, torch.arange(first, last)).split(size)


def _distinct(graph: Graph, node_type: NodeType, drawn: float) -> float:
    """Return the approximate number of distinct nodes that some draws lead to."""
    count = graph.num_nodes(node_type)
    return count * -math.expm1(-drawn / max(1, count))


def _drawn_nodes(config: RunConfig, graph: Graph) -> tuple[dict[NodeType, float], float, float]:
    """Estimate the nodes of each type, the nodes with neighbors, and the edges of the largest drawn chunk."""
    schema, size = graph.schema, config.evaluation.batch_size
    nodes = {t: float(min(size, graph.num_nodes(t))) for t in schema.node_types}
    if config.task.target in nodes:
        nodes = {t: count if t == config.task.target else 0.0 for t, count in nodes.items()}
    inner, edges = 0.0, 0.0
    for fanouts in fanouts_by_type(schema, config.evaluation.fanouts):
        inner = sum(nodes.values())
        degrees = {t: graph.num_edges(t) / max(1, graph.num_nodes(t[2])) for t in fanouts}
        drawn = {t: nodes[t[2]] * (fanout if fanout >= 0 else degrees[t]) for t, fanout in fanouts.items()}
        edges += sum(drawn.values())
        for edge_type, count in drawn.items():
            nodes[edge_type[0]] += count
        nodes = {t: _distinct(graph, t, count) for t, count in nodes.items()}
    return nodes, inner, edges


def _input_bytes(config: RunConfig, graph: Graph, node_type: NodeType) -> int:
    spec = graph.schema.columns.get(node_type, {}).get(config.model.column)
    return 0 if spec is None else math.prod(spec.shape) * _FLOAT
