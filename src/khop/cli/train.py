"""Implementation of `khop train` and `khop profile`."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from khop.api.launch import launched_by_others
from khop.cli.commands.shared import RankOptions
from khop.cli.lines import tell
from khop.cli.options import named, shown
from khop.cli.progress import beside_scores, two_columns, watching
from khop.cli.rank_runs import check_once, fitted_run_of_rank
from khop.cli.ranks import as_ranks, with_device
from khop.cli.run_folder import (
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
from khop.cli.stores import published, publishing
from khop.cli.terminal import fitting, say, say_next
from khop.cli.trained import OwnFeatures, label_propagation_scores
from khop.distributed.processes.group import Group, clock_offset, this_group
from khop.errors import PeerLost, told
from khop.graph.node_ids import stored_ids
from khop.graph.remote import with_urls, writing
from khop.process_tuning import bound_to, usable_cores
from khop.run.bottleneck import Bottleneck, bottleneck, has_fast_bfloat16, this_machine
from khop.run.build import Run, notes_of
from khop.run.check import to_toml
from khop.run.contexts import draws_all_edges
from khop.run.fields import field_at
from khop.run.memory import check_gpu_is_there
from khop.run.profile import (
    RankRecord,
    RankSummary,
    StepRecorder,
    Summary,
    chrome_trace,
    summarized,
    without_first,
)
from khop.run.read import CHECKPOINTS, CONFIG, RawRun
from khop.run.reporting.charts import drawn_curve, drawn_timeline
from khop.run.reporting.run_summary import (
    ENVIRONMENT,
    baselines_of,
    environment,
    number,
    peak_memory_bytes,
    scores_of,
)
from khop.run.run_type import fields_of, value_at
from khop.run.start import start_from
from khop.run.tasks.baselines import biased_draws, own_features, unread_edge_columns
from khop.run.tasks.link_run_task import LinkTask
from khop.run.values import RunConfig
from khop.training.metrics import is_better
from khop.training.replace_folder import pushed_folders
from khop.training.run_loggers import MlflowLog, TensorBoard, WandbLog
from khop.training.run_output import LAST
from khop.training.step_clock import Observer, Several, Unwatched
from khop.training.tasks import NodeObjective, score_name
from khop.training.trainer import TrainingResult

Memory = Mapping[str, list[int]]  # name of a peak -> bytes of each rank


def write_environment(folder: Path, config: RunConfig, group: Group, memory: Memory | None = None) -> None:
    """Write versions, the machine of rank 0, and the processes; at the end also peak memory."""
    device = torch.device(config.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    found = {
        **environment(name, usable_cores()),
        "fast_bfloat16": has_fast_bfloat16(config.device),
        "processes": group.world_size,
        "processes_here": group.local_world_size,
        **{peak: max(of_ranks) for peak, of_ranks in (memory or {}).items()},
    }
    write_whole(folder / ENVIRONMENT, (json.dumps(found, indent=1) + "\n").encode())


def bound_ranks(group: Group) -> list[str]:
    """Return a line with the cores of each process, if processes are bound. Collective."""
    of_ranks = [content.decode() for content in group.gather_bytes(bound_to().encode())]
    words = ", ".join(f"{rank} to {place}" for rank, place in enumerate(of_ranks) if place)
    return [f"processes are bound: {words}"] if words else []


def memory_of_ranks(group: Group, device: torch.device) -> dict[str, list[int]]:
    """Return the peak memory of each rank, and of its GPU if it has one. Collective."""
    on_device = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    with group.exchanging("collecting the memory used"):
        found = group.gather(torch.tensor([peak_memory_bytes(), on_device]))
    peaks = {"peak_memory_bytes": found[:, 0].tolist()}
    return peaks | ({"peak_device_bytes": found[:, 1].tolist()} if on_device else {})


@dataclass(frozen=True)
class TrainCall:
    """The arguments of one call of the command, the same for every rank."""

    raw: RawRun
    resume: Path | None
    as_json: bool
    baselines: bool = False  # also train and score the baseline on node features


def train(request: TrainCall, config: RunConfig, ranks: RankOptions) -> None:
    """Train as all ranks."""
    config = with_device(request.raw, config, ranks)
    check_once(request.raw, config, ranks)
    as_ranks(train_rank, request, config, ranks)


def train_rank(rank: int, device: torch.device, request: TrainCall) -> None:
    """Train as one rank, often the only one. Rank 0 prints, and writes the files."""
    console = Console(stderr=request.as_json, quiet=rank > 0)
    group = this_group()
    run, memory_line = fitted_run_of_rank(request.raw, device, named(request.raw.values))
    if request.baselines:
        own_features(run, request.raw)  # an error comes before any work
    folder, is_resumed = _folder_of(run, request, group)
    ending = publishing(folder) if rank == 0 else nullcontext()
    with writing(folder) if rank == 0 else nullcontext(), ending, _unused_removed(folder, rank):
        with _stoppable(folder, rank), _watchers(console, run, folder, rank) as watcher:
            trainer = run.trainer(folder, watcher)
            started = []
            if is_resumed:
                trainer.resume()
            else:
                started = start_from(run, trainer)
            if rank == 0:
                write_config(folder, run.config)
                write_environment(folder, run.config, group)
            say(console, f"{_title(run)}; results in {folder}")
            for line in bound_ranks(group):
                say(console, line)
            if (placement := run.placement) is not None:
                say(console, placement)
            for note in (
                *notes_of(run.config, run.graph.schema, request.raw),
                *([memory_line] if memory_line else ()),
                *started,
            ):
                say(console, note)
            biased = biased_draws(run.config, run.graph)
            for bias in (biased, unread_edge_columns(run.config, run.graph, run.model)):
                if bias is not None:
                    say(console, bias)
            result = trainer.fit()
            memory = memory_of_ranks(group, device)
            compared = _compared(run, folder, request, watcher) if request.baselines else {}
        if rank == 0:
            _conclude(console, run, folder, result, request, compared)
            write_environment(folder, run.config, group, memory)


def _compared(run: Run, folder: Path, request: TrainCall, watcher: Observer) -> dict[str, float]:
    """Train the baseline on node features; return its scores by their keys in records. Collective."""
    baseline = OwnFeatures.of(run, request.raw, folder)
    baseline.train()
    scores = baseline.scores(run.run_task.splits, watcher.evaluating, ())
    scores |= label_propagation_scores(run, run.run_task.splits, ())
    return {score_name(name, run.task.metric): score for name, score in scores.items()}


@contextmanager
def _watchers(console: Console, run: Run, folder: Path, rank: int) -> Iterator[Observer]:
    """Yield the observer of the training: on rank 0, the terminal and the enabled loggers."""
    if rank > 0:
        yield Unwatched()
        return
    with watching(console) as watcher, ExitStack() as loggers:
        observers: list[Observer] = [watcher]
        if run.config.tensorboard:
            made = TensorBoard(folder / TENSORBOARD, to_toml(run.config))
            observers.append(loggers.enter_context(closing(made)))
        settings = {entry.path: value_at(run.config, entry.path) for entry in fields_of(type(run.config))}
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
    request: TrainCall,
    compared: Mapping[str, float],
) -> None:
    curve = [*result.evaluations, *result.records]
    is_drawn = _picture(folder / CURVE, lambda: drawn_curve(curve, result.best, _title(run)))
    outcome = {
        "run": str(folder),
        "epochs": len(result.records),
        "best_epoch": result.best_epoch + 1,
        "seconds": round(result.seconds, 2),
        **scores_of({**result.best, **compared}),
    }
    picture = {"picture": folder / CURVE} if is_drawn else {}
    say(console, *two_columns({**beside_scores(outcome), **picture}))
    for sentence in _below_baselines(run, result.best):
        say(console, sentence)
    say_next(console, *_next_commands(run, folder))
    if request.as_json:
        print(with_urls(json.dumps(outcome)))


def _picture(path: Path, draw: Callable[[], bytes]) -> bool:
    """Draw and write a picture; if this fails, say it in one line and return False: results come first."""
    try:
        write_whole(path, draw())
    except (AttributeError, ImportError, OSError, RuntimeError, ValueError) as error:  # of packages, the disk
        tell(f"{path.name} is missing: {error}".splitlines()[0])
        return False
    return True


# Settings to try if a score does not beat its baseline: the first three that the run does not have yet.
_TO_TRY: Mapping[bool, Sequence[tuple[str, object]]] = {
    True: (
        ("model.dropout", 0.2),
        ("links.negatives_per_positive", 4),
        ("links.loss.kind", "bpr"),
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
    """Yield a sentence with three settings to try if a score does not beat its baseline."""
    metric, known = run.task.metric, {entry.path: entry for entry in fields_of(type(run.config))}
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
    """Yield commands for a trained model: evaluate all splits, and write predictions with the users' ids.

    A model of nodes can also predict all nodes, with and without a label.
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


def _folder_of(run: Run, request: TrainCall, group: Group) -> tuple[Path, bool]:
    """Return the run folder, found or created by rank 0, and whether the run resumes from it."""
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
            if not has_checkpoint:  # the earlier attempt wrote no checkpoint, so its metrics are invalid
                (folder / METRICS).unlink(missing_ok=True)
            return folder, has_checkpoint
    folder = new_run_folder(run.config)
    if placement is not None and (placement.run_id or run.config.out is not None):
        write_whole(folder / LAUNCH, placement.run_id.encode())
    return folder, False


@contextmanager
def _unused_removed(folder: Path, rank: int) -> Iterator[None]:
    """Remove the run folder on rank 0 if an error comes before the first file of the run."""
    try:
        yield
    except BaseException:
        if rank == 0 and {path.name for path in folder.glob("*")} <= {LAUNCH}:
            (folder / LAUNCH).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()
        raise


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
        if rank == 0 and pushed_folders(last):
            tell(f"stopped; the last checkpoint is {last}", *resume)
        elif rank == 0:
            tell("stopped; there is no checkpoint yet")
        if rank == 0:
            told(stop)
        raise
    except PeerLost as lost:
        hint = (
            f"continue with: {shlex.join(resume)}" if pushed_folders(last) else "there is no checkpoint yet"
        )
        raise PeerLost(f"{lost}. All ranks stop; {hint}") from lost


def _title(run: Run) -> str:
    config = run.config
    name, fanouts = graph_name(config), shown(config.sampler.fanouts)
    model = f"{config.model.kind} {config.model.layers} x {config.model.hidden}"
    return f"{name}: {model}, fanouts {fanouts}, seed {config.training.seed}"


# Columns that are removed on a narrow terminal, in this order.
LEAST = ("logs", "transfer", "threads", "batch", "seeds/s", "busy", "edges/s", "cores busy")
_MARKED = 0.1  # share of a step's time: larger shares are highlighted


def profile_tables(summary: Summary) -> Iterator[Table]:
    """Yield the table of the training threads by rank, then the table of the sampler threads."""
    yield _training(summary)
    yield _loading(summary)


def _training(summary: Summary) -> Table:
    has_others = len(summary.ranks) > 1
    stages = {"waiting": "waits for\nits batch", "moving": "transfer", "computing": "compute"}
    stages |= {"communicating": "communi-\ncation"} if has_others else {}
    stages["saving"] = "logs"
    table = _table("training: ms per step, share of the time", "rank", "step", *stages.values())
    if has_others:
        table.add_column("waits on", no_wrap=True)
    for rank in summary.ranks:
        cells = [_cell(rank, stage) for stage in stages]
        waits_on = [_waits_on(rank)] if has_others else []
        table.add_row(_name(rank, summary), f"{_ms(rank.seconds, rank)}", *cells, *waits_on)
    return table


def _loading(summary: Summary) -> Table:
    names = ("rank", "threads", "busy", "sampling", "gather", "seeds/s", "edges/s", "batch", "cores busy")
    table = _table("making batches: ms of thread time per batch", *names)
    for rank in summary.ranks:
        table.add_row(
            _name(rank, summary),
            str(rank.workers),
            f"{rank.workers_busy:.0%}",
            _ms(rank.of_stage["sampling"], rank),
            _ms(rank.of_stage["gathering"], rank),
            f"{rank.seeds_per_s:,.0f}",
            f"{rank.edges_per_s:,.0f}",
            decimal(round(rank.batch_bytes)),
            "" if rank.busy_cores is None else f"{rank.busy_cores:.1f}",
        )
    return table


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _name(rank: RankSummary, summary: Summary) -> str:
    has_hosts = len({other.host for other in summary.ranks}) > 1
    return f"{rank.rank} {rank.host}" if has_hosts else str(rank.rank)


def _ms(seconds: float, rank: RankSummary) -> str:
    return f"{1e3 * seconds / rank.steps:.1f}"


def _cell(rank: RankSummary, stage: str) -> str:
    share = rank.share(stage)
    text = f"{_ms(rank.of_stage[stage], rank)} {share:4.0%}"
    return f"[bold]{text}[/bold]" if share >= _MARKED else text


def _waits_on(rank: RankSummary) -> str:
    """Name the ranks that this rank waited for, the longest wait first."""
    costs = sorted(rank.waited_for.items(), key=lambda item: -item[1])
    named = [f"{other}: {_ms(seconds, rank)}" for other, seconds in costs[:2] if seconds > 0]
    return ", ".join(named)


WARM_UP = 5  # first steps, which do not count: they set up memory, threads and connections
TRACE, TIMELINE = "trace.json", "timeline.png"
PROFILES = Path("profiles")
_WIDTH = 110  # columns of tables without a terminal


@dataclass(frozen=True)
class ProfileRequest:
    """The arguments of one call of the command, the same for every rank."""

    raw: RawRun
    steps: int
    as_json: bool


@dataclass(frozen=True)
class Profile:
    """The result of a profile."""

    records: tuple[RankRecord, ...]
    summary: Summary
    bottleneck: Bottleneck


def profile(request: ProfileRequest, config: RunConfig, ranks: RankOptions) -> None:
    """Profile as all ranks."""
    config = with_device(request.raw, config, ranks)
    check_once(request.raw, config, ranks)
    as_ranks(profile_rank, request, config, ranks)


def profile_rank(rank: int, device: torch.device, request: ProfileRequest) -> None:
    """Profile as one rank, often the only one. Rank 0 prints, and writes the files."""
    console = Console(stderr=request.as_json, quiet=rank > 0)
    group = this_group()
    run, memory_line = fitted_run_of_rank(request.raw, device, named(request.raw.values))
    folder = _shared_folder(run.config, group)
    asked = WARM_UP + request.steps
    recorder = StepRecorder()
    with watching(console) if rank == 0 else nullcontext(Unwatched()) as watcher:
        trainer = run.trainer(folder, Several(watcher, recorder))
        say(console, f"{graph_name(run.config)}: {WARM_UP} steps to warm up, {request.steps} measured")
        if memory_line is not None:
            say(console, memory_line)
        done = trainer.rehearse(asked)
    records = _collected(group, recorder, run.config)
    if rank == 0:
        steps_per_epoch = len(trainer.loader)
        if done > steps_per_epoch:
            say(console, f"an epoch has {steps_per_epoch} steps: the profile covers several")
        if done < asked:
            say(console, f"stopped after {done} of {asked} steps")
        _conclude_profile(console, run, folder, _found(records, run.config), request)
    if done < asked:
        raise told(KeyboardInterrupt())


def _shared_folder(config: RunConfig, group: Group) -> Path:
    """Make a new folder on rank 0, and return it on all ranks."""
    check_gpu_is_there(config)  # before there is a folder
    made = str(new_run_folder(config, PROFILES)).encode() if group.rank == 0 else None
    with group.exchanging("sharing the folder"):
        return Path(group.share_bytes(made).decode())


def _collected(group: Group, recorder: StepRecorder, config: RunConfig) -> tuple[RankRecord, ...]:
    """Collect the records of all ranks, on one clock."""
    workers = min(config.threads, config.prefetch)
    own = recorder.record(group.rank, socket.gethostname(), workers, clock_offset(group))
    with group.exchanging("collecting the profile"):
        return tuple(RankRecord.of_bytes(content) for content in group.gather_bytes(own.to_bytes()))


def _found(records: Sequence[RankRecord], config: RunConfig) -> Profile:
    measured = without_first(records, min(WARM_UP, len(records[0].steps) - 1))
    summary = summarized(measured)
    ranks_here = sum(record.host == records[0].host for record in records)
    machine = this_machine(config.device, ranks_here)
    return Profile(measured, summary, bottleneck(summary, config, machine))


def _conclude_profile(
    console: Console, run: Run, folder: Path, profile: Profile, request: ProfileRequest
) -> None:
    title = f"{graph_name(run.config)}: {len(profile.records[0].steps)} steps"
    is_drawn = _picture(folder / TIMELINE, lambda: drawn_timeline(profile.records, profile.summary, title))
    write_whole(folder / TRACE, json.dumps(chrome_trace(profile.records)).encode())
    write_config(folder, run.config)
    (folder / METRICS).unlink()  # a profile measures no epoch
    published(folder)
    wide = console if console.is_terminal else Console(file=console.file, width=_WIDTH)
    for table in profile_tables(profile.summary):
        wide.print(fitting(wide, table, *LEAST))
    say(console, *sentences(profile.bottleneck, run.config))
    timeline = f"Timeline: {folder / TIMELINE}; full" if is_drawn else "Full"
    say(console, f"{timeline} trace: open {folder / TRACE} in ui.perfetto.dev")
    say_next(console, _trial(folder, profile.bottleneck))
    if request.as_json:
        print(with_urls(json.dumps(_outcome(folder, profile))))


def _trial(folder: Path, found: Bottleneck) -> tuple[str, ...]:
    """Return the command that profiles the same run with the setting to try, or that trains it."""
    entry, config = field_at(found.setting), str(folder / CONFIG)
    if entry is None or found.value is None:
        return "khop", "train", config
    return "khop", "profile", config, entry.option, str(found.value)


def sentences(found: Bottleneck, config: RunConfig) -> tuple[str, str]:
    """Return a sentence on the bottleneck, and a sentence on the setting to change with its current value."""
    entry = field_at(found.setting)
    assert entry is not None, found.setting
    now = shown(value_at(config, found.setting)) or "not set"
    to_try = "" if found.value is None else f"; try {entry.option} {found.value}"
    advice = found.advice[0].upper() + found.advice[1:]
    return f"{found.finding}.", f"{advice}: {found.setting} is {now}{to_try}."


def _outcome(folder: Path, profile: Profile) -> dict[str, object]:
    found = profile.bottleneck
    return {
        "profile": str(folder),
        "steps": len(profile.records[0].steps),
        "bottleneck": found.kind.value,
        "finding": found.finding,
        "setting": found.setting,
        "try": found.value,
        "ranks": [asdict(rank) for rank in profile.summary.ranks],
    }
