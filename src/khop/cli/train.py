"""`khop train`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from khop.cli.bytes_bar import bytes_bar
from khop.cli.cache import cache_folder
from khop.cli.curve import drawn_curve
from khop.cli.options import HOW_NOT_WHAT, Options, shown, takes_run_options
from khop.cli.progress import say, scores_of, two_columns, watching
from khop.cli.run_folder import CHECKPOINTS, CURVE, new_run_folder, read_run, write_config, write_whole
from khop.cli.start import INTERRUPTED
from khop.config.build import Run, prepare
from khop.config.fields import field_at, run_fields
from khop.config.presets import preset, preset_names
from khop.config.read import RawRun, read_toml, with_options

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help=f"A run.toml, or a run that comes with khop: {', '.join(preset_names())}."
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Go on with a stopped run, with the very next batch.", show_default=False
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="End with one line of JSON on stdout; all else goes to stderr.")
]
# What a run may change on the way and still be the same run.
_RESUMABLE = HOW_NOT_WHAT | {"training.epochs", "training.patience"}


def register(app: typer.Typer) -> None:
    """Add `khop train`."""
    app.command("train")(takes_run_options(run_fields())(_train))


def _train(
    source: Source = None, resume: Resume = None, as_json: AsJson = False, *, options: Options
) -> None:
    """Train a model: khop train debian, or khop train run.toml. Every field of a run is an option.

    Memory that large tensors leave stays with the process, and huge pages are asked for: 1.5 x as fast on a
    CPU with glibc. Left alone where GLIBC_TUNABLES, MALLOC_..._THRESHOLD_ or LD_PRELOAD set the allocator up.
    """
    console = Console(stderr=as_json)
    _check_resumable(source, resume, options)
    raw = read_run(resume) if resume else _written(source, options)
    with bytes_bar() as notice:
        run = prepare(with_options(raw, options), cache_folder(), notice)
    torch.set_num_threads(run.config.compute_threads)
    folder = resume or new_run_folder(run.config)
    with _stoppable(folder), watching(console) as watcher:
        trainer = run.trainer(folder, watcher)
        if resume:
            trainer.resume()
        write_config(folder, run.config)
        say(console, f"{_title(run)}; results in {folder}")
        result = trainer.fit()
    write_whole(folder / CURVE, drawn_curve(result.records, result.best_epoch, _title(run)))
    outcome = {
        "run": str(folder),
        "epochs": len(result.records),
        "best_epoch": result.best_epoch + 1,
        "seconds": round(result.seconds, 2),
        **scores_of(result.records[result.best_epoch]),
    }
    say(console, *two_columns(outcome))
    if as_json:
        print(json.dumps(outcome))


def _check_resumable(source: str | None, resume: Path | None, options: Options) -> None:
    if resume is None:
        return
    if source is not None:
        raise ValueError(f"--resume {resume} goes on with a run of its own: leave out {source!r}")
    for path in options:
        entry = field_at(path)
        if path not in _RESUMABLE and entry is not None:
            raise ValueError(
                f"{entry.option} cannot change when a run goes on; start another: "
                f"khop train {shlex.quote(str(resume / 'config.toml'))} {entry.option} ..."
            )


def _written(source: str | None, options: Options) -> RawRun:
    if source is None and "graph" not in options:
        raise ValueError("which run? khop train debian, khop train run.toml, or khop train --graph FOLDER")
    if source is None:
        return RawRun({}, "the command line")
    if source in preset_names():
        return preset(source)
    if not Path(source).is_file():
        presets = ", ".join(preset_names())
        raise ValueError(f"{source}: no such file; give a run.toml, or a run that comes with khop: {presets}")
    return read_toml(Path(source))


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C is no error: it says where to go on."""
    try:
        yield
    except KeyboardInterrupt:
        last = folder / CHECKPOINTS / "last"
        go_on = f"the last checkpoint is {last}; go on with: khop train --resume {shlex.quote(str(folder))}"
        print(f"khop: stopped; {go_on if last.is_dir() else 'there is no checkpoint yet'}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _title(run: Run) -> str:
    config = run.config
    name, fanouts = Path(config.graph).name, shown(config.sampler.fanouts)
    model = f"{config.model.kind} {config.model.layers} x {config.model.hidden}"
    return f"{name}: {model}, fanouts {fanouts}, seed {config.training.seed}"
