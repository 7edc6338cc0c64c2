"""Public inference: outputs for all nodes, and evaluation of splits."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

import khop
from khop.api.loader import Loader
from khop.api.open_graph import Graph, names_of
from khop.api.split_links import edges_of_split
from khop.arguments import check_word, graph_of, instance_of, path_of
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.processes.group import ALONE, Group, this_group, unwrapped
from khop.draw import GivenNegatives, NegativeMode, Negatives
from khop.errors import Unsupported
from khop.graph.atomic import in_bytes
from khop.graph.rule import Rule
from khop.inference.chunks import CollectiveChunks, InferenceWork, Progress, rank_bounds, unwatched
from khop.inference.evaluation import ScoredNodes, scores_of, split_outputs
from khop.inference.link_evaluation import (
    check_labeled,
    check_metrics,
    check_negatives,
    check_pair_labels,
    check_untimed,
    comparable,
    end_rows,
    exact_edge_outputs,
    is_labeled,
    labeled_outputs,
    link_scores,
    mean_metrics,
    sampled_edge_outputs,
    sampled_link_scores,
)
from khop.inference.node_outputs import (
    ALL_NEIGHBORS,
    ExactDraws,
    Layers,
    all_neighbors,
    columns_read,
    evaluation_sampler,
    layerwise_inference,
    rule_of,
    sampled_inference,
    takes_fanouts,
    unknown_fanouts,
)
from khop.inference.predictions import RowOutput, check_outputs
from khop.inference.stages import CHUNK_EDGES, ChunkLimits
from khop.inference.work_folder import is_seen_by_all, own_stage, rank_folder, remove, work_folder
from khop.kernels.philox import digest
from khop.loading.columns import ColumnChoice, NamesByType
from khop.loading.ordered_map import FEW_IN_FLIGHT, InFlight
from khop.models.link_predictor import EdgePredictor, LinkPredictor
from khop.models.node_embedding import gathered
from khop.models.stack import Layered, Stack
from khop.sampling.links.link_seeds import LinkList, Links
from khop.sampling.links.links import LinkSampler
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.sampler import Fanout, check_timeless
from khop.sampling.seed_table import SeedTable
from khop.sampling.seeds import SeedIds, ids_here, node_ids
from khop.schema import NodeType, Type, sole_type
from khop.training.edge_tasks import EdgeObjective, LinkMetric
from khop.training.tasks import NodeClassification, NodeObjective

Values = Literal["embeddings", "outputs"]
UNFINISHED = ".unfinished"  # suffix of the work folder, which is next to the result
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def infer(
    model: nn.Module,
    graph: Graph,
    out: str | os.PathLike[str],
    *,
    node_types: NodeType | Sequence[NodeType] | None = None,
    nodes: SeedIds | None = None,
    values: Values = "embeddings",
    rule: Rule | None = None,
    fanouts: Sequence[Fanout] | None = None,
    chunk_size: int = 2048,
    chunk_edges: int = CHUNK_EDGES,
    progress: Progress = unwatched,
    in_flight: InFlight = FEW_IN_FLIGHT,
) -> dict[NodeType, Path]:
    """Compute a row for every node over all neighbors, and write the rows to files.

    The computation runs layer by layer and stores each layer in files: a process has a few chunks in
    memory, for any size of the graph. Collective: the ranks share the chunks, and the result is
    bit-identical for any number of ranks.

    If the call is killed, or stopped by a full disk, the next call resumes it, also with another number
    of ranks. Until then, unfinished work is in `out`.unfinished. If the graph is partitioned across ranks
    without a shared file system, each rank writes a file such as `name.rank-0.npy`, and the returned path is
    this rank's file.

    Args:
        model: Model that exposes its layers (`khop.models.Layered`).
        graph: The graph.
        out: File, written atomically: .npy (`name.ids.npy` next to it has the ids) or .parquet (columns
            of ids and rows). bfloat16 rows are written as float32. With several node types, each has a file,
            such as `name.user.npy`.
        node_types: Node types, by default the only one.
        nodes: Nodes in the order of the rows: ids or a boolean mask, as a tensor, an array or a list.
            Default: all.
        values: "embeddings" (default): the outputs of the model's last layer for the node type, or the
            inputs of the decoder of a link-prediction model; "outputs": the outputs of the whole model,
            such as logits.
        rule: Rule of training, as for `khop.layerwise_inference`; by default the model's.
        fanouts: Fanouts of training, for rules that need them; default None.
        chunk_size: Nodes per chunk, default 2048.
        chunk_edges: Maximum edges of a chunk with several nodes, default 1048576.
        progress: Function called with the numbers of finished rows and of all rows; by default none.
        in_flight: Threads and memory of the batches; default: 2 threads and at most 1 GiB.
    Returns:
        The files by node type.
    Raises:
        ValueError: Model, graph and files do not fit together.
        OSError: The disk has no space for the rows.
    Example:
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(4), torch.arange(4).flip(0))}
        >>> nodes = {"item": khop.NodeTable(columns={"x": torch.rand(4, 8)})}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> model = khop.models.SAGE.for_graph(graph, hidden=16, target="item", outputs=2)
        >>> files = khop.infer(model, graph, tmp / "rows.npy", values="outputs")
        >>> np.load(files["item"]).shape
        (4, 2)
    """
    graph_of("graph", graph)
    wanted = (node_types,) if isinstance(node_types, str) else tuple(node_types or ())
    wanted = wanted or (sole_type(graph.schema.node_types, "infer without node_types"),)
    chunks = ChunkLimits(chunk_size, chunk_edges)
    draws = ExactDraws(rule_of(unwrapped(model)) if rule is None else rule, fanouts)
    planned = Inference.of(model, graph, path_of("out", out), wanted, nodes, values, chunks, draws)
    return planned.run(progress, in_flight)


@dataclass(frozen=True, eq=False)
class Inference:
    """A validated plan of rows to compute and write."""

    out: Path
    layers: Layers
    outputs: tuple[RowOutput, ...]  # one for each stage of the last layer
    facts: dict[str, str]  # a later call reuses the work of this one if it is equal
    lanes: Lanes | None = None  # of a partitioned graph

    @classmethod
    def of(
        cls,
        model: nn.Module,
        graph: Graph,
        out: Path,
        node_types: Sequence[NodeType],
        nodes: SeedIds | None,
        values: Values,
        chunks: ChunkLimits,
        draws: ExactDraws = ALL_NEIGHBORS,
    ) -> Inference:
        """Make the plan; ValueError if model, graph and files do not fit together. Collective."""
        check_word("values", values, Values)
        ids = _checked_nodes(graph, node_types, nodes)
        model, depth = _rows_of(unwrapped(model), node_types, values)
        wanted = dict.fromkeys(node_types, ids)
        group = this_group() if graph.lanes is None else graph.lanes.group
        group.meet("preparing inference")
        layers = Layers.of(
            model, graph, graph.features, wanted, chunks, depth=depth, draws=draws, group=group
        ).in_numpy_dtypes()
        outputs, names = [], names_of(graph)
        for stage in layers.stages[-1]:
            is_one = len(layers.stages[-1]) == 1
            path = out if is_one else out.with_name(f"{out.stem}.{stage.node_type}{out.suffix}")
            original, own = (of.get(stage.node_type) for of in (names.original_ids, names.ids))
            name = values.removesuffix("s")
            outputs.append(RowOutput(path, stage.node_type, name, stage.count, ids, original, own))
        check_outputs(outputs, out.with_name(out.name + UNFINISHED))
        with gathered(model):
            weights = _digest(*model.state_dict().values())
        facts = {
            "khop version": khop.__version__,
            "graph": _graph_digest(graph),
            "model": f"{weights}, {_structure_digest(model)}",
            "choice of nodes": "all" if ids is None else _digest(ids),
            "choice of values": f"{values} of {', '.join(node_types)}",
            "chunk size": str(layers.limits.nodes),
            "edges of a chunk": str(layers.limits.edges),
        }
        if draws.rule != UNIFORM:
            facts["rule"] = str(draws.rule)
        if takes_fanouts(draws.rule, graph.schema, graph.schema.edge_types):
            facts["fanouts"] = str(list(draws.fanouts or ()))
        return cls(out, layers, tuple(outputs), facts, graph.lanes)

    @property
    def bytes_kept(self) -> int:
        """Size of the result in bytes."""
        return sum(stage.entry.bytes + 8 * stage.count for stage in self.layers.stages[-1])

    @property
    def bytes_needed(self) -> int:
        """Peak disk usage in bytes: two layers, or the last layer and the result."""
        of_layers = [sum(stage.entry.bytes for stage in layer) for layer in self.layers.stages]
        pairs = [before + after for before, after in pairwise(of_layers)]
        return max([*pairs, self.bytes_kept, of_layers[-1] + self.bytes_kept * self._is_copied])

    @property
    def work_folder(self) -> Path:
        """Path of the folder with unfinished work."""
        return self.out.with_name(self.out.name + UNFINISHED)

    def run(
        self, progress: Progress = unwatched, in_flight: InFlight = FEW_IN_FLIGHT
    ) -> dict[NodeType, Path]:
        """Compute and write all rows; OSError if the disk has no space for them. Collective."""
        group = this_group()
        group.meet("inferring")
        try:
            with group.exchanging("inferring"):
                return self._run(progress, in_flight, group)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise OSError(
                f"{self.out}: no space for the rows ({os.strerror(error.errno)}); free some space and "
                f"run it again to continue from {self.work_folder}"
            ) from error

    def _run(self, progress: Progress, in_flight: InFlight, group: Group) -> dict[NodeType, Path]:
        sharing = self.layers.sharing(self.lanes, group, in_flight)
        if isinstance(sharing, CollectiveChunks) and not is_seen_by_all(
            self.out.absolute().parent, sharing.group
        ):
            return self._run_apart(progress, sharing)
        if group.rank == 0:
            self._check_space()
        with work_folder(self.work_folder, self.facts, self.layers.stages, group) as folder:
            first = folder.first_layer(self.layers.stages)
            rows = self.layers.computed(sharing, folder, progress, first=first)
            for stage, output in zip(self.layers.stages[-1], self.outputs, strict=True):
                output.write(rows[stage.node_type], folder.file(stage), group)
            remove(folder)
        return {output.node_type: output.path for output in self.outputs}

    def _run_apart(self, progress: Progress, sharing: CollectiveChunks) -> dict[NodeType, Path]:
        """Compute rows with one set of files per rank."""
        rank = sharing.group.rank
        stages = [own_stage(stage, sharing.group) for stage in self.layers.stages[-1]]
        outputs = [
            output.of_rank(rank, rank_bounds(stage, sharing.group.world_size)[rank], own.count)
            for stage, own, output in zip(self.layers.stages[-1], stages, self.outputs, strict=True)
        ]
        path = self.out.with_name(f"{self.out.name}.rank-{rank}{UNFINISHED}")
        check_outputs(outputs, path)
        with rank_folder(path, self.facts, self.layers.stages, sharing.lanes) as folder:
            first = folder.first_layer(self.layers.stages)
            rows = self.layers.computed(sharing, folder, progress, first=first)
            for own, output in zip(stages, outputs, strict=True):
                output.write(rows[own.node_type], folder.folder.file(own), ALONE)
            remove(folder.folder)
        sharing.group.barrier()
        return {output.node_type: output.path for output in outputs}

    def _check_space(self) -> None:
        folder = self.out.absolute().parent
        there = sum(file.stat().st_blocks * 512 for file in self.work_folder.glob("*.npy"))
        free = shutil.disk_usage(folder).free + there
        if self.bytes_needed > free:
            raise OSError(
                f"{self.out}: needs up to {in_bytes(self.bytes_needed)} on the disk of {folder}, and "
                f"{in_bytes(free)} is free; free some space, or write to another disk"
            )

    @property
    def _is_copied(self) -> bool:
        return self.out.suffix == ".parquet"


def _graph_digest(graph: Graph) -> str:
    """Return a digest of all that rows depend on, equal for equal graphs in any process."""
    if graph.folder is not None:
        return graph.folder.fingerprint
    if graph.servers is not None:
        steps = hashlib.sha256(repr(graph.servers.view).encode()).hexdigest()[:16]
        return f"{graph.servers.fingerprint}, {steps}" if graph.servers.view else graph.servers.fingerprint
    try:
        return _content_digest(graph)
    except Unsupported:  # a store that does not give its edges or columns: its work is never continued
        return f"in memory, opened as {uuid.uuid4().hex[:16]}"


def _content_digest(graph: Graph) -> str:
    """Return a digest of edges and columns of a graph without a folder; Unsupported if a store lacks them.

    A partitioned graph with a selection of edges is told from others by the edges into its first partition,
    which rank 0 has for any number of ranks.
    """
    schema, origin = graph.schema, graph.origin
    found = [repr(schema), "" if origin is None else origin.fingerprint]
    for edge_type in schema.edge_types:
        ranks, rows = graph.rank_edges, graph.partition_bounds(edge_type[2])[1]
        csc = graph.csc(edge_type) if ranks is None else ranks.held.rows(edge_type)[0][0]
        indptr = csc.indptr[: rows + 1]
        found += [str(edge_type), *_digests(indptr, csc.indices[: indptr[-1]])]
    known = () if origin is None else (*origin.schema.node_types, *origin.schema.edge_types)
    types: list[Type] = [*schema.node_types, *schema.edge_types]
    for type_ in types:
        if type_ not in known:  # columns of the others are those of the folder
            columns = graph.columns.get(type_, {})
            found += [f"{name} of {type_}" for name in columns]
            found += _digests(*columns.values())
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def _digests(*tensors: Tensor) -> list[str]:
    filled = (tensor for tensor in tensors if tensor.numel())  # torch cannot view an empty tensor as bytes
    return [digest(tensor.contiguous()) for tensor in filled]


def _checked_nodes(graph: Graph, node_types: Sequence[NodeType], nodes: SeedIds | None) -> Tensor | None:
    for node_type in node_types:
        if node_type not in graph.schema.node_types:
            there = ", ".join(graph.schema.node_types)
            raise ValueError(f"node type {node_type!r}: not in the graph; it has {there}")
    if nodes is None:
        return None
    if len(node_types) > 1:
        raise ValueError(
            f"nodes with the node types {', '.join(node_types)}: ids need a single node type, name it"
        )
    return node_ids(f"seeds of {node_types[0]!r}", nodes, graph.num_nodes(node_types[0]))


def _rows_of(
    model: nn.Module, node_types: Sequence[NodeType], values: Values
) -> tuple[nn.Module, int | None]:
    """Return the model that computes the rows, and the number of layers to apply; None: the whole model."""
    if isinstance(model, LinkPredictor | EdgePredictor):
        model = model.encoder
        if isinstance(model, Stack) and set(node_types) <= set(model.sizes.target_types):
            return model, None  # the decoder's input is the embedding
    return model, _depth(model, node_types) if values == "embeddings" else None


def _structure_digest(model: nn.Module) -> str:
    """Return a digest of the names, classes and attributes of all modules and tensors, for any process."""
    internal = vars(nn.Module()).keys()
    found = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in model.state_dict().items()]
    for name, module in model.named_modules():
        found.append(f"{name}: {type(module).__module__}.{type(module).__qualname__} {module.extra_repr()}")
        own = {key: value for key, value in vars(module).items() if key not in internal}
        found.append(_described(own))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _described(value: object) -> str:
    """Return a text of plain values and containers that is the same in any process; of others, the type."""
    match value:
        case None | bool() | int() | float() | str() | bytes() | Enum() | torch.dtype():
            return repr(value)
        case Mapping():
            return str(sorted((_described(key), _described(of)) for key, of in value.items()))
        case set() | frozenset():
            return str(sorted(map(_described, value)))
        case list() | tuple():
            return str([_described(one) for one in value])
    if is_dataclass(value) and not isinstance(value, type):
        return _described({field.name: getattr(value, field.name) for field in fields(value)})
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _depth(model: nn.Module, node_types: Sequence[NodeType]) -> int:
    if not isinstance(model, Stack):
        return int(getattr(model, "num_layers", 0))
    depths = {node_type: model.depth(node_type) for node_type in node_types}
    for node_type, depth in depths.items():
        if depth == 0:
            raise ValueError(
                f"node type {node_type!r}: the model computes no outputs for it; its targets are "
                f"{', '.join(model.sizes.target_types)}"
            )
    if len(set(depths.values())) > 1:
        raise ValueError(
            f"node types {', '.join(node_types)}: they have different numbers of layers, {depths}; "
            "infer one type at a time"
        )
    return depths[node_types[0]]


def _digest(*tensors: Tensor) -> str:
    return hashlib.sha256("\n".join(_digests(*(t.detach().cpu() for t in tensors))).encode()).hexdigest()[:16]


def evaluate(
    model: nn.Module,
    graph: Graph,
    *,
    split: str | SeedTable,
    task: NodeObjective | None = None,
    fanouts: Sequence[Fanout] | None = None,
    columns: Sequence[str] | NamesByType | None = None,
    loader: Loader | None = None,
    progress: Progress = unwatched,
) -> float:
    """Compute a task's score on a split, or on the rows of a table.

    Without `fanouts` the score is exact. A model that exposes its layers (`khop.models.Sequential`,
    `Layered`) is evaluated layer by layer over all neighbors. For another model, `model(batch)` runs on
    batches with all neighbors, after a warning. The number of hops is then that of `loader`, or the model's
    `num_layers`.

    The rows of a `khop.SeedTable` are scored by their labels; its weights are ignored. If rows have times,
    `model(batch)` runs on neighborhoods up to these times. The rule of `loader` must then be temporal, such
    as `khop.Temporal`.

    In a graph split by time during the import, messages pass only over edges that the split may use: edges
    before `val` for training, edges before `test` for validation, and all edges for test. Collective: the
    ranks share the work, and every rank gets the same score, for any number of ranks. A model in
    DistributedDataParallel is unwrapped.

    Args:
        model: The model.
        graph: The graph.
        split: Name of the split, or a `khop.SeedTable` with labels.
        task: Task, by default accuracy on the graph's only label column. A custom task is an objective
            with the members of `khop.NodeClassification`.
        fanouts: Fanouts of the hops: `model(batch)` then runs on sampled neighborhoods, which are the
            same in every evaluation. Default None: all neighbors.
        columns: Columns of the batches, by default the model's `input_columns`, else the loader's
            columns, else all node columns except labels.
        loader: Loader that the model is trained with; evaluation uses the rule of its sampler. Default None:
            the model's rule.
        progress: Function called with the number of finished rows and of all rows; by default none.
    Returns:
        The score.
    Raises:
        ValueError: Model, task and graph do not fit together, or an output is NaN.
    Example:
        >>> y = torch.tensor([0, 1, 0, 1])
        >>> columns, splits = {"x": torch.eye(2)[y], "y": y}, {"val": [2, 3]}
        >>> table = khop.NodeTable(columns=columns, splits=splits, num_classes={"y": 2})
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(4), torch.arange(4))}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", {"item": table}, edges))
        >>> model = khop.models.SAGE.for_graph(graph, hidden=16)
        >>> 0 <= khop.evaluate(model, graph, split="val") <= 1
        True
    """
    graph_of("graph", graph)
    table = split.of_graph(graph) if isinstance(split, SeedTable) else None
    graph = edges_of_split(graph, split) if isinstance(split, str) else graph
    if task is not None:
        remedy = "must be a khop.NodeClassification, or an objective with all members of one"
        instance_of("task", task, NodeObjective, remedy)
    model, group = unwrapped(model), this_group()
    task = NodeClassification.of(graph.schema) if task is None else task
    scored = _scored(graph, split if table is None else table, task)
    hops, rule = _hops(model, fanouts, loader, group), _rule_of(loader, model)
    if scored.times is not None and hops is None:
        hops = all_neighbors(model, None if loader is None else loader.graph_sampler, warn=False)
    if scored.times is None and hops is not None:
        check_timeless(rule)

    def outputs_of(nodes: Tensor, times: Tensor | None) -> Tensor:
        if hops is None:
            draws = _draws(rule, graph, model, loader, fanouts)
            place = (model, graph, graph.features, task.node_type)
            compute = partial(layerwise_inference, *place, rule=rule, fanouts=draws.fanouts)
        else:
            chosen = columns_read(model, graph.schema, columns, None if loader is None else loader.columns)
            like = None if loader is None else loader.graph_sampler
            sampler = evaluation_sampler(graph, hops, chosen, like, rule)
            place_of = (model, sampler, graph.features, task.node_type)
            compute = partial(sampled_inference, *place_of, columns=chosen, times=times)
        return compute(nodes=nodes, progress=progress, group=group, lanes=graph.lanes)

    name = split if isinstance(split, str) else "khop.SeedTable"
    group.meet("evaluating")
    with group.exchanging("evaluating"):
        outputs = split_outputs(task, graph.features, {name: scored}, outputs_of)
        return scores_of(task, outputs)[name]


def _scored(graph: Graph, split: str | SeedTable, task: NodeObjective) -> ScoredNodes:
    """Return the nodes of a split, or the nodes of a table with their labels."""
    node_type = task.node_type
    if isinstance(split, SeedTable):
        if node_type not in split.nodes or split.labels is None:
            what = f"has rows of {list(split.nodes)}" if node_type not in split.nodes else "has no labels"
            raise ValueError(f"khop.SeedTable to score: {what}; give labeled rows of {node_type!r}")
        times = None if split.times is None else split.times[node_type]
        return ScoredNodes(split.nodes[node_type], split.labels[node_type], times)
    nodes_by_type = graph.split(split)
    if node_type not in nodes_by_type:
        raise ValueError(
            f"split {split!r}: has nodes of {list(nodes_by_type)}, but the task predicts {node_type!r}"
        )
    return ScoredNodes(ids_here(nodes_by_type[node_type]))


def evaluate_links(
    model: nn.Module,
    graph: Graph,
    links: LinkList,
    *,
    metrics: Sequence[LinkMetric] | None = None,
    fanouts: Sequence[Fanout] | None = None,
    rule: Rule | None = None,
    columns: Sequence[str] | NamesByType | None = None,
    loader: Loader | None = None,
    progress: Progress = unwatched,
) -> dict[str, float]:
    """Compute metrics of a link-prediction model, which compare each link with its negatives.

    `links` contains the negatives (see `khop.with_negatives`), one or more for each link; if their numbers
    differ, pad the rows with -1. Alternatively, links have labels, 1 for a link and 0 for a negative, as
    returned by `khop.links_from_pyg`; they are then compared with each other. With several edge types, each
    metric is the mean over them.

    Without `fanouts` the result is exact: the rows of all nodes are computed layer by layer over the
    edges of `graph`, then every pair is scored. If the encoder does not expose its layers, links are scored
    from batches with all neighbors, after a warning. Collective, like `evaluate`.

    Args:
        model: A `khop.models.LinkPredictor`.
        graph: Message graph. It should not contain the links, like the graph of a split.
        links: The links.
        metrics: "mrr", "roc-auc", "average-precision", and "hits@K", "recall@K" and "ndcg@K" for any K,
            such as "hits@50". Default: "mrr" and "roc-auc"; for labels "roc-auc" and "average-precision".
        fanouts: Fanouts of the hops: links are then scored from sampled batches, as in training, which are
            the same in every evaluation. This works for any encoder, and for links with times with
            `rule=khop.Temporal(column)`. Default None: all neighbors.
        rule: Rule that determines the weights of neighbors, by default that of the sampler of `loader`, else
            the model's. A rule that selects edges in exact inference too, such as `TopK`, needs `loader` or
            `fanouts`.
        columns: Columns of the batches for the encoder, with the defaults of `evaluate`.
        loader: Loader that the model is trained with, as in `evaluate`; default None.
        progress: Function called with the number of finished rows and of all rows; by default none.
    Returns:
        The metrics by name.
    Raises:
        ValueError: Model, links and graph do not fit together, or a score is NaN.
    Example:
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(20), torch.arange(1, 21) % 20)}
        >>> nodes = {"item": khop.NodeTable(columns={"x": torch.rand(20, 8)})}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> split = khop.split_links(graph, "item to item", val=4, test=4)
        >>> encoder = khop.models.SAGE.for_graph(split.train, hidden=16, target=["item"], outputs=16)
        >>> model = khop.models.LinkPredictor(encoder, {"item to item": khop.models.Dot()})
        >>> sorted(khop.evaluate_links(model, split.val, split.val_links))
        ['mrr', 'roc-auc']
    """
    graph_of("graph", graph)
    predictor, group = unwrapped(model), this_group()
    if not isinstance(predictor, LinkPredictor):
        raise ValueError(
            f"evaluate_links of a {type(predictor).__name__}: must be a khop.models.LinkPredictor, "
            "an encoder with a decoder per edge type"
        )
    _check_list(links)
    if metrics is None:
        metrics = ("roc-auc", "average-precision") if is_labeled(links) else ("mrr", "roc-auc")
    check_metrics(metrics)
    links = links.of_graph(graph)
    check_negatives(graph, links)
    if isinstance(links, Links) and is_labeled(links):
        check_pair_labels(links, metrics)
    given, links = links, comparable(links)
    encoder = predictor.encoder
    if fanouts is None:
        check_untimed(links)
    rule = _rule_of(loader, predictor) if rule is None else rule
    draws = _draws(rule, graph, encoder, loader, fanouts)
    hops = _hops(encoder, fanouts, loader, group)
    of_loader = None if loader is None else loader.columns
    group.meet("evaluating")
    with group.exchanging("evaluating"):
        if hops is None:
            work = InferenceWork(8192, progress, group=group, lanes=graph.lanes)
            rows, sharing = end_rows(encoder, graph, graph.features, links, work, draws)
            return mean_metrics(link_scores(predictor, rows, links, sharing), metrics, given)
        chosen = columns_read(encoder, graph.schema, columns, of_loader)
        scores_of_links = sampled_link_scores(
            predictor,
            _link_sampler(graph, hops, chosen, GivenNegatives(NegativeMode.TRIPLET), rule),
            graph.features,
            links,
            chosen,
            InferenceWork(1024, progress, group=group, lanes=graph.lanes),
        )
        return mean_metrics(scores_of_links, metrics, given)


def evaluate_edges(
    model: nn.Module,
    graph: Graph,
    links: LinkList,
    task: EdgeObjective,
    *,
    fanouts: Sequence[Fanout] | None = None,
    rule: Rule | None = None,
    columns: Sequence[str] | NamesByType | None = None,
    loader: Loader | None = None,
    progress: Progress = unwatched,
) -> float:
    """Compute the score of a task over edge labels.

    Edges are scored exactly or from sampled batches, as in `evaluate_links`. Collective.

    Args:
        model: A `khop.models.EdgePredictor`.
        graph: Message graph.
        links: Links with labels, for example from `khop.split_links(label=...)`.
        task: Task, such as `khop.EdgeClassification`.
        fanouts: Fanouts of the hops, as in `evaluate_links`. Default None: all neighbors.
        rule: Rule that determines the weights of neighbors; its default is that of `evaluate_links`.
        columns: Columns of the batches for the encoder, with the defaults of `evaluate`.
        loader: Loader that the model is trained with, as in `evaluate`; default None.
        progress: Function called with the number of finished rows and of all rows; by default none.
    Returns:
        The score.
    Raises:
        ValueError: Model, links, task and graph do not fit together, or an output is NaN.
    Example:
        >>> def score(model, split):
        ...     task = khop.EdgeClassification("user rates item", "stars")
        ...     return khop.evaluate_edges(model, split.val, split.val_links, task)
    """
    graph_of("graph", graph)
    predictor, group = unwrapped(model), this_group()
    if not isinstance(predictor, EdgePredictor):
        raise ValueError(
            f"evaluate_edges of a {type(predictor).__name__}: must be a khop.models.EdgePredictor, "
            "an encoder with a head per edge type"
        )
    instance_of("task", task, EdgeObjective, "must be a khop.EdgeClassification or EdgeRegression")
    _check_list(links)
    links = links.of_graph(graph)
    check_labeled(links, task.edge_type)
    encoder = predictor.encoder
    if fanouts is None:
        check_untimed(links)
    rule = _rule_of(loader, predictor) if rule is None else rule
    draws = _draws(rule, graph, encoder, loader, fanouts)
    hops = _hops(encoder, fanouts, loader, group)
    of_loader = None if loader is None else loader.columns
    group.meet("evaluating")
    with group.exchanging("evaluating"):
        work = InferenceWork(8192 if hops is None else 1024, progress, group=group, lanes=graph.lanes)
        if hops is None:
            found = exact_edge_outputs(predictor, graph, graph.features, links, work, draws)
        else:
            chosen = columns_read(encoder, graph.schema, columns, of_loader)
            sampler = _link_sampler(graph, hops, chosen, None, rule)
            found = sampled_edge_outputs(predictor, sampler, graph.features, links, chosen, work)
        outputs = labeled_outputs(links, task.edge_type, found[task.edge_type])
        return task.score(outputs.outputs, outputs.labels, outputs.edges)


def _check_list(links: object) -> None:
    instance_of("links", links, LinkList, "give khop.Links(...), or the links of a split")


def _rule_of(loader: Loader | None, model: nn.Module) -> Rule:
    """Return the rule of training: that of the loader's sampler, else that of the model."""
    return rule_of(model) if loader is None else loader.graph_sampler.rule


def _link_sampler(
    graph: Graph, hops: Sequence[Fanout], columns: ColumnChoice, negatives: Negatives | None, rule: Rule
) -> LinkSampler:
    """Return a sampler that returns edge ids if the model reads edge columns."""
    return LinkSampler(graph, hops, negatives=negatives, rule=rule, edge_ids=bool(columns.of_edges))


def _draws(
    rule: Rule, graph: Graph, model: nn.Module, loader: Loader | None, fanouts: Sequence[Fanout] | None
) -> ExactDraws:
    """Return the draws of exact evaluation, with the fanouts of the loader's sampler if it has them."""
    if loader is not None:
        every = [-1] * getattr(model, "num_layers", 0)
        return ExactDraws(rule, loader.graph_sampler.exact_fanouts or every)
    if fanouts is None and takes_fanouts(rule, graph.schema, graph.schema.edge_types):
        raise unknown_fanouts(rule)
    return ExactDraws(rule)


def _hops(
    model: nn.Module, fanouts: Sequence[Fanout] | None, loader: Loader | None, group: Group
) -> Sequence[Fanout] | None:
    """Return the fanouts of batches; None if the model is computed layer by layer, without batches."""
    if fanouts is not None or isinstance(model, Layered):
        return fanouts
    return all_neighbors(model, None if loader is None else loader.graph_sampler, warn=group.rank == 0)
