"""The work of `khop train`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from khop.api.launch import launched_by_others
from khop.cli.baselines import OwnFeatures, label_propagation_scores
from khop.cli.check_once import check_once
from khop.cli.commands.shared import RankOptions
from khop.cli.curve import drawn_curve
from khop.cli.environment import memory_of_ranks, write_environment
from khop.cli.lines import tell
from khop.cli.next_steps import say_next
from khop.cli.options import named, shown
from khop.cli.progress import beside_scores, two_columns, watching
from khop.cli.ranks import as_ranks, run_of_rank
from khop.cli.run_folder import (
    CHECKPOINTS,
    CURVE,
    LAUNCH,
    METRICS,
    TENSORBOARD,
    graph_name,
    new_run_folder,
    restarted_folder,
    write_config,
    write_whole,
)
from khop.cli.terminal import say
from khop.config.biased_draws import biased_draws, unread_edge_columns
from khop.config.build import Run
from khop.config.contexts import draws_all_edges
from khop.config.fields import run_fields, value_at
from khop.config.gpu import check_gpu_is_there
from khop.config.link_run_task import LinkTask
from khop.config.own_features import own_features
from khop.config.read import RawRun, to_toml
from khop.config.resolve import notes_of
from khop.config.values import RunConfig
from khop.errors import PeerLost, told
from khop.graph.node_ids import stored_ids
from khop.reporting.scores import baselines_of, number, scores_of
from khop.runtime.group import Group, this_group
from khop.training.checkpoint_writer import LAST
from khop.training.metrics import is_better
from khop.training.observer import Observer, Several, Unwatched
from khop.training.replace_folder import pushed_folders
from khop.training.run_loggers import MlflowLog, WandbLog
from khop.training.tasks import NodeObjective, score_name
from khop.training.tensorboard import TensorBoard
from khop.training.trainer import TrainingResult


@dataclass(frozen=True)
class Request:
    """The arguments of one call of the command, the same for every rank."""

    raw: RawRun
    resume: Path | None
    as_json: bool
    baselines: bool = False  # train and score the baseline of own features too


def train(request: Request, config: RunConfig, ranks: RankOptions) -> None:
    """Train as all ranks."""
    check_once(request.raw, config, ranks)
    as_ranks(train_rank, request, config, ranks)


def train_rank(rank: int, device: torch.device, request: Request) -> None:
    """Train as one rank, often the only one. Rank 0 prints, and writes the files."""
    console = Console(stderr=request.as_json, quiet=rank > 0)
    group = this_group()
    run = run_of_rank(request.raw, device, named(request.raw.values))
    if request.baselines:
        own_features(run, request.raw)  # an error comes before any work
    folder, is_resumed = _folder_of(run, request, group)
    with _stoppable(folder, rank), _watchers(console, run, folder, rank) as watcher:
        trainer = run.trainer(folder, watcher)
        if is_resumed:
            trainer.resume()
        if rank == 0:
            write_config(folder, run.config)
            write_environment(folder, run.config, group)
        say(console, f"{_title(run)}; results in {folder}")
        if run.graph.stores is not None:
            say(console, run.graph.placement)
        for note in notes_of(run.config, request.raw):
            say(console, note)
        biased = biased_draws(run.config, run.graph)
        for note in (biased, unread_edge_columns(run.config, run.graph, run.model)):
            if note is not None:
                say(console, note)
        result = trainer.fit()
        memory = memory_of_ranks(group, device)
        compared = _compared(run, folder, request, watcher) if request.baselines else {}
    if rank == 0:
        write_environment(folder, run.config, group, memory)
        _conclude(console, run, folder, result, request, compared)


def _compared(run: Run, folder: Path, request: Request, watcher: Observer) -> dict[str, float]:
    """Train the baseline of own features; return its scores by their names in records. Collective."""
    baseline = OwnFeatures.of(run, request.raw, folder)
    baseline.train()
    scores = baseline.scores(run.run_task.splits, watcher.evaluating, ())
    scores |= label_propagation_scores(run, run.run_task.splits, ())
    return {score_name(name, run.task.metric): score for name, score in scores.items()}


@contextmanager
def _watchers(console: Console, run: Run, folder: Path, rank: int) -> Iterator[Observer]:
    """Yield the observer of the training: on rank 0 the terminal, and the loggers that are enabled."""
    if rank > 0:
        yield Unwatched()
        return
    with watching(console) as watcher, ExitStack() as loggers:
        observers: list[Observer] = [watcher]
        if run.config.tensorboard:
            made = TensorBoard(folder / TENSORBOARD, to_toml(run.config))
            observers.append(loggers.enter_context(closing(made)))
        settings = {entry.path: value_at(run.config, entry.path) for entry in run_fields(type(run.config))}
        match run.config.logger:
            case "wandb":
                wandb = WandbLog(settings, {"dir": str(folder), "name": folder.name})
                observers.append(loggers.enter_context(closing(wandb)))
            case "mlflow":
                mlflow = MlflowLog(settings, {"run_name": folder.name})
                observers.append(loggers.enter_context(closing(mlflow)))
        yield Several(*observers)


def _conclude(
    console: Console,
    run: Run,
    folder: Path,
    result: TrainingResult,
    request: Request,
    compared: Mapping[str, float],
) -> None:
    write_whole(folder / CURVE, drawn_curve(result.records, result.best_epoch, _title(run)))
    outcome = {
        "run": str(folder),
        "epochs": len(result.records),
        "best_epoch": result.best_epoch + 1,
        "seconds": round(result.seconds, 2),
        **scores_of({**result.records[result.best_epoch], **compared}),
    }
    say(console, *two_columns({**beside_scores(outcome), "picture": folder / CURVE}))
    for sentence in _below_baselines(run, result.records[result.best_epoch]):
        say(console, sentence)
    say_next(console, *_next_commands(run, folder))
    if request.as_json:
        print(json.dumps(outcome))


# Settings to try first if a score does not beat its baseline; the first three that a run has not set so.
_TO_TRY: Mapping[bool, Sequence[tuple[str, object]]] = {
    True: (
        ("model.dropout", 0.0),
        ("links.negatives_per_positive", 4),
        ("links.loss", "bpr"),
        ("training.learning_rate", 0.01),
        ("training.epochs", 50),
    ),
    False: (
        ("task.class_weights", "balanced"),
        ("model.dropout", 0.2),
        ("training.learning_rate", 0.01),
        ("training.epochs", 50),
        ("model.norm", "layer"),
    ),
}


def _below_baselines(run: Run, record: Mapping[str, object]) -> Iterator[str]:
    """Yield a sentence with three settings to try if a score of the run does not beat its baseline."""
    metric, known = run.task.metric, {entry.path: entry for entry in run_fields(type(run.config))}
    words = []
    for split in ("val", "test"):
        score = score_name(split, metric)
        for name, baseline in baselines_of(record).get(score, {}).items():
            own, other = number(record[score]), number(record[name])
            if not is_better(metric, own, other):
                words.append(f"{split} {metric} {own:.4g} does not beat {baseline} {other:.4g}")
    to_try = [
        f"{known[path].option} {value}"
        for path, value in _TO_TRY[isinstance(run.run_task, LinkTask)]
        if path in known and value_at(run.config, path) != value
    ]
    if words:
        yield f"{'; '.join(words)}. Try first: {', '.join(to_try[:3])}"


def _next_commands(run: Run, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield commands for a trained model: evaluate all splits, and write rows under the users' own ids.

    A model of nodes also scores all of them, with and without a label.
    """
    yield "khop", "evaluate", str(folder), "--split", "all"
    has_ids = run.graph.folder is not None and stored_ids(run.graph.folder)
    suffix = "parquet" if has_ids else "npy"  # only Parquet has a column for ids
    if draws_all_edges(run.config):
        if isinstance(run.task, NodeObjective):
            scores = str(folder / f"scores.{suffix}")
            yield "khop", "infer", str(folder), "--values", "outputs", "--out", scores
        yield "khop", "infer", str(folder), "--out", str(folder / f"embeddings.{suffix}")
    if has_ids and isinstance(run.run_task, LinkTask) and draws_all_edges(run.config):
        yield "khop", "recommend", str(folder), "-k", "10", "--out", str(folder / "recommended.parquet")


def _folder_of(run: Run, request: Request, group: Group) -> tuple[Path, bool]:
    """Return the run folder, found or made by rank 0, and whether the run resumes from its contents."""
    found: tuple[Path, bool] | None = None
    if group.rank == 0:
        found = (request.resume, True) if request.resume else _new_or_restarted(run, group.attempt)
    with group.exchanging("sharing the run folder"):
        shared = group.share_bytes(json.dumps([str(found[0]), found[1]]).encode() if found else None)
    folder, is_resumed = json.loads(shared)
    return Path(folder), is_resumed


def _new_or_restarted(run: Run, attempt: int) -> tuple[Path, bool]:
    check_gpu_is_there(run.config)  # before there is a folder
    placement = launched_by_others()
    if placement is not None and attempt > 0:
        folder = restarted_folder(run.config, placement.run_id)
        if folder is not None:
            has_checkpoint = bool(pushed_folders(folder / CHECKPOINTS / LAST))
            if not has_checkpoint:  # the attempt before wrote no checkpoint, so its metrics are void
                (folder / METRICS).unlink(missing_ok=True)
            return folder, has_checkpoint
    folder = new_run_folder(run.config)
    if placement is not None and placement.run_id:
        write_whole(folder / LAUNCH, placement.run_id.encode())
    return folder, False


@contextmanager
def _stoppable(folder: Path, rank: int) -> Iterator[None]:
    """Stop without an error on Ctrl-C and SIGTERM. Rank 0 prints how to resume.

    If another rank is lost, the error says how to resume too.
    """
    last = folder / CHECKPOINTS / LAST
    resume = ("khop", "train", "--resume", str(folder))
    try:
        yield
    except KeyboardInterrupt as stop:
        if rank == 0 and last.is_dir():
            tell(f"stopped; the last checkpoint is {last}", *resume)
        elif rank == 0:
            tell("stopped; there is no checkpoint yet")
        if rank == 0:
            told(stop)
        raise
    except PeerLost as lost:
        hint = f"continue with: {shlex.join(resume)}" if last.is_dir() else "there is no checkpoint yet"
        raise PeerLost(f"{lost}. All ranks stop; {hint}") from lost


def _title(run: Run) -> str:
    config = run.config
    name, fanouts = graph_name(config), shown(config.sampler.fanouts)
    model = f"{config.model.kind} {config.model.layers} x {config.model.hidden}"
    return f"{name}: {model}, fanouts {fanouts}, seed {config.training.seed}"
