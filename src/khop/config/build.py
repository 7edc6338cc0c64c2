"""Build all objects of a run from its config. Only this module imports every part of khop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from khop.api.infer import Inference, Values
from khop.api.loader import Loader
from khop.api.open_graph import Graph, open_graph
from khop.api.time_split import edges_of_split
from khop.config.contexts import TaskContext, exact_draws_of
from khop.config.gpu import check_gpu_is_there, check_is_placed, is_placed, placed_graph
from khop.config.on_servers import GraphOnServers
from khop.config.parts import device_cache_bytes
from khop.config.read import RawRun, checked, with_options
from khop.config.resolve import graph_folder, resolve
from khop.config.resolve_task import SPLIT_FIELDS
from khop.config.run_fingerprint import facts_of
from khop.config.run_task import Evaluation, PredictingTask, PreparingTask, RunTask
from khop.config.run_type import built
from khop.config.saved_run import CONFIG
from khop.config.trained_snapshot import has_node_tables, newer_snapshot, trained_snapshot
from khop.config.values import RunConfig, Training
from khop.graph.progress import ProgressCallback
from khop.inference.chunk_bounds import ChunkLimits
from khop.inference.chunks import Progress
from khop.runtime.group import this_group
from khop.schema import NodeType
from khop.training.checkpoint import restore_model, shared_checkpoint
from khop.training.observer import Observer
from khop.training.optimizer_settings import OptimizerSettings
from khop.training.schedule import Plateau, Schedule
from khop.training.settings import CheckpointPolicy, TrainerSettings
from khop.training.tasks import Task
from khop.training.trainer import Trainer
from khop.training.trainer_state import check_facts


@dataclass(frozen=True, eq=False)
class Run:
    """A run that is ready for training or evaluation."""

    config: RunConfig  # resolved
    graph: Graph
    run_task: RunTask

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
        assert found is not None, "runs are of graph folders, or of graphs on servers"
        return found.fingerprint

    def loader(self) -> Loader:
        """Make the loader of training batches."""
        return self.run_task.loader()

    def trainer(self, out: Path, observer: Observer) -> Trainer:
        """Make the trainer, which trains the model, evaluates every split and writes results to `out`."""
        config, training = self.config, self.config.training
        check_gpu_is_there(config)
        settings = TrainerSettings(
            epochs=training.epochs,
            learning_rate=training.learning_rate,
            schedule=_schedule(training),
            weight_decay=training.weight_decay,
            optimizer=_optimizer(config),
            evaluate_every=config.evaluation.every,
            patience=training.patience or None,
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
            facts=facts_of(config, self.fingerprint),
        )
        loader, parts = self.loader(), config.parts
        check_is_placed(config, self.graph, loader)
        on_device = device_cache_bytes(config, self.graph)
        if parts.cache_bytes or on_device:
            loader.cache_features(parts.cache_bytes, parts.cache_by, device_cache_bytes=on_device)
        return Trainer(
            self.model,
            self.task,
            loader,
            lambda: self.compared(self.run_task.splits, observer.evaluating),
            settings,
            out,
            observer,
            self.run_task.before_epoch if isinstance(self.run_task, PreparingTask) else None,
        )

    def restore(self, folder: Path, notice: Callable[[str], None], given: Collection[str]) -> None:
        """Load the weights of a checkpoint folder, which rank 0 reads. Collective.

        Raises ValueError if the settings of the run, apart from the fields in `given`, differ from the
        checkpoint. Then config.toml was changed or damaged. The graph may differ, but not for a model with
        embeddings by node.
        """
        group = this_group()
        with group.exchanging("reading the checkpoint"):
            checkpoint = shared_checkpoint(folder, group, notice)
        facts, free = facts_of(self.config, self.fingerprint), {"graph", "khop", *given}
        match checkpoint.training:
            case {"facts": Mapping() as saved}:
                before, now = ({name: of[name] for name in of.keys() - free} for of in (saved, facts))
                check_facts(before, now, folder)
                self._check_nodes(saved.get("graph"), folder, notice)
        restore_model(self.model, checkpoint)

    def _check_nodes(self, trained_on: str | None, folder: Path, notice: Callable[[str], None]) -> None:
        """Raise ValueError if the model has embeddings of the nodes of another graph."""
        if not has_node_tables(self.model, self.run_task.whole):
            return
        if trained_on not in (None, self.fingerprint):
            again = folder.parent.parent / CONFIG
            raise ValueError(
                f"{folder}: has embeddings of nodes as they were in training, and {self.config.graph} has "
                "other content, with no snapshot of that time; give back the graph of training, or train "
                f"again: khop train {again}"
            )
        newer = newer_snapshot(self.graph)
        if newer is not None and this_group().rank == 0:
            notice(
                f"{folder}: has embeddings of nodes as they were in training, so {self.config.graph} is "
                f"used, without the rows of {newer}"
            )

    def inference(
        self,
        out: Path,
        node_types: Sequence[NodeType],
        nodes: Tensor | None,
        values: Values,
        split: str | None = None,
    ) -> Inference:
        """Prepare inference for all nodes of the node types, or for `nodes` only. Checks all arguments.

        With `split`, messages pass over the edges that the evaluation of this split uses; see
        `edges_of_split`. Rows of a run with `sampler.time` are those of the end of these edges.
        """
        chunks = ChunkLimits(self.config.evaluation.batch_size, self.config.evaluation.batch_edges)
        task, graph = self.config.task, self.run_task.whole
        draws = exact_draws_of(self.config, graph)
        names = {getattr(task, field): field.removesuffix("_split") for field in SPLIT_FIELDS}
        if split is not None:
            graph = edges_of_split(graph, names.get(split, split))
        return Inference.of(self.model, graph, out, node_types, nodes, values, chunks, draws)

    def scores(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the task's metric on each split. Other metrics have keys like "val/roc-auc". Collective."""
        return self.run_task.scores(splits, progress, beside)

    def compared(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute scores as `scores` does, and the scores of baselines, such as "val/majority/accuracy".

        A task with scores only has no baselines. Collective.
        """
        if not isinstance(self.run_task, PredictingTask):
            return self.scores(splits, progress, beside)
        evaluation = self.run_task.evaluated(splits, progress, beside)
        return {**evaluation.scores, **evaluation.baselines}

    def evaluated(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> Evaluation:
        """Compute scores, and keep the predictions that they are computed from. Collective.

        ValueError for a task that keeps none.
        """
        if not isinstance(self.run_task, PredictingTask):
            raise ValueError(
                f"predictions: the task {self.config.task.kind} has scores only, no method evaluated; leave "
                "--predictions out"
            )
        evaluation = self.run_task.evaluated(splits, progress, beside)
        if self.graph.rank_edges is None:
            return evaluation
        return replace(evaluation, predictions=evaluation.predictions.here())


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
    from equal weights. A model with embeddings by node, to be restored from `checkpoint`, gets the snapshot
    of the graph that the checkpoint was trained on; collective.
    """
    run = _built(raw, cache, notice)
    if checkpoint is None or not has_node_tables(run.model, run.run_task.whole):
        return run
    snapshot = trained_snapshot(run.graph, checkpoint)
    if snapshot is None:
        return run
    del run  # its graph and its model may fill the memory
    return _built(with_options(raw, {"graph": str(snapshot)}), cache, notice)


def _built(raw: RawRun, cache: Path, notice: ProgressCallback | None) -> Run:
    written = checked(raw)
    folder = graph_folder(written, raw, cache, notice)
    config = resolve(written, folder, raw)
    if isinstance(folder, GraphOnServers):
        return Run(config, folder.graph, built(config, "task", TaskContext(config, folder.graph)))
    parts = config.parts
    graph = open_graph(folder.path, placement=parts.placement, lanes=parts.lanes, wire=parts.wire)
    if is_placed(config):
        graph = placed_graph(config, graph, folder, raw)
    return Run(config, graph, built(config, "task", TaskContext(config, graph)))
