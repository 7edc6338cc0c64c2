"""Construction of all objects of a run from its config.

The config is first resolved against the graph and the machine: open settings get values, and impossible ones
raise an error. Only this module imports every part of khop.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from khop.api.inference import Inference, Values
from khop.api.loader import Loader
from khop.api.open_graph import Graph, names_of, open_graph
from khop.api.split_links import edges_of_split
from khop.components import TASKS
from khop.data.builtin import builtin_folder, builtin_names
from khop.distributed.processes.group import this_group
from khop.graph.atomic import ProgressCallback
from khop.graph.folder import Folder, GraphFolder, import_record
from khop.graph.layout import owner_of
from khop.graph.node_ids import LABEL, label_records
from khop.graph.partitions.parts_folder import PartsFolder, known_folder
from khop.graph.snapshots import current_folder, folder_with, has_only_grown
from khop.inference.chunks import Progress
from khop.inference.stages import ChunkLimits
from khop.kernels.memory import own_memory_bytes
from khop.loading.device.streams import gpu_remedy, num_gpus
from khop.models.encoder import Encoder
from khop.models.node_embedding import NodeEmbedding
from khop.process_tuning import sampler_threads, usable_cores
from khop.run.check import AUTO, checked, facts_of
from khop.run.contexts import Evaluation, PredictingTask, RunTask, TaskContext, exact_draws_of
from khop.run.fields import Fanout
from khop.run.memory import (
    LaterPlacement,
    check_gpu_is_there,
    check_is_placed,
    check_memory,
    is_placed,
    placed_graph,
)
from khop.run.memory_need import fit_memory, memory_need
from khop.run.parts import GraphOnServers, device_cache_bytes, graph_on_servers
from khop.run.read import (
    CONFIG,
    EMBEDDING,
    SCORED_FILES,
    RawRun,
    notes_on,
    value_in,
    with_options,
)
from khop.run.run_type import built, component_of, options_of, value_at, with_values
from khop.run.tables import TaskTable
from khop.run.tasks.resolve_task import (
    LINKS_SPLIT,
    SPLIT_FIELDS,
    ResolveContext,
    resolved_seeds,
    task_notes,
    with_node_defaults,
    with_task,
)
from khop.run.values import LinksTable, RunConfig, Training
from khop.sampling.sampler import fanout_by_type
from khop.schema import NodeType, Schema
from khop.training.checkpoint import restore_model, shared_checkpoint
from khop.training.edge_tasks import FILTERED_RANKING, FULL_RANKING, check_task_metric
from khop.training.metrics import known_metric
from khop.training.optimizer_settings import OptimizerSettings, Plateau, Schedule
from khop.training.replace_folder import pushed_folders, read_state
from khop.training.run_loggers import LoggerKind, check_logger, check_tensorboard
from khop.training.settings import CheckpointPolicy, TrainerSettings
from khop.training.step_clock import Observer
from khop.training.tasks import Task
from khop.training.trainer import Trainer
from khop.training.trainer_state import check_facts, content_of
from khop.user_cache import cache_folder


def has_node_tables(model: nn.Module, graph: Graph) -> bool:
    """Return True if a model has a row for each node of a type of the graph."""
    counts = {graph.num_nodes(node_type) for node_type in graph.schema.node_types}
    return any(
        isinstance(one, NodeEmbedding)
        or (isinstance(one, Encoder) and len(one.tables) > 0)
        or (isinstance(one, nn.Embedding) and one.num_embeddings in counts)
        for one in model.modules()
    )


def trained_snapshot(graph: Graph, checkpoint: Path) -> Path | None:
    """Return the snapshot that a checkpoint was trained on, if it is not `graph` itself. Collective.

    None if the graph has no such snapshot. Only rank 0 needs the checkpoint.
    """
    if not isinstance(graph.folder, GraphFolder):
        return None
    group = this_group()
    with group.exchanging("reading the graph of the checkpoint"):
        own = json.dumps(recorded_facts(checkpoint).get("graph") if group.rank == 0 else None)
        recorded: str | None = json.loads(group.share_bytes(own.encode()))
    if recorded is None or recorded == graph.folder.fingerprint:
        return None
    owner = owner_of(graph.folder.path) or graph.folder.path
    found = folder_with(owner, recorded)
    return None if found == owner else found


def newer_snapshot(graph: Graph) -> Path | None:
    """Return the newest snapshot of a graph folder if an earlier one is open."""
    owner = None if graph.folder is None else owner_of(graph.folder.path)
    newest = None if owner is None else current_folder(owner)
    return newest if graph.folder is not None and newest != graph.folder.path else None


CLASSES, CATEGORIES = "classes", "categories of columns"  # names of facts on the label and the inputs


def _categories(folder: Folder | None) -> dict[str, str]:
    """Return the digests of the categories and words by column, as an import records them; {} for others."""
    record = {} if folder is None else import_record(folder)
    found = {}
    for type_, of in (item for kind in ("nodes", "edges") for item in record.get(kind, {}).items()):
        for column in of.get("columns", []):
            words = {key: value for key, value in column.items() if isinstance(value, list) and value}
            if words:
                digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]
                found[f"{type_}.{column['name']}"] = digest
    return found


def recorded_facts(checkpoint: Path) -> Mapping[str, str]:
    """Return the facts of the run of a checkpoint; {} if no state of the checkpoint is intact."""
    for kept in pushed_folders(checkpoint) or [checkpoint]:
        try:
            training = read_state(kept)["training"]
        except ValueError:
            continue
        return {name: of for name, of in training.get("facts", {}).items() if isinstance(of, str)}
    return {}


def graph_folder(
    config: RunConfig, raw: RawRun, cache: Path, notice: ProgressCallback | None = None
) -> Folder:
    """Open the graph of a run, or connect to its servers.

    A built-in graph is unpacked into `cache` on first use. `notice` receives the progress of the unpacking.
    """
    if config.servers.addresses:
        return graph_on_servers(config, raw)
    if config.graph in builtin_names():
        return known_folder(builtin_folder(config.graph, cache, notice))
    path = Path(config.graph)
    if not path.is_dir():
        close = difflib.get_close_matches(config.graph, builtin_names(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"built-in graphs are {', '.join(builtin_names())}"
        raise ValueError(f"graph is {config.graph!r}: no such folder; {hint} ({raw.where('graph')})")
    return known_folder(path)


def resolve(config: RunConfig, graph: Folder, raw: RawRun) -> RunConfig:
    """Return the run with all settings filled in. Raises ValueError if the graph or machine does not fit it.

    The result has the absolute path of the graph, so that the run can be repeated from any folder.
    """
    config = _without_edges(config, raw)
    task = _resolved_task(config, graph, raw)
    config = _with_inputs(config, task.label, graph.schema, raw)
    _check_column(config, task, graph.schema, raw)
    _check_times(config, graph.schema, raw)
    for section, fanouts in (("sampler", config.sampler.fanouts), ("evaluation", config.evaluation.fanouts)):
        _check_fanouts(f"{section}.fanouts", fanouts, graph.schema, raw)
    _check_device(config.device, raw)
    if config.tensorboard:
        _check_tensorboard(raw)
    if config.logger != "none":
        _check_logger(config.logger, raw)
    is_named = config.graph in builtin_names() or bool(config.servers.addresses)
    name = config.graph if is_named else str(graph.path.absolute())
    layers = config.model.layers or len(config.sampler.fanouts)
    resolved = config.model_copy(
        update={
            "graph": name,
            "start_from": config.start_from and str(Path(config.start_from).absolute()),
            "task": task,
            "links": config.links.model_copy(update=_absolute(config.links)),
            "seeds": resolved_seeds(config.model_copy(update={"task": task}), graph, raw),
            "model": config.model.model_copy(update={"layers": layers}),
            "threads": config.threads or sampler_threads(usable_cores(), torch.device(config.device).type),
            "compute_threads": config.compute_threads or usable_cores(),
        }
    )
    check_memory(resolved, graph, raw)
    return resolved


def _absolute(links: LinksTable) -> dict[str, str]:
    """Return the paths of files of negatives, so that the run can be repeated from any folder."""
    named = {name: getattr(links, name) for name in ("val_negatives", "test_negatives")}
    return {name: str(Path(path).absolute()) for name, path in named.items() if path is not None}


def notes_of(config: RunConfig, schema: Schema, raw: RawRun) -> list[str]:
    """Return a sentence for each setting of a resolved run that follows from others or from the graph."""
    notes, model = [*notes_on(raw), *task_notes(config.task, schema, raw)], config.model
    if config.device != "cpu" and raw.values.get("device", AUTO) == AUTO:
        notes.append(f"device is {config.device}: torch finds a GPU; --device cpu computes on the CPU")
    given = raw.values.get("model", {})
    written = given if isinstance(given, Mapping) else {}
    if model.column != "x" and "column" not in written:
        notes.append(f"model.column is {model.column!r}: it is the only column of numbers of nodes")
    is_chosen = any(note.startswith("model.embedding ") for note in notes)
    if model.embedding and written.get("embedding") is None and not is_chosen:
        notes.append(
            f"model.embedding is {model.embedding}: no node type has a column, so embeddings are trained"
        )
    return notes


def _without_edges(config: RunConfig, raw: RawRun) -> RunConfig:
    """Draw no neighbors for a model that follows no edges, unless the run names fanouts."""
    declared = component_of(config, "model").declared
    if getattr(declared, "follows_edges", True) or value_in(raw.values, "sampler.fanouts") is not None:
        return config
    fanouts = (0,) * len(config.sampler.fanouts)
    return config.model_copy(update={"sampler": config.sampler.model_copy(update={"fanouts": fanouts})})


def _with_inputs(config: RunConfig, label: str | None, schema: Schema, raw: RawRun) -> RunConfig:
    """Fill in the input of the model if a graph without the default column leaves one choice."""
    written = raw.values.get("model", {})
    columns = [of for node_type in schema.node_types for of in schema.columns.get(node_type, {}).items()]
    is_open = isinstance(written, Mapping) and "column" not in written and config.model.embedding is None
    if not is_open or any(name == config.model.column for name, _ in columns):
        return config
    fit = {name for name, spec in columns if "float" in spec.dtype or spec.sparse_width is not None}
    labels = {LABEL, label}
    if len(fit - labels) == 1:
        chosen: dict[str, object] = {"column": (fit - labels).pop()}
    elif not fit - labels:
        adds_rows = getattr(component_of(config, "model").declared, "embeds_hidden", False)
        chosen = {"embedding": config.model.hidden if adds_rows else EMBEDDING}
    else:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update=chosen)})


def _resolved_task(config: RunConfig, graph: Folder, raw: RawRun) -> TaskTable:
    component = component_of(config, "task")
    if config.task.kind not in TASKS.builtin:
        config = config.model_copy(update={"task": with_node_defaults(config.task, graph.schema)})
    options = options_of(config.task, component.options)
    resolved = component.resolve(options, ResolveContext(config, graph, raw))
    return with_values(config.task, resolved)


def _check_fanouts(path: str, fanouts: tuple[Fanout, ...], schema: Schema, raw: RawRun) -> None:
    for hop, fanout in enumerate(fanouts, start=1):
        try:
            fanout_by_type(schema, fanout)
        except ValueError as error:
            raise ValueError(f"{path}, hop {hop}: {error} ({raw.where(path)})") from None


def _check_column(config: RunConfig, task: TaskTable, schema: Schema, raw: RawRun) -> None:
    column = config.model.column
    if column == task.label and column in schema.columns.get(task.target or "", {}):
        raise ValueError(
            f"model.column is {column!r}: it is the label of {task.target}, so it would leak into the "
            f"input; name another column, or give --embedding ({raw.where('model.column')})"
        )
    names = {name for node_type in schema.node_types for name in schema.columns.get(node_type, {})}
    if column not in names and not config.model.embedding:
        there, where = ", ".join(sorted(names)) or "none", raw.where("model.column")
        raise ValueError(
            f"model.column is {column!r}: no node type has it, the columns are {there} ({where})"
        )


def _check_times(config: RunConfig, schema: Schema, raw: RawRun) -> None:
    """Refuse a column of times that the graph does not have, whether given or implied by another setting."""
    column = config.sampler.time
    names = {name for of_type in schema.columns.values() for name in of_type}
    if column is None or column in names:
        return
    paths = ("sampler.time", "sampler.window", "sampler.temporal_strategy", "sampler.temporal_limit")
    path = next((path for path in paths if value_in(raw.values, path) is not None), "seeds.time")
    given = f"{path} is {value_at(config, path)!r}"
    raise ValueError(
        f"{given}: no edge or node type has the column {column!r}, the columns are "
        f"{', '.join(sorted(names)) or 'none'}; name the column of times by --time, or import the graph with "
        f"time = ... ({raw.where(path)})"
    )


def _check_tensorboard(raw: RawRun) -> None:
    try:
        check_tensorboard()
    except ValueError as error:
        raise ValueError(f"tensorboard is true: {error} ({raw.where('tensorboard')})") from None


def _check_logger(kind: LoggerKind, raw: RawRun) -> None:
    try:
        check_logger(kind)
    except ValueError as error:
        raise ValueError(f"logger is {kind!r}: {error} ({raw.where('logger')})") from None


def _check_device(device: str, raw: RawRun) -> None:
    wanted = torch.device(device)
    if wanted.type == "cpu":
        return
    there = num_gpus()
    if (wanted.index or 0) >= there:
        devices = f"torch finds {there} CUDA devices" if there else "torch finds no CUDA device"
        raise ValueError(
            f"device is {device!r}: {devices}; use cpu, or {gpu_remedy()} ({raw.where('device')})"
        )


@dataclass(frozen=True, eq=False)
class Run:
    """A run that is ready for training or evaluation."""

    config: RunConfig  # resolved
    graph: Graph
    run_task: RunTask
    later: LaterPlacement | None = None  # of training edges; None: nothing remains to be placed

    @property
    def model(self) -> nn.Module:
        """The model of the run."""
        return self.run_task.model

    @property
    def task(self) -> Task:
        """The training task."""
        return self.run_task.task

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the graph: equal for equal graphs."""
        found = self.graph.servers if self.graph.folder is None else self.graph.folder
        assert found is not None, "a run needs a graph folder or a graph on servers"
        return found.fingerprint

    @property
    def placement(self) -> str | None:
        """Where each store of the graph of training batches is, in one line; None if none is placed."""
        placed = None if self.later is None else self.later.line
        return self.graph.placement if placed is None and self.graph.stores is not None else placed

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes of the label; empty for a label without names."""
        task, seeds = self.config.task, self.config.seeds
        if seeds.train is not None or task.label != LABEL:
            return seeds.classes
        folder = self.graph.folder
        labels = names_of(self.graph).labels if folder is None else label_records(folder)
        found: Sequence[str] = labels.get(task.target or "", {}).get("classes", ())
        return found

    @property
    def _facts(self) -> dict[str, str]:
        """Texts by name that a resumed run compares in addition to its settings and its graph."""
        of_task: Mapping[str, str] = getattr(self.run_task, "facts", {})
        classes = {CLASSES: json.dumps([*self.classes])} if self.classes else {}
        categories = _categories(self.graph.folder)
        words = {CATEGORIES: json.dumps(categories)} if categories else {}
        return {**of_task, **classes, **words}

    def loader(self) -> Loader:
        """Make the loader of training batches."""
        return self.run_task.loader()

    def trainer(self, out: Path, observer: Observer) -> Trainer:
        """Make the trainer, which trains the model, evaluates every split and writes results to `out`."""
        config, training = self.config, self.config.training
        check_gpu_is_there(config)
        loader, parts = self.loader(), config.parts
        every_steps, target = config.evaluation.every_steps, training.target
        extra_metrics = _metrics_of_target(config, self.task)
        settings = TrainerSettings(
            epochs=training.epochs,
            learning_rate=training.learning_rate,
            schedule=_schedule(training),
            weight_decay=training.weight_decay,
            optimizer=_optimizer(config),
            evaluate_every=every_steps / len(loader) if every_steps else config.evaluation.every,
            patience=training.patience or None,
            max_steps=training.max_steps or None,
            target=None if target.value is None else (target.metric or self.task.metric, target.value),
            precision=config.precision,
            seed=training.seed,
            device=config.device,
            launches=config.gpu.launches,
            checkpoints=CheckpointPolicy(
                config.checkpoint.steps or None,
                config.checkpoint.minutes or None,
                config.checkpoint.keep,
                config.checkpoint.best,
            ),
            facts={**facts_of(config, self.fingerprint), **self._facts},
        )
        check_is_placed(config, self.graph, loader)
        on_device = device_cache_bytes(config, self.graph)
        if parts.cache_bytes or on_device:
            loader.cache_features(parts.cache_bytes, parts.cache_by, device_cache_bytes=on_device)
        return Trainer(
            self.model,
            self.task,
            loader,
            lambda: self.compared(self.run_task.splits, observer.evaluating, extra_metrics),
            settings,
            out,
            observer,
            getattr(self.run_task, "before_epoch", None),
        )

    def restore(self, folder: Path, notice: Callable[[str], None], given: Collection[str]) -> None:
        """Load the weights of a checkpoint folder, which rank 0 reads. Collective.

        Raises ValueError if the settings of the run, apart from the fields in `given`, differ from the
        checkpoint. Then config.toml was changed or damaged. The graph may differ, but not in the classes of
        the label and the categories of columns, and not for a model with embeddings by node.
        """
        group = this_group()
        with group.exchanging("reading the checkpoint"):
            checkpoint = shared_checkpoint(folder, group, notice)
        facts = facts_of(self.config, self.fingerprint)
        own = {CLASSES, CATEGORIES, LINKS_SPLIT}
        free = {"graph", "khop", *own, *map(content_of, SCORED_FILES), *given}
        match checkpoint.training:
            case {"facts": Mapping() as saved}:
                before, now = ({name: of[name] for name in of.keys() - free} for of in (saved, facts))
                check_facts(before, now, folder)
                self._check_meaning(saved, folder)
                note = self.note_on_links(saved.get("graph"))
                if note is not None and group.rank == 0:
                    notice(f"{folder}: {note}")
                self._check_nodes(saved.get("graph"), folder, notice)
        restore_model(self.model, checkpoint)

    def _check_meaning(self, saved: Mapping[str, str], folder: Path) -> None:
        """Raise ValueError if classes or categories of columns are not those of training."""
        before, now = json.loads(saved.get(CATEGORIES, "{}")), _categories(self.graph.folder)
        changed = [name for name in before if now.get(name, before[name]) != before[name]]
        what = f"categories of {', '.join(changed)}"
        if not changed and json.loads(saved.get(CLASSES, "[]")) not in ([], [*self.classes]):
            changed, what = ["classes"], f"classes of {self.config.task.target}"
        if changed:
            raise ValueError(
                f"{folder}: {self.config.graph} was imported again since training, and the {what} are "
                "others, or in another order, so outputs or inputs would stand for something else; restore "
                "the graph of training, train again, or add new rows by khop append"
            )

    def note_on_links(self, trained_on: str | None) -> str | None:
        """Return a warning if nodes were renumbered since training, which splits links at random anew."""
        source = self.graph.folder
        same = {self.fingerprint, source.book.source if isinstance(source, PartsFolder) else None}
        if trained_on is None or trained_on in same or self._facts.get(LINKS_SPLIT) != "random":
            return None
        if isinstance(source, GraphFolder) and has_only_grown(source.path, trained_on):
            return None
        return (
            f"nodes of {self.config.graph} may have other numbers than in training, so the random split of "
            "links is another one: scores may be of links that the model was trained on, and too high; use "
            "the graph of training, or split links by time or by a column"
        )

    def _check_nodes(self, trained_on: str | None, folder: Path, notice: Callable[[str], None]) -> None:
        """Raise ValueError if the model has node embeddings that were trained on another graph."""
        if not has_node_tables(self.model, self.run_task.whole):
            return
        if trained_on not in (None, self.fingerprint):
            again = folder.parent.parent / CONFIG
            raise ValueError(
                f"{folder}: its embeddings belong to the nodes of training, but {self.config.graph} has "
                "changed since and has no snapshot of that state; restore the graph, or train again: khop "
                f"train {again}"
            )
        newer = newer_snapshot(self.graph)
        if newer is not None and this_group().rank == 0:
            notice(
                f"{folder}: its embeddings belong to the nodes of training, so {self.config.graph} is used, "
                f"without the rows of {newer}"
            )

    def inference(
        self,
        out: Path,
        node_types: Sequence[NodeType],
        nodes: Tensor | None,
        values: Values,
        split: str | None = None,
    ) -> Inference:
        """Check all arguments and prepare inference for all nodes of the node types, or for `nodes` only.

        With `split`, messages pass over the edges that the evaluation of this split uses; see
        `edges_of_split`. For a run with `sampler.time`, outputs are computed at the time of the latest of
        these edges.
        """
        chunks = ChunkLimits(self.config.evaluation.batch_size, self.config.evaluation.batch_edges)
        task, graph = self.config.task, self.run_task.whole
        draws = exact_draws_of(self.config, graph)
        names = {getattr(task, field): field.removesuffix("_split") for field in SPLIT_FIELDS}
        if split is not None:
            graph = edges_of_split(graph, names.get(split, split))
        return Inference.of(self.model, graph, out, node_types, nodes, values, chunks, draws)

    def scores(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the task's metric on each split. Other metrics have keys like "val/roc-auc". Collective."""
        return self.run_task.scores(splits, progress, extra_metrics)

    def compared(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute scores as `scores` does, and the scores of baselines, such as "val/majority/accuracy".

        A task that only returns scores has no baselines. Collective.
        """
        if not isinstance(self.run_task, PredictingTask):
            return self.scores(splits, progress, extra_metrics)
        evaluation = self.run_task.evaluated(splits, progress, extra_metrics)
        return {**evaluation.scores, **evaluation.baselines}

    def evaluated(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> Evaluation:
        """Compute scores, and return them with the underlying predictions. Collective.

        Raises ValueError for a task that does not return predictions.
        """
        if not isinstance(self.run_task, PredictingTask):
            raise ValueError(
                f"predictions: the task {self.config.task.kind} returns scores without predictions, because "
                "it has no method evaluated; leave --predictions out"
            )
        evaluation = self.run_task.evaluated(splits, progress, extra_metrics)
        if self.graph.rank_edges is None:
            return evaluation
        return replace(evaluation, predictions=evaluation.predictions.here())


Work = Literal["training", "evaluation", "inference"]


def fitted(
    run: Run, raw: RawRun, work: Work = "training", checkpoint: Path | None = None
) -> tuple[Run, str | None]:
    """Return the run with a prefetch depth that fits in the free memory, and a message if memory is scarce.

    Only for runs on the CPU whose graph is in this process. Raises ValueError before the work starts if the
    run does not fit. `checkpoint` will be restored; see `prepare`. Collective.
    """
    config, graph = run.config, run.graph
    is_counted = own_memory_bytes() > 0 and config.device == "cpu"
    if not is_counted or graph.servers is not None or graph.lanes is not None:
        return run, None
    need = memory_need(config, run.run_task.whole, run.loader() if work == "training" else None, run.model)
    need = replace(need, layers=0) if work == "inference" else need  # its layers are files
    fit = fit_memory(config, need, this_group(), raw)
    if fit.prefetch == config.prefetch:
        return run, fit.line
    del run  # its model may be large
    raw = with_options(raw, {"prefetch": fit.prefetch})
    return prepare(raw, cache_folder(), None, checkpoint), fit.line


def _metrics_of_target(config: RunConfig, task: Task) -> tuple[str, ...]:
    """Return the metric of the target if evaluations compute it only on request.

    ValueError if the task has no such metric. A custom task may compute others.
    """
    metric = config.training.target.metric
    if metric is None or metric == task.metric:
        return ()
    known: Sequence[str] | None = getattr(task, "metrics", None)
    if config.task.kind not in TASKS.builtin:
        return (metric,) if known is not None and metric in known else ()
    ranked = {"ranking": FULL_RANKING, "filtered": FILTERED_RANKING} if known is None else {}
    for setting, names in ranked.items():
        if metric in names and getattr(config.links, setting):
            return ()
        if metric.partition("-")[0] == names[0].partition("-")[0]:
            raise ValueError(
                f"training.target.metric is {metric!r}: evaluations with links.{setting} = true compute "
                f"{', '.join(names)}; set it, and give one of these"
            )
    try:
        return (check_task_metric(metric) if known is None else known_metric(metric, known),)
    except ValueError as error:
        raise ValueError(f"training.target.metric: {error}") from None


def _schedule(training: Training) -> Schedule:
    if training.schedule != "plateau":
        return Schedule(training.schedule, training.warmup)
    plateau = Plateau(training.plateau_factor, training.plateau_patience)
    return Schedule("constant", training.warmup, plateau)


def _optimizer(config: RunConfig) -> OptimizerSettings:
    """Build the optimizer of a run. ValueError if options or weight decay do not fit it."""
    made = built(config, "optimizer", None)
    if not isinstance(made, OptimizerSettings):
        raise ValueError(
            f"optimizer.kind is {config.optimizer.kind!r}: its build returned {type(made).__name__}; it must "
            "return a khop.OptimizerSettings"
        )
    return replace(made, clip_norm=config.optimizer.clip_norm or made.clip_norm)


def prepare(
    raw: RawRun, cache: Path, notice: ProgressCallback | None = None, checkpoint: Path | None = None
) -> Run:
    """Check a run and build it. Raises ValueError before any long work starts.

    A built-in graph is unpacked into `cache` on first use; `notice` receives the progress. Equal runs start
    from equal weights. If `checkpoint` will be restored into a model with node embeddings, the graph is the
    snapshot that the checkpoint was trained on; this is collective.
    """
    leave = None if checkpoint is None else "the GPU only makes batches for training"
    run = _built(raw, cache, notice, leave)
    if checkpoint is None or not has_node_tables(run.model, run.run_task.whole):
        return run
    snapshot = trained_snapshot(run.graph, checkpoint)
    if snapshot is None:
        return run
    del run  # its graph and its model may fill the memory
    return _built(with_options(raw, {"graph": str(snapshot)}), cache, notice, leave)


def resolved(raw: RawRun, cache: Path, notice: ProgressCallback | None = None) -> tuple[RunConfig, Folder]:
    """Check a run, open its graph, and fill in all settings; see `resolve`."""
    folder = graph_folder(checked(raw), raw, cache, notice)
    raw = with_task(raw, folder.schema)
    return resolve(checked(raw), folder, raw), folder


def _built(raw: RawRun, cache: Path, notice: ProgressCallback | None, leave: str | None) -> Run:
    config, folder = resolved(raw, cache, notice)
    if isinstance(folder, GraphOnServers):
        return Run(config, folder.graph, built(config, "task", TaskContext(config, folder.graph)))
    parts, later = config.parts, None
    graph = open_graph(folder.path, placement=parts.placement, lanes=parts.lanes, wire=parts.wire)
    if is_placed(config):
        graph, later = placed_graph(config, graph, folder, raw, leave)
    return Run(config, graph, built(config, "task", TaskContext(config, graph, later)), later)
