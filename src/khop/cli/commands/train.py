"""`khop train`: train a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import read_run, written
from khop.cli.commands.shared import AllowCode, Baselines, RankOptions, RankReport
from khop.cli.options import Options, RunCommand, takes_groups, takes_run_options
from khop.run.fields import field_at, run_fields
from khop.run.read import RESUMABLE, is_run_folder, preset_names, with_options

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help=f"Run to train: a run.toml, or a preset ({', '.join(preset_names())})."
    ),
]
_GRAPH = "graph"  # may have another path in a resumed run, for example a snapshot; its content is compared
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Run folder to resume from its next batch.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add `khop train`."""
    app.command("train", cls=RunCommand)(takes_run_options(run_fields())(takes_groups(_train)))


def _train(
    source: Source = None,
    resume: Resume = None,
    baselines: Baselines = False,
    *,
    ranks: RankOptions,
    report: RankReport,
    allow_code: AllowCode = None,
    options: Options,
) -> None:
    """Train a model. Every field of a run file is also an option, which overrides the file.

    The command tunes glibc's allocator to keep freed memory and to request huge pages (1.5 times as fast on a
    CPU), unless GLIBC_TUNABLES, MALLOC_..._THRESHOLD_ or LD_PRELOAD are set.
    """
    _check_source(source)
    _check_resumable(source, resume, options)
    packages = allow_code or ()
    if resume:
        raw = read_run(resume, packages, options)
    else:
        raw = with_options(written(source, options, "khop train", packages), options)
    from khop.run.check import checked

    config = checked(raw)
    from khop.cli.train import TrainCall, train

    train(TrainCall(raw, resume, report.as_json, baselines), config, ranks)


def _check_source(source: str | None) -> None:
    if source is not None and is_run_folder(Path(source)):
        folder = shlex.quote(source)
        raise ValueError(
            f"{source}: is a run folder. To continue the run: khop train --resume {folder}; to repeat it in "
            f"a new folder: khop train {shlex.quote(str(Path(source) / 'config.toml'))}"
        )


def _check_resumable(source: str | None, resume: Path | None, options: Options) -> None:
    if resume is None:
        return
    if source is not None:
        raise ValueError(f"--resume {resume} already names the run to continue: leave out {source!r}")
    for path in options:
        entry = field_at(path)
        if path not in RESUMABLE | {_GRAPH} and entry is not None:
            raise ValueError(
                f"{entry.option} cannot change in a resumed run; start a new run: "
                f"khop train {shlex.quote(str(resume / 'config.toml'))} {entry.option} ..."
            )
