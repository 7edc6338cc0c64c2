"""The work of `khop profile`."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

from khop.cli.check_once import check_once
from khop.cli.commands.shared import RankOptions
from khop.cli.next_steps import say_next
from khop.cli.options import named, shown
from khop.cli.profile_table import LEAST, profile_tables
from khop.cli.progress import watching
from khop.cli.ranks import as_ranks, run_of_rank
from khop.cli.run_folder import METRICS, graph_name, new_run_folder, write_config, write_whole
from khop.cli.terminal import fitting, say
from khop.cli.timeline import drawn_timeline
from khop.config.build import Run
from khop.config.fields import field_at, value_at
from khop.config.gpu import check_gpu_is_there
from khop.config.read import RawRun
from khop.config.saved_run import CONFIG
from khop.config.values import RunConfig
from khop.errors import told
from khop.profiling.bottleneck import Bottleneck, bottleneck
from khop.profiling.machine import this_machine
from khop.profiling.records import RankRecord, Recorder, without_first
from khop.profiling.summary import Summary, summarized
from khop.profiling.trace import chrome_trace
from khop.runtime.clocks import clock_offset
from khop.runtime.group import Group, this_group
from khop.training.observer import Several, Unwatched

WARM_UP = 5  # first steps, which do not count: they set up memory, threads and connections
TRACE, TIMELINE = "trace.json", "timeline.png"
PROFILES = Path("profiles")
_WIDTH = 110  # columns of tables without a terminal


@dataclass(frozen=True)
class Request:
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


def profile(request: Request, config: RunConfig, ranks: RankOptions) -> None:
    """Profile as all ranks."""
    check_once(request.raw, config, ranks)
    as_ranks(profile_rank, request, config, ranks)


def profile_rank(rank: int, device: torch.device, request: Request) -> None:
    """Profile as one rank, often the only one. Rank 0 prints, and writes the files."""
    console = Console(stderr=request.as_json, quiet=rank > 0)
    group = this_group()
    run = run_of_rank(request.raw, device, named(request.raw.values))
    folder = _shared_folder(run.config, group)
    asked = WARM_UP + request.steps
    recorder = Recorder()
    with watching(console) if rank == 0 else nullcontext(Unwatched()) as watcher:
        trainer = run.trainer(folder, Several(watcher, recorder))
        say(console, f"{graph_name(run.config)}: {WARM_UP} steps to warm up, {request.steps} measured")
        done = trainer.rehearse(asked)
    records = _collected(group, recorder, run.config)
    if rank == 0:
        steps_per_epoch = len(run.loader())
        if done > steps_per_epoch:
            say(console, f"an epoch has {steps_per_epoch} steps: the profile covers several")
        if done < asked:
            say(console, f"stopped after {done} of {asked} steps")
        _conclude(console, run, folder, _found(records, run.config), request)
    if done < asked:
        raise told(KeyboardInterrupt())


def _shared_folder(config: RunConfig, group: Group) -> Path:
    """Make a new folder on rank 0, and return it on all ranks."""
    check_gpu_is_there(config)  # before there is a folder
    made = str(new_run_folder(config, PROFILES)).encode() if group.rank == 0 else None
    with group.exchanging("sharing the folder"):
        return Path(group.share_bytes(made).decode())


def _collected(group: Group, recorder: Recorder, config: RunConfig) -> tuple[RankRecord, ...]:
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


def _conclude(console: Console, run: Run, folder: Path, profile: Profile, request: Request) -> None:
    title = f"{graph_name(run.config)}: {len(profile.records[0].steps)} steps"
    picture = drawn_timeline(profile.records, profile.summary, title)
    write_whole(folder / TRACE, json.dumps(chrome_trace(profile.records)).encode())
    write_whole(folder / TIMELINE, picture)
    write_config(folder, run.config)
    (folder / METRICS).unlink()  # a profile measures no epoch
    wide = console if console.is_terminal else Console(file=console.file, width=_WIDTH)
    for table in profile_tables(profile.summary):
        wide.print(fitting(wide, table, *LEAST))
    say(console, *sentences(profile.bottleneck, run.config))
    say(console, f"Timeline: {folder / TIMELINE}; full trace: open {folder / TRACE} in ui.perfetto.dev")
    say_next(console, _trial(folder, profile.bottleneck))
    if request.as_json:
        print(json.dumps(_outcome(folder, profile)))


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
