"""Memory estimate before a run allocates anything: the minimum of this machine, and the GPU placement."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import torch

from khop.api.loader import Loader
from khop.api.open_graph import Graph, check_request_of_parts, placed_on
from khop.api.split_links import time_cut_offs
from khop.components import LINK_PREDICTION
from khop.distributed.processes.group import this_group
from khop.graph.atomic import in_bytes
from khop.graph.folder import Folder
from khop.kernels.memory import memory_limit_bytes
from khop.loading.device.device_placement import AUTO, DevicePlacement, StorePlace
from khop.loading.device.memory_plan import WorkSizes
from khop.loading.device.placed_stores import PlacedStores
from khop.run.read import RawRun
from khop.run.run_type import value_at
from khop.run.tasks.resolve_task import targets_of
from khop.run.values import RunConfig
from khop.sampling.sampler import fanouts_by_type
from khop.schema import NodeType

_FLOAT = 4
_TRAINED = 4  # values per parameter: the parameter, its gradient and Adam's two moments
_ROW_TRAINED = {"dense": 4, "sparse": 3, "sharded": 3}  # of embeddings: only dense ones have whole gradients
_PAIR_BYTES = 16  # two int64 ids
_OF_BATCH = "the pairs of a batch take"


def check_memory(config: RunConfig, graph: Folder, raw: RawRun, limit: int | None = None) -> None:
    """Raise ValueError if a single setting of the run needs more memory than this machine has.

    The count is a lower bound, so a run that passes may still be too large.
    """
    limit = memory_limit_bytes() if limit is None else limit
    needed = {
        "model.hidden": (weight_bytes(config, graph), "the weights and their updates take"),
        "model.embedding": (_replicated_embedding_numbers(config, graph) * _FLOAT, "the embeddings take"),
    }
    if config.task.kind == LINK_PREDICTION:  # other tasks may ignore the table links
        links = config.links
        targets = targets_of(config.task.target, graph.schema)
        count = sum(map(graph.num_edges, targets))
        pair_bytes = _PAIR_BYTES * float(min(config.training.batch_size, count))  # one pair for each link
        negatives = count * (links.val + links.test) * links.drawn_eval_negatives
        table = _PAIR_BYTES / 2 * sum(graph.num_nodes(t[0]) for t in targets) * links.hard_negatives
        needed["links.negatives_per_positive"] = pair_bytes * links.negatives_per_positive, _OF_BATCH
        needed["links.shared_negatives"] = pair_bytes * links.shared_negatives, _OF_BATCH
        needed["links.hard_negatives"] = table, "the tables of hard negatives take"
        needed["links.eval_negatives"] = (_PAIR_BYTES / 2 * negatives, "the pairs of the held-out links take")
    for path, (size, what) in needed.items():
        value = value_at(config, path)
        if size > limit:
            raise ValueError(
                f"{path} is {value}: {what} {in_bytes(size)} at least, and this machine has "
                f"{in_bytes(limit)}; lower it ({raw.where(path)})"
            )


def weight_bytes(config: RunConfig, graph: Folder) -> float:
    """Return the least bytes of the weights, their gradients and Adam's moments."""
    outputs = config.model.hidden if config.task.kind == LINK_PREDICTION else 1
    inner = [config.model.hidden] * (len(config.sampler.fanouts) - 1)
    widths = [_input_width(config, graph), *inner, outputs]
    return _FLOAT * _TRAINED * float(sum(into * out for into, out in pairwise(widths)))


def embedding_bytes(config: RunConfig, graph: Folder, ranks: int) -> float:
    """Return the least bytes of embeddings on one of `ranks` ranks, with gradients and Adam's moments."""
    is_sharded = config.model.embedding_update == "sharded"
    numbers = _embedding_numbers(config, graph) / (ranks if is_sharded else 1)
    return _FLOAT * _ROW_TRAINED[config.model.embedding_update] * numbers


def _replicated_embedding_numbers(config: RunConfig, graph: Folder) -> float:
    """Return how many embedding values are certainly stored on each rank."""
    is_sharded = config.model.embedding_update == "sharded"
    return 0.0 if is_sharded else _embedding_numbers(config, graph)


def _embedding_numbers(config: RunConfig, graph: Folder) -> float:
    is_all = config.model.embedded_types == "all"
    types = (t for t in graph.schema.node_types if is_all or not _has_column(config, graph, t))
    return float(sum(map(graph.num_nodes, types))) * (config.model.embedding or 0)


def _input_width(config: RunConfig, graph: Folder) -> int:
    columns = graph.schema.columns
    having = [t for t in graph.schema.node_types if _has_column(config, graph, t)]
    return min((columns[t][config.model.column].width for t in having), default=1)


def _has_column(config: RunConfig, graph: Folder, node_type: NodeType) -> bool:
    return config.model.column in graph.schema.columns.get(node_type, {})


_INDEX_BYTES = 8  # of a node of a batch, and of a row of a block
_EDGE_BYTES = 4  # of a drawn edge
_ACTIVATIONS = 4  # per layer: outputs of sum and product, kept for the gradients, and their gradients


def is_placed(config: RunConfig) -> bool:
    """Return True if a run places the stores of its graph: on a GPU, or columns for the CPU."""
    return config.device != "cpu" or config.gpu.features in ("host", "mapped", "disk")


def placed_graph(
    config: RunConfig, graph: Graph, folder: Folder, raw: RawRun, leave: str | None = None
) -> tuple[Graph, LaterPlacement | None]:
    """Place the stores of a run's graph as its table `gpu` requests. Raises ValueError if this is impossible.

    Also return the placement of other graphs of the run, such as the training edges: if the run splits its
    edges, nothing else is placed. `leave` is a reason to keep all stores on the CPU if none is requested on
    the GPU.
    """
    gpu = config.gpu
    labels = () if gpu.features == "disk" else (config.task.label,)  # small, and read one by one
    names = [name for name in (config.model.column, *labels) if name is not None]
    known = graph.schema.node_columns
    places = {name: gpu.features for name in names if name in known and gpu.features != AUTO}
    is_gpu = config.device != "cpu"
    is_cached_here = is_gpu and graph.lanes is None  # else the loader caches rows of other ranks
    cache = {config.model.column: gpu.cache} if is_cached_here and config.model.column in known else {}
    request = DevicePlacement.of(config.device, gpu.topology if is_gpu else AUTO, places, cache, gpu.check)
    splits_edges = config.task.target not in graph.schema.node_types or time_cut_offs(graph) is not None
    work, where = work_sizes(config, folder), where_of_gpu(raw)
    is_left = leave is not None or (graph.partition_options is not None and bool(places))
    try:
        if not is_gpu or (is_left and not request.is_explicit):
            return placed_on(graph, request, work, leave), None
        if not splits_edges:
            graph = placed_on(graph, request, work)
            return graph, LaterPlacement(graph, where, graph)
        graph = _placed_later(graph, request, work)
        return graph, LaterPlacement(graph, where)
    except ValueError as error:
        raise ValueError(f"{error} ({where})") from error


def where_of_gpu(raw: RawRun) -> str:
    """Return where the settings of a placement on a GPU were set."""
    return raw.where("gpu.topology", "gpu.features", "gpu.cache")


def _placed_later(graph: Graph, request: DevicePlacement, work: WorkSizes) -> Graph:
    """Attach the request to the graph of a run that splits its edges: only training edges are placed.

    Columns that the CPU reads are put where they are requested.
    """
    if request.is_explicit and graph.lanes is not None:
        check_request_of_parts(request, not graph.is_collective)
    on_host = {name: place for name, place in request.columns.items() if not place.is_read_by_gpu}
    if on_host:
        asked = DevicePlacement(request.device, columns=on_host)
        graph = placed_on(graph, asked, work, "training edges are placed later")
    stores = PlacedStores.none(request, work, torch.device(request.device))
    how = "as requested" if request.is_explicit else "as much on the card as fits"
    return replace(graph, stores=replace(stores, line=f"{request.device}: training edges, {how}"))


class LaterPlacement:
    """The placement of training edges, which is done after the task has split the edges."""

    def __init__(self, whole: Graph, where: str, done: Graph | None = None) -> None:
        self._whole = whole  # its stores have the request
        self._where = where  # the request was set
        self._done = done  # a graph that stays as it is
        self._last: tuple[Graph, Graph] | None = None  # a graph, and the same one placed

    @property
    def line(self) -> str | None:
        """Where the stores of the last graph are, and why; None before the first."""
        return None if self._last is None else self._last[1].placement

    def placed(self, graph: Graph) -> Graph:
        """Return a graph with its stores placed as requested; a placed graph is returned unchanged.

        The last result is cached, so that samplers of the same graph share it. Raises ValueError if the
        request is impossible. Collective if the graph is placed on several ranks; see `Graph.on`.
        """
        if graph is self._done or _is_placed(graph):
            return graph
        if self._last is None or not any(graph is each for each in self._last):
            self._last = None  # free its memory before the other graph is placed
            try:
                self._last = graph, self._placed(graph)
            except ValueError as error:
                raise ValueError(f"{error} ({self._where})") from error
        return self._last[1]

    def _placed(self, graph: Graph) -> Graph:
        stores = self._whole.stores
        assert stores is not None
        request, work = stores.plan.request, stores.plan.work
        if graph is self._whole:
            return placed_on(replace(graph, stores=None), request, work)
        if self._whole.partition_options is None:  # columns that the CPU reads are in place
            on_host = {n: StorePlace.HOST for n, place in request.columns.items() if not place.is_read_by_gpu}
            request = replace(request, columns={**request.columns, **on_host})
        # The edges of a part are not those of its folder.
        placed = placed_on(replace(graph, stores=None, folder=None), request, work)
        return replace(placed, folder=graph.folder)


def without_later_placement(graph: Graph) -> Graph:
    """Return a run's graph without a placement that the task would do later; a placed graph unchanged."""
    return replace(graph, stores=None) if _is_requested(graph) and not _is_placed(graph) else graph


def check_is_placed(config: RunConfig, graph: Graph, loader: Loader) -> None:
    """Raise ValueError if a run requests a GPU placement, and the graph of its batches is not placed."""
    if _is_requested(graph) and not _is_placed(Graph.of(loader.graph_sampler.graph)):
        raise ValueError(
            f"gpu.topology is {config.gpu.topology!r}, gpu.features is {config.gpu.features!r}: the sampler "
            f"of the task {config.task.kind} draws from a graph that is not placed; make it with "
            "context.sampler(), or leave both settings out"
        )


def _is_requested(graph: Graph) -> bool:
    return graph.stores is not None and graph.stores.plan.request.is_explicit


def _is_placed(graph: Graph) -> bool:
    if graph.rank_rows is not None:
        return True
    return graph.stores is not None and (graph.stores.edges is not None or bool(graph.stores.columns))


def check_gpu_is_there(config: RunConfig) -> None:
    """Raise ValueError for settings that need a GPU if the device is the CPU.

    Only for training: evaluation and inference ignore the placement, because they may run on another machine.
    """
    for name, place in (("topology", config.gpu.topology), ("features", config.gpu.features)):
        if config.device == "cpu" and place in (StorePlace.DEVICE, StorePlace.SHARDED, StorePlace.PINNED):
            raise ValueError(
                f"gpu.{name} is {place!r}, device is 'cpu': only a GPU reads that memory; give --device "
                f"cuda, or --{name} auto"
            )
    if config.device == "cpu" and config.precision == "tf32":
        raise ValueError(
            "precision is 'tf32', device is 'cpu': only GPUs compute products in TF32; give --device cuda, "
            "or --precision float32"
        )
    if config.device == "cpu" and config.gpu.launches == "recorded":
        raise ValueError(
            "gpu.launches is 'recorded', device is 'cpu': only launches on a GPU are recorded; give --device "
            "cuda, or leave --launches out"
        )


def work_sizes(config: RunConfig, folder: Folder) -> WorkSizes:
    """Estimate the memory of batches (an upper bound), model and optimizer on a rank.

    The model's bytes are weights and embeddings, with their gradients and Adam's moments.
    """
    schema, training = folder.schema, config.training
    counts = {t: folder.num_nodes(t) for t in schema.node_types}
    nodes: dict[NodeType, float] = dict.fromkeys(counts, 0.0)
    if config.task.target in nodes:
        nodes[config.task.target] = min(training.batch_size, counts[config.task.target])
    else:
        nodes = {t: float(min(2 * training.batch_size, count)) for t, count in counts.items()}
    edges, rows = 0.0, sum(nodes.values())
    for fanouts in fanouts_by_type(schema, config.sampler.fanouts):
        drawn = {t: nodes[t[2]] * _degree(folder, t, fanout) for t, fanout in fanouts.items()}
        edges += sum(drawn.values())
        added = {t: sum(count for edge, count in drawn.items() if edge[0] == t) for t in counts}
        nodes = {t: min(float(counts[t]), nodes[t] + added[t]) for t in counts}
        rows += sum(nodes.values())
    features = sum(nodes[t] * _row_bytes(config, folder, t) for t in counts)
    batch_bytes = features + _EDGE_BYTES * edges + _INDEX_BYTES * rows
    activations = _ACTIVATIONS * rows * config.model.hidden * torch.float32.itemsize
    trained = weight_bytes(config, folder) + embedding_bytes(config, folder, this_group().world_size)
    wide = 2 if config.precision == "float64" else 1
    return WorkSizes(int(batch_bytes), config.prefetch, int(wide * activations), int(wide * trained))


def _degree(folder: Folder, edge_type: tuple[str, str, str], fanout: int) -> float:
    """Return the expected edges per row: the fanout, or the mean degree if that is less."""
    mean = folder.num_edges(edge_type) / max(1, folder.num_nodes(edge_type[2]))
    return mean if fanout < 0 else float(fanout)


def _row_bytes(config: RunConfig, folder: Folder, node_type: NodeType) -> int:
    spec = folder.schema.columns.get(node_type, {}).get(config.model.column)
    return 0 if spec is None else math.prod(spec.shape) * torch.float32.itemsize
