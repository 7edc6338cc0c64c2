"""Outputs of a trained model for nodes: exact, layer by layer over all neighbors, or sampled.

Exact inference selects and weighs the edges of each layer by the sampler's rule and fanouts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from khop.arguments import seed_number, whole_number
from khop.batch import Batch
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.processes.group import ALONE, Group
from khop.draw import DrawKey, Purpose
from khop.graph.features.store import FeatureStore, FeatureStoreBase, Gathered, Rows
from khop.graph.features.store import Wanted as WantedRows
from khop.graph.folder import ORIGINAL_ID
from khop.graph.rule import Rule
from khop.graph.store import GraphStore
from khop.inference.chunks import (
    ChunkMeter,
    Chunks,
    ChunkSource,
    Progress,
    RowsOf,
    Sharing,
    evaluating,
    sharing_of,
    unwatched,
)
from khop.inference.rows_on_device import EncodedBatch, RowsOnDevice, RowTable
from khop.inference.stages import (
    CHUNK_EDGES,
    VALUES,
    ChunkBounds,
    ChunkLimits,
    LayerStore,
    MemoryStore,
    PartOrder,
    Stage,
    pieces_of,
    row_table,
)
from khop.loading.columns import ColumnChoice, NamesByType
from khop.loading.ordered_map import FEW_IN_FLIGHT, InFlight
from khop.models.node_embedding import gathered
from khop.models.stack import Layered, Stack, destination_types, followed_edge_types
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.sampler import Fanout, NeighborSampler, Sampler, check_timeless, fanouts_by_type
from khop.sampling.seeds import SeedIds, SeedTimes, node_ids, seed_times
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema, Specs, Type
from khop.training.steps import mover


@dataclass(frozen=True, eq=False)
class BesideRows(FeatureStoreBase):
    """A feature store that combines the node columns of one store and the edge columns of another."""

    rows: FeatureStore
    edges: FeatureStore

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        found: dict[Type, Mapping[str, ColumnSpec]] = dict(self.rows.specs)
        found |= {t: of_type for t, of_type in self.edges.specs.items() if isinstance(t, tuple)}
        return found

    @property
    def is_collective(self) -> bool:
        """True if a gather of one of the stores is collective."""
        return self.rows.is_collective or self.edges.is_collective

    def local_rows(self, type_: Type) -> range:
        """Return the rows that a gather reads in this process."""
        return (self.edges if isinstance(type_, tuple) else self.rows).local_rows(type_)

    def gather(self, wanted: WantedRows) -> Gathered:
        """Gather from each store once, in the same order on all ranks."""
        of_nodes: Mapping[Type, Rows] = {t: rows for t, rows in wanted.items() if isinstance(t, str)}
        of_edges: Mapping[Type, Rows] = {t: rows for t, rows in wanted.items() if isinstance(t, tuple)}
        return {**self.rows.gather(of_nodes), **self.edges.gather(of_edges)}

    def with_threads(self, threads: int) -> FeatureStore:
        """Return a store that gathers with up to `threads` threads."""
        return BesideRows(self.rows.with_threads(threads), self.edges.with_threads(threads))


FanoutByType = dict[EdgeType, int]


def takes_fanouts(rule: Rule, schema: Schema, edge_types: Sequence[EdgeType]) -> bool:
    """Return True if exact inference along some of the edge types depends on the fanouts of training."""
    return any(rule.exact_fanout(schema, edge_type, 1) != -1 for edge_type in edge_types)


def unknown_fanouts(rule: Rule) -> ValueError:
    """Return the error for such a rule without these fanouts."""
    return ValueError(
        f"{rule}: exact inference selects the same edges as training, but the fanouts of training are "
        "unknown: give fanouts=[...], one per layer"
    )


@dataclass(frozen=True)
class ExactDraws:
    """The rule of training, and its fanouts for rules that take the same edges in exact inference."""

    rule: Rule = UNIFORM
    fanouts: Sequence[Fanout] | None = None  # of training: one per layer, that of the seeds first

    def of_layers(
        self, schema: Schema, followed: Sequence[EdgeType], num_layers: int
    ) -> tuple[FanoutByType, ...]:
        """Return the fanouts of each layer's draws by edge type, input layer first; 0 for types not followed.

        They are -1 unless the rule selects edges as in training; see `RuleBase.exact_fanout`. Raises
        ValueError if it does, and the fanouts of training are missing or not one per layer.
        """
        hops: Sequence[FanoutByType] = [dict.fromkeys(schema.edge_types, 1)] * num_layers
        if takes_fanouts(self.rule, schema, followed):
            hops = self._hops(schema, num_layers)
        return tuple(
            {t: self.rule.exact_fanout(schema, t, hop[t]) if t in followed else 0 for t in schema.edge_types}
            for hop in reversed(hops)
        )

    def _hops(self, schema: Schema, num_layers: int) -> Sequence[FanoutByType]:
        """Return the fanouts of training by edge type, hop at the seeds first."""
        if self.fanouts is None:
            raise unknown_fanouts(self.rule)
        hops = fanouts_by_type(schema, self.fanouts)
        if len(hops) != num_layers:
            raise ValueError(
                f"fanouts of training, {list(self.fanouts)}: the model has {num_layers} layers; give one "
                "fanout per layer"
            )
        return hops


ALL_NEIGHBORS = ExactDraws()


def columns_read(
    model: nn.Module,
    schema: Schema,
    columns: Sequence[str] | NamesByType | None,
    of_loader: ColumnChoice | None,
) -> ColumnChoice:
    """Choose the columns of a batch: `columns`, else the model's `input_columns`, else the loader's.

    If none of them is given, all node columns except labels are used.
    """
    if columns is None:
        columns = getattr(model, "input_columns", None)
    if columns is not None:
        return ColumnChoice.of(schema, columns, (), ())
    if of_loader is not None:
        return replace(of_loader, of_seeds={})
    return ColumnChoice.of(
        schema,
        {
            node_type: [
                name
                for name, spec in schema.columns.get(node_type, {}).items()
                if spec.num_classes is None and name != ORIGINAL_ID
            ]
            for node_type in schema.node_types
        },
        (),
        (),
    )


def rule_of(model: nn.Module) -> Rule:
    """Return the default rule that draws neighbors for a model."""
    rule: Rule = getattr(model, "rule", UNIFORM)
    return rule


def evaluation_sampler(
    graph: GraphStore, fanouts: Sequence[Fanout], columns: ColumnChoice, like: Sampler | None, rule: Rule
) -> Sampler:
    """Make a sampler with these fanouts, and with the other settings of the loader's sampler.

    Without a loader it draws by `rule`.
    """
    edge_ids = bool(columns.of_edges)
    made = None if like is None else like.for_evaluation(graph, fanouts, edge_ids=edge_ids)
    return NeighborSampler(graph, fanouts, rule=rule, edge_ids=edge_ids) if made is None else made


def all_neighbors(model: nn.Module, like: Sampler | None, *, warn: bool) -> Sequence[Fanout]:
    """Return fanouts for exact evaluation with `model(batch)`: all neighbors, one hop per model layer.

    An edge type is left out at a hop if the loader's sampler does not follow it there. ValueError if the
    number of hops is unknown. With `warn`, a warning states the cost of this method.
    """
    name = type(model).__name__
    hops = (like.num_layers if like else None) or getattr(model, "num_layers", None)
    if not isinstance(hops, int):
        raise ValueError(
            f"{name} does not expose its layers, so the number of hops is unknown: give the loader "
            "that it is trained with, loader=..., or layers with forward(x, adjacency) in a "
            "khop.models.Sequential; or sample, with fanouts=[...]"
        )
    if warn:
        warnings.warn(
            f"{name} does not expose its layers: exact evaluation runs forward(batch) on batches with all "
            f"neighbors, {hops} hops deep, and recomputes a node for every batch that needs it; to "
            "compute each layer once per node, give layers with forward(x, adjacency) in a "
            "khop.models.Sequential",
            stacklevel=4,
        )
    exact = None if like is None else like.exact_fanouts
    return [-1] * hops if exact is None else exact


Wanted = Mapping[NodeType, Tensor | None]  # int64 ids of a type; None: all of them, in order


def layerwise_inference(
    model: nn.Module,
    graph: GraphStore,
    features: FeatureStore,
    node_type: NodeType,
    *,
    nodes: SeedIds | None = None,
    rule: Rule | None = None,
    fanouts: Sequence[Fanout] | None = None,
    chunk_size: int = 8192,
    chunk_edges: int = CHUNK_EDGES,
    progress: Progress = unwatched,
    in_flight: InFlight = FEW_IN_FLIGHT,
    group: Group = ALONE,
    lanes: Lanes | None = None,
) -> Tensor:
    """Compute the model's exact outputs over all neighbors, layer by layer.

    Every layer is computed for all nodes before the next one. The values of two layers are in memory, once
    per machine; `khop.infer` stores them in files instead. The ranks of a group share the chunks of each
    layer, and every rank gets all values. The result is bit-identical for any number of ranks.

    Args:
        model: Model that exposes its layers (`khop.models.Layered`).
        graph: Edges.
        features: Columns.
        node_type: Node type.
        nodes: Nodes, as ids or a boolean mask; by default all of the type.
        rule: Rule of training: neighbors are weighed by what its draws estimate (`RuleBase.has_weights`).
            By default the model's.
        fanouts: Fanouts of training, for `TopK`, which selects the same edges as in training; other rules
            ignore them. Default None.
        chunk_size: Nodes per chunk, default 8192.
        chunk_edges: Maximum edges of a chunk with several nodes, default 1048576.
        progress: Function called with the numbers of finished rows and of all rows; by default none.
        in_flight: Threads and memory of the batches; default: 2 threads and at most 1 GiB.
        group: Ranks that share the work; by default this process.
        lanes: Lanes of a partitioned graph: each rank then computes and stores the values of its nodes,
            regardless of `group`. Default None.
    Returns:
        Outputs (nodes, outputs), on the CPU.
    Raises:
        ValueError: The model does not expose its layers, or the rule has time limits.
    Example:
        >>> nodes = {"item": khop.NodeTable(columns={"x": torch.rand(4, 8)})}
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(4), torch.arange(4).flip(0))}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> model = khop.models.SAGE.for_graph(graph, hidden=16, target="item", outputs=2)
        >>> khop.layerwise_inference(model, graph, graph.features, "item", nodes=[1, 2]).shape
        torch.Size([2, 2])
    """
    ids = None if nodes is None else _node_ids(graph, node_type, nodes)
    order = PartOrder.of(ids, graph.partition_bounds(node_type))
    wanted = {node_type: None if ids is None else order.there(ids)}
    limits = ChunkLimits(chunk_size, chunk_edges)
    draws = ExactDraws(rule_of(model) if rule is None else rule, fanouts)
    sharing = sharing_of(graph, features, lanes, group, in_flight)
    layers = Layers.of(model, graph, features, wanted, limits, draws=draws, group=sharing.group)
    rows = layers.computed(sharing, sharing.layer_store(), progress, last=MemoryStore(sharing.group))
    return order.back(rows[node_type])


def sampled_inference(
    model: nn.Module,
    sampler: Sampler,
    features: FeatureStore,
    node_type: NodeType,
    *,
    nodes: SeedIds,
    times: SeedTimes | None = None,
    columns: ColumnChoice,
    seed: int = 0,
    chunk_size: int = 1024,
    progress: Progress = unwatched,
    in_flight: InFlight = FEW_IN_FLIGHT,
    group: Group = ALONE,
    lanes: Lanes | None = None,
) -> Tensor:
    """Compute the outputs of `model(batch)` over sampled neighborhoods.

    All chunks use the same random key. With the layered expansion, a node's output is therefore independent
    of its chunk, and two evaluations with the same seed differ only by the model. The ranks of a group share
    the chunks, and every rank gets all outputs.

    Args:
        model: Any module that takes a batch.
        sampler: Sampler of the neighborhoods.
        features: Columns.
        node_type: Node type.
        nodes: Nodes, as ids or a boolean mask.
        times: One time per node, or the name of a column of them; temporal samplers need it. Default
            None.
        columns: Columns of the batches, a `khop.loading.columns.ColumnChoice`.
        seed: Seed of the draws, default 0.
        chunk_size: Nodes per chunk, default 1024.
        progress: Function called with the number of finished rows and of all rows; by default none.
        in_flight: Threads and memory of the batches; default: 2 threads and at most 1 GiB.
        group: Ranks that share the work; by default this process.
        lanes: Lanes of a partitioned graph; default None.
    Returns:
        Outputs (nodes, outputs), on the CPU.
    Raises:
        ValueError: Nodes, times or columns do not fit the graph or the sampler.
    Example:
        >>> from khop.loading.columns import ColumnChoice
        >>> nodes = {"item": khop.NodeTable(columns={"x": torch.rand(4, 8)})}
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(4), torch.arange(4).flip(0))}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> model = khop.models.SAGE.for_graph(graph, hidden=16, target="item", outputs=2)
        >>> sampler, columns = khop.NeighborSampler(graph, [2, 2]), ColumnChoice({"item": ("x",)})
        >>> place = (model, sampler, graph.features, "item")
        >>> khop.sampled_inference(*place, nodes=[1, 2], columns=columns).shape
        torch.Size([2, 2])
    """
    seed, chunk_size = seed_number(seed), whole_number("chunk_size", chunk_size, 1)
    graph = sampler.graph
    bounds = graph.partition_bounds(node_type)
    ids = _node_ids(graph, node_type, nodes)
    order = PartOrder.of(ids, bounds)
    until = None
    if times is not None:
        until = order.there(seed_times(times, {node_type: ids}, graph.schema, features)[node_type])
    ids = order.there(ids)
    key = DrawKey.of(seed, Purpose.EVALUATION)
    chunks = Chunks(sampler, features, columns, key, mover(model))
    with evaluating(model), gathered(model):
        like = model(chunks.batch(node_type, ids[:1], None if until is None else until[:1])).cpu()[:0]
        pieces = pieces_of(ids, bounds)
        stage = Stage(0, node_type, ids.numel(), chunk_size, like, ids, until, pieces)
        sharing = sharing_of(graph, features, lanes, group, in_flight)
        rows = ChunkMeter(progress, stage.count, sharing).rows(
            stage, MemoryStore(sharing.group), chunks, model
        )
        return order.back(rows)


def _node_ids(graph: GraphStore, node_type: NodeType, nodes: SeedIds) -> Tensor:
    if node_type not in graph.schema.node_types:
        raise ValueError(f"seeds of {node_type!r}: not a node type; there are {graph.schema.node_types}")
    return node_ids(f"seeds of {node_type!r}", nodes, graph.num_nodes(node_type))


class Layers:
    """Layers of a model over a whole graph: the stages to compute, and the functions that compute them."""

    def __init__(
        self,
        model: nn.Module,
        graph: GraphStore,
        features: FeatureStore,
        stages: Sequence[Sequence[Stage]],
        rows_of: Sequence[Mapping[NodeType, RowsOf]],
        samplers: Sequence[NeighborSampler],
        limits: ChunkLimits,
        on_device: RowsOnDevice | None = None,
    ) -> None:
        self.stages = stages  # per layer, input layer first, one for each node type
        self.limits = limits
        self._stores = graph, features
        self._on_device = on_device  # None: chunks are made on the CPU
        self._model = model
        self._samplers = samplers  # of each layer
        self._rows_of = rows_of

    @classmethod
    def of(
        cls,
        model: nn.Module,
        graph: GraphStore,
        features: FeatureStore,
        wanted: Wanted,
        chunks: ChunkLimits,
        *,
        depth: int | None = None,
        draws: ExactDraws = ALL_NEIGHBORS,
        group: Group = ALONE,
    ) -> Layers:
        """Build the layers for the model's output of `wanted`; with `depth`, only the first `depth` layers.

        Collective: the ranks of `group` compute them on devices only if all ranks can. `chunks` limits the
        edges of chunks too if the graph tells in-degrees: see `ChunkBounds`. ValueError if the model does not
        expose its layers, if the rule has time limits, or if it needs fanouts that are missing.
        """
        check_timeless(draws.rule)
        if not isinstance(model, Layered):
            raise ValueError(
                f"{type(model).__name__} does not expose its layers: give them as modules with "
                "forward(x, adjacency) in a khop.models.Sequential, or the model num_layers, input_columns, "
                "encode, layer and head (khop.models.Layered); or sample, with khop.sampled_inference"
            )
        count = model.num_layers if depth is None else depth
        followed = followed_edge_types(model, graph.schema)
        reach = destination_types(followed, tuple(wanted), count)
        rows_of = [
            {t: _rows_of(model, index, t, index == count - 1, depth) for t in types}
            for index, types in enumerate(reach)
        ]
        fanouts = draws.of_layers(graph.schema, followed, model.num_layers)[:count]
        samplers = _samplers(model, graph, draws.rule, fanouts)
        shapes = _row_shapes(model, graph, features, rows_of, draws.rule)

        def stages_of(limits: ChunkLimits) -> list[list[Stage]]:
            bounds, nodes = ChunkBounds(graph, followed, limits), [*([{}] * (count - 1)), wanted]
            return [
                [bounds.stage(index, t, of_type[t], nodes[index].get(t)) for t in of_type]
                for index, of_type in enumerate(shapes)
            ]

        on_device, limits = _on_device(model, graph, draws.rule), chunks
        if not _is_true_of_all(group, on_device is not None):
            on_device = None
        if on_device is not None:
            limits = on_device.limits(chunks)
            stages = stages_of(limits)
            on_device = on_device.with_room(stages, limits)
            if not _is_true_of_all(group, on_device is not None):
                on_device = None
        if on_device is None:
            limits, stages = chunks, stages_of(chunks)
        return cls(model, graph, features, stages, rows_of, samplers, limits, on_device)

    def in_numpy_dtypes(self) -> Layers:
        """Return the layers with last rows in a dtype that NumPy has: float32 for bfloat16, exactly."""
        *before, last = self.stages
        *rows_before, last_rows = self._rows_of

        def widened(rows: RowsOf) -> RowsOf:
            return lambda batch: rows(batch).float()

        narrow = {stage.node_type for stage in last if stage.like.dtype == torch.bfloat16}
        stages = [replace(s, like=s.like.float()) if s.node_type in narrow else s for s in last]
        rows_of = {t: widened(rows) if t in narrow else rows for t, rows in last_rows.items()}
        return Layers(
            self._model,
            *self._stores,
            [*before, stages],
            [*rows_before, rows_of],
            self._samplers,
            self.limits,
            self._on_device,
        )

    def sharing(self, lanes: Lanes | None, group: Group, in_flight: InFlight) -> Sharing:
        """Choose how ranks share the chunks; `lanes` are the graph's, if ranks hold parts of it."""
        return sharing_of(*self._stores, lanes, group, in_flight)

    def computed(
        self,
        sharing: Sharing,
        layer_store: LayerStore,
        progress: Progress,
        *,
        last: LayerStore | None = None,
        first: int = 0,
    ) -> dict[NodeType, Tensor]:
        """Compute all layers; return the last layer's rows by type, held by `last` if given. Collective.

        `first` is the first layer to compute. The layer store may lack the layers before it; they are not
        needed.
        """
        total = sum(stage.count for layer in self.stages for stage in layer)
        skipped = sum(stage.count for layer in self.stages[:first] for stage in layer)
        meter = ChunkMeter(progress, total, sharing, skipped)
        values, tables = dict[NodeType, Tensor](), dict[NodeType, RowTable]()
        on_device, is_alone = self._on_device, sharing.group.world_size == 1
        selected = nullcontext() if on_device is None else on_device.selected()
        with selected, evaluating(self._model), gathered(self._model):
            for index, layer in enumerate(self.stages[first:], first):
                is_last = index == len(self.stages) - 1
                place = last if last is not None and is_last else layer_store
                chunks: ChunkSource
                if on_device is None:
                    chunks = self._chunks(index, layer_store, values)
                else:
                    tables = on_device.encoded() if index == 0 else tables
                    chunks = on_device.chunks(self._samplers[index], tables)
                    tables = {} if is_last else on_device.tables(layer)
                    if tables and is_alone and isinstance(layer_store, MemoryStore):
                        place = MemoryStore(sharing.group, {t: table.rows for t, table in tables.items()})
                rows_of = self._rows_of[index]
                values = {s.node_type: meter.rows(s, place, chunks, rows_of[s.node_type]) for s in layer}
                for node_type, table in tables.items():
                    table.fill(values[node_type])
                layer_store.release(index - 1)
        return values

    def _chunks(self, index: int, layer_store: LayerStore, values: Mapping[NodeType, Tensor]) -> Chunks:
        """Return the chunks of a layer after the rows of the layer before."""
        features = self._stores[1]
        chunks = _first_chunks(self._model, features, self._samplers[index])
        if not values:
            return chunks
        return _over(chunks, features, layer_store.store(self.stages[index - 1], values), tuple(values))


def _is_true_of_all(group: Group, value: bool) -> bool:
    """Return True if the value of every rank is True. Collective."""
    with group.exchanging("choosing the device of layers"):
        return bool(group.gather(torch.tensor([int(value)])).all())


def _on_device(model: Layered, graph: GraphStore, rule: Rule) -> RowsOnDevice | None:
    """Return the computation on the device of a placed graph, if the model is there; None: on the CPU."""
    assert isinstance(model, nn.Module)
    placed = graph.device_stores
    if placed is None:
        return None
    edges, features = placed
    nothing = dict.fromkeys(graph.schema.edge_types, 0)
    return RowsOnDevice.of(model, _first_chunks(model, features, _samplers(model, edges, rule, [nothing])[0]))


def _row_shapes(
    model: Layered,
    graph: GraphStore,
    features: FeatureStore,
    rows_of: Sequence[Mapping[NodeType, RowsOf]],
    rule: Rule,
) -> list[dict[NodeType, Tensor]]:
    """Row shape and dtype by layer and type, computed for one node of each type without neighbors."""
    assert isinstance(model, nn.Module)
    nothing = dict.fromkeys(graph.schema.edge_types, 0)
    chunks = _first_chunks(model, features, _samplers(model, graph, rule, [nothing])[0])
    shapes, values = [], dict[NodeType, Tensor]()
    with evaluating(model):
        for index, of_type in enumerate(rows_of):
            if index:
                chunks = _over(chunks, features, row_table(values), tuple(values))
            values = {
                t: rows(chunks.batch(t, torch.arange(min(1, graph.num_nodes(t))))).cpu()
                for t, rows in of_type.items()
            }
            shapes.append({t: rows[:0] for t, rows in values.items()})
    return shapes


def _samplers(
    model: nn.Module, graph: GraphStore, rule: Rule, fanouts: Sequence[FanoutByType]
) -> list[NeighborSampler]:
    """Make a sampler of one hop for each layer; layers with equal fanouts share one."""
    edge_ids = bool(columns_read(model, graph.schema, None, None).of_edges)
    made: list[NeighborSampler] = []
    for of_layer in fanouts:
        like = next((sampler for sampler in made if sampler.fanouts == (of_layer,)), None)
        made.append(like or NeighborSampler(graph, [of_layer], rule=rule, edge_ids=edge_ids))
    return made


def _first_chunks(model: nn.Module, features: FeatureStore, sampler: NeighborSampler) -> Chunks:
    """Make the chunks of a model's first layer."""
    choice = columns_read(model, sampler.graph.schema, None, None)
    return Chunks(sampler, features, choice, DrawKey(0), mover(model))


def _over(
    chunks: Chunks, features: FeatureStore, rows: FeatureStore, node_types: Sequence[NodeType]
) -> Chunks:
    """Return the chunks of a layer with the previous layer's rows of some types as its input.

    Columns of edges come from `features`, as in the first layer.
    """
    before = chunks.columns
    columns = ColumnChoice(
        dict.fromkeys(node_types, (VALUES,)), of_edges=before.of_edges, as_float32=before.as_float32
    )
    return replace(chunks, features=BesideRows(rows, features) if before.of_edges else rows, columns=columns)


def _rows_of(model: Layered, index: int, node_type: NodeType, is_last: bool, depth: int | None) -> RowsOf:
    """Return a function that applies one layer to a chunk's nodes.

    After the last layer, it returns the model's outputs, or embeddings after `depth` layers.
    """

    def rows(batch: Batch) -> Tensor:
        if index == 0 and not isinstance(batch, EncodedBatch):
            h = model.encode(batch)
        else:
            h = {t: of_type[VALUES] for t, of_type in batch.columns.items()}
        block = batch.blocks[0]
        # Other types are not destinations of the chunk, and h lacks their inputs.
        block = replace(block, dst_counts={node_type: block.dst_counts[node_type]})
        given = model.layer(index, h, block)
        if node_type not in given:
            raise ValueError(
                f"node type {node_type!r}: layer {index + 1} of the {type(model).__name__} does not compute "
                "rows of it; give one of the model's target types"
            )
        out = given[node_type].index_select(0, batch.sample.seed_index[node_type])
        if not is_last:
            return out
        if depth is None:
            return model.head(node_type, out)
        return model.embedding(out, depth) if isinstance(model, Stack) else out

    return rows
