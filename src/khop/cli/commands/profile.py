"""`khop profile`: find the bottleneck of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import is_graph_folder, read_run, written
from khop.cli.commands.shared import AllowCode, RankOptions, RankReport
from khop.cli.options import Options, RunCommand, takes_groups, takes_run_options
from khop.run.fields import run_fields
from khop.run.read import CONFIG, is_run_folder, preset_names, with_options

_BESIDE_STEPS: dict[str, object] = {
    "checkpoint.steps": 0,
    "checkpoint.minutes": 0.0,
    "tensorboard": False,
    "logger": "none",
}
_NOT_OFFERED = {*_BESIDE_STEPS, "checkpoint.keep", "out"}

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help=f"Run to profile: a run.toml, a run folder, or a preset ({', '.join(preset_names())}).",
    ),
]
Steps = Annotated[int, typer.Option("--steps", metavar="INT", help="Optimizer steps to measure.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="Folder for the profile.", show_default="profiles/GRAPH-N"),
]


class ProfileCommand(RunCommand):
    """`khop profile`, which also accepts a run folder."""

    def file_of(self, word: str) -> Path:
        """Return the run file that an argument names, or the config.toml of a run folder."""
        return Path(word, CONFIG) if is_run_folder(Path(word)) else Path(word)


def register(app: typer.Typer) -> None:
    """Add `khop profile`."""
    fields = [entry for entry in run_fields() if entry.path not in _NOT_OFFERED]
    take = takes_run_options(fields, default="as in the run")
    app.command("profile", cls=ProfileCommand)(take(takes_groups(_profile)))


def _profile(
    source: Source = None,
    steps: Steps = 50,
    *,
    ranks: RankOptions,
    out: Out = None,
    report: RankReport,
    allow_code: AllowCode = None,
    options: Options,
) -> None:
    """Run a few steps and report the time per stage, the bottleneck, and the setting to change.

    The trained weights are discarded, and no split is evaluated. The output folder gets a trace for Perfetto
    and a plot.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}: must be at least 1 (--steps)")
    packages = allow_code or ()
    run = (
        read_run(Path(source), packages, options)
        if source is not None and _names_a_run_folder(source)
        else written(source, options, "khop profile", packages)
    )
    raw = with_options(run, {**options, **_BESIDE_STEPS, **({} if out is None else {"out": str(out)})})
    from khop.run.check import checked

    config = checked(raw)
    from khop.cli.train import ProfileRequest as Request
    from khop.cli.train import profile

    profile(Request(raw, steps, report.as_json), config, ranks)


def _names_a_run_folder(source: str) -> bool:
    """Return whether `source` is a run folder, or a folder that is neither a graph nor named as a preset."""
    folder = Path(source)
    is_other = is_graph_folder(folder) or source in preset_names()
    return is_run_folder(folder) or (folder.is_dir() and not is_other)
