"""A trained model's outputs: exact, layer by layer over all neighbours, or from samples for any model."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from khop.batch import Batch, Change, num_bytes
from khop.distributed.group import ALONE, Group
from khop.draw import DrawKey, Purpose
from khop.features.store import FeatureStore
from khop.features.table import FeatureTable
from khop.graph.store import GraphStore
from khop.loading.columns import ColumnChoice, gather_columns
from khop.loading.ordered_map import InFlight, ordered_map
from khop.models.layered import Layered, destination_types
from khop.sampling.neighbor import NeighborSampler
from khop.sampling.sampler import Sampler, Seeds
from khop.schema import EdgeType, NodeType
from khop.training.placement import mover

Progress = Callable[[int, int], None]  # (done, total)
_VALUES = "values"  # the column that one layer's output is to the next


def unwatched(done: int, total: int) -> None:
    """A progress that nobody watches."""


def layerwise_inference(
    model: nn.Module,
    graph: GraphStore,
    features: FeatureStore,
    node_type: NodeType,
    *,
    nodes: Tensor | None = None,
    chunk_size: int = 8192,
    progress: Progress = unwatched,
    in_flight: InFlight = InFlight(),  # noqa: B008
    group: Group = ALONE,
) -> Tensor:
    """(nodes, outputs) on the CPU: the model's exact output for `nodes`, by default all of the type.

    Every layer is computed for all nodes before the next begins, over all neighbours, `chunk_size` nodes at a
    time; two layers' values are held in memory. The ranks of a group share the chunks of each layer, and all
    get all values, whose bits do not depend on the number of ranks. ValueError where the model does not
    expose its layers.
    """
    if not isinstance(model, Layered):
        raise ValueError(
            f"{type(model).__name__} does not expose its layers: for exact evaluation give it num_layers, "
            "input_columns, encode, layer and head (khop.models.Layered); or sample, with fanouts=[...]"
        )
    reach = destination_types(graph.schema.edge_types, (node_type,), model.num_layers)
    plan = [{t: torch.arange(graph.num_nodes(t)) for t in types} for types in reach]
    if nodes is not None:
        plan[-1] = {node_type: nodes}
    meter = _Meter(progress, sum(ids.numel() for layer in plan for ids in layer.values()), chunk_size, group)
    columns: dict[NodeType | EdgeType, Sequence[str]] = {t: names for t, names in model.input_columns.items()}
    inputs = ColumnChoice.of(graph.schema, columns, (), ())
    chunks = _Chunks(NeighborSampler(graph, [-1]), features, inputs, DrawKey(0), mover(model), in_flight)
    values: dict[NodeType, Tensor] = {}
    with evaluating(model):
        for index, layer in enumerate(plan):
            values = {
                t: meter.joined(ids, chunks.spread(t, ids, chunk_size), _layer(model, index, t))
                for t, ids in layer.items()
            }
            table = FeatureTable({t: {_VALUES: rows} for t, rows in values.items()})
            chunks = replace(chunks, features=table, columns=ColumnChoice(dict.fromkeys(values, (_VALUES,))))
    return values[node_type]


def sampled_inference(
    model: nn.Module,
    sampler: Sampler,
    features: FeatureStore,
    node_type: NodeType,
    *,
    nodes: Tensor,
    times: Tensor | None = None,
    columns: ColumnChoice,
    seed: int = 0,
    chunk_size: int = 1024,
    progress: Progress = unwatched,
    in_flight: InFlight = InFlight(),  # noqa: B008
    group: Group = ALONE,
) -> Tensor:
    """(nodes, outputs) on the CPU: what `model(batch)` gives for `nodes` over sampled neighbourhoods.

    The ranks of a group share the chunks, and all get all outputs. Any module over a batch will do. One key
    draws for all chunks: with the layered expansion a node's output does not depend on the chunk that it is
    in, and two evaluations with one seed differ by the model alone.
    `times`, one per node, are what a sampler by time needs.
    """
    meter = _Meter(progress, nodes.numel(), chunk_size, group)
    key = DrawKey.of(seed, Purpose.EVALUATION)
    chunks = _Chunks(sampler, features, columns, key, mover(model), in_flight)
    with evaluating(model):
        return meter.joined(nodes, chunks.spread(node_type, nodes, chunk_size, times), model)


def _layer(model: Layered, index: int, node_type: NodeType) -> Callable[[Batch], Tensor]:
    """What one layer gives for a chunk's nodes; after the last one, what the head makes of it."""

    def rows(batch: Batch) -> Tensor:
        if index == 0:
            h = model.encode(batch)
        else:
            h = {t: of_type[_VALUES] for t, of_type in batch.columns.items()}
        block = batch.blocks[0]
        # Other types are no destinations of the chunk, and what they would be computed from is not in h.
        block = replace(block, dst_counts={node_type: block.dst_counts[node_type]})
        out = model.layer(index, h, block)[node_type]
        out = out.index_select(0, batch.sample.seed_index[node_type])
        return model.head(node_type, out) if index == model.num_layers - 1 else out

    return rows


@dataclass(frozen=True)
class _Chunks:
    """What makes batches of chunks of nodes, ahead of the model that takes them."""

    sampler: Sampler
    features: FeatureStore
    columns: ColumnChoice
    key: DrawKey
    move: Change
    in_flight: InFlight

    def spread(
        self, node_type: NodeType, nodes: Tensor, chunk_size: int, times: Tensor | None = None
    ) -> Callable[[slice], Generator[Batch]]:
        """What gives the batches of some of the chunks of `nodes`, in order."""
        chunks = torch.split(nodes, chunk_size)
        limits = None if times is None else torch.split(times, chunk_size)
        return lambda part: self._of(node_type, chunks[part], None if limits is None else limits[part])

    def _of(
        self, node_type: NodeType, chunks: Sequence[Tensor], times: Sequence[Tensor] | None
    ) -> Generator[Batch]:
        def made(number: int) -> Batch:
            nodes = chunks[number]
            limits = None if times is None else {node_type: times[number]}
            seeds = Seeds({node_type: nodes}, {node_type: nodes}, limits)
            sample = self.sampler.sample(seeds, self.key)
            sample, columns, seed_columns = gather_columns(self.features, self.columns, sample)
            return Batch(sample, seeds.nodes, columns, seed_columns, 0, 0, seeds.count)

        with closing(ordered_map(made, range(len(chunks)), self.in_flight, num_bytes)) as batches:
            for batch in batches:
                yield batch.map(self.move)


class _Meter:
    """Puts the rows of chunk after chunk into one tensor and says how far that has come."""

    def __init__(self, progress: Progress, total: int, chunk_size: int, group: Group) -> None:
        self._progress = progress
        self._total = total
        self._chunk_size = chunk_size
        self._group = group
        self._done = 0

    def joined(
        self,
        nodes: Tensor,
        batches_of: Callable[[slice], Generator[Batch]],
        rows_of: Callable[[Batch], Tensor],
    ) -> Tensor:
        """(nodes, ...): `rows_of` all chunks, in their order, on the CPU; every rank makes some of them."""
        group = self._group
        bounds = group.bounds(max(1, -(-nodes.numel() // self._chunk_size)))  # no nodes are one empty chunk
        starts = [min(chunk * self._chunk_size, nodes.numel()) for chunk in bounds]
        first, last = bounds[group.rank], bounds[group.rank + 1]
        start, done = starts[group.rank], 0
        out = torch.empty(0)
        with closing(batches_of(slice(first, last))) as batches:
            for batch in batches:
                rows = rows_of(batch)
                if done == 0:
                    out = torch.empty((nodes.numel(), *rows.shape[1:]), dtype=rows.dtype)
                out[start + done : start + done + rows.shape[0]] = rows
                done += rows.shape[0]
                self._progress(self._done + done * group.world_size, self._total)
        self._done += nodes.numel()
        return self._shared(out, nodes.numel(), starts)

    def _shared(self, out: Tensor, count: int, starts: Sequence[int]) -> Tensor:
        """What all ranks have made. A rank without a chunk learns from rank 0 what rows look like."""
        group = self._group
        if group.world_size == 1:
            return out
        with group.exchanging("sharing what was evaluated"):
            of_rank_0 = json.dumps([list(out.shape[1:]), str(out.dtype).removeprefix("torch.")])
            shape, dtype = json.loads(group.share_bytes(of_rank_0.encode()))
            if starts[group.rank] == starts[group.rank + 1]:
                out = torch.empty((count, *shape), dtype=getattr(torch, dtype))
            group.share_rows(out, starts)
        return out


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module's mode is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
