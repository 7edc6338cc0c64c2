"""`khop predict`: predict new nodes or rows with dates, or score pairs of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import read_run
from khop.cli.commands.shared import AllowCode, CheckpointChoice, RankReport, RunFolder
from khop.cli.options import Options, ShortHelp, named, takes_groups, takes_run_options
from khop.run.fields import run_fields

Later = Annotated[
    Path | None,
    typer.Option(
        "--graph",
        metavar="FOLDER",
        help="New nodes and their edges: a folder written by khop import --encoders.",
        show_default=False,
    ),
]
PairFile = Annotated[
    Path | None,
    typer.Option(
        "--pairs",
        metavar="FILE",
        readable=False,  # the error of khop has a remedy
        help="File of pairs of ids to score with a link-prediction run: Parquet or CSV, with the id columns "
        "of the imported edge table.",
        show_default=False,
    ),
]
RowFile = Annotated[
    Path | None,
    typer.Option(
        "--rows",
        metavar="FILE",
        readable=False,  # the error of khop has a remedy
        help="Rows to predict with a run that has seed tables: Parquet or CSV, with the ids and dates of "
        "these tables.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE.parquet",
        help="File to write, with a row per new node, row or pair: your ids, class names and scores "
        "(default: print the first lines).",
        show_default=False,
    ),
]
Weights = Annotated[CheckpointChoice, typer.Option("--checkpoint", help="Checkpoint to use.")]
_CHANGED = {"device", "threads", "compute_threads", "evaluation.fanouts", "evaluation.batch_size"}


def register(app: typer.Typer) -> None:
    """Add `khop predict`."""
    fields = [entry for entry in run_fields() if entry.path in _CHANGED]
    app.command("predict", cls=ShortHelp)(
        takes_run_options(fields, default="as in the run")(takes_groups(_predict))
    )


def _predict(
    run_folder: RunFolder,
    graph: Later = None,
    pairs: PairFile = None,
    rows: RowFile = None,
    out: Out = None,
    checkpoint: Weights = CheckpointChoice.BEST,
    *,
    report: RankReport,
    allow_code: AllowCode = None,
    options: Options,
) -> None:
    """Predict new nodes or rows of tables, or score pairs of nodes, all identified by your ids.

    New nodes are joined to the graph of the run, and get the same predictions as if the graph had always
    contained them. A link-prediction run scores --pairs; with --graph, pairs may contain new nodes. A run
    with seed tables predicts --rows, each at its date.
    """
    raw = read_run(run_folder, allow_code or (), options)
    from khop.run.check import checked

    checked(raw)
    from khop.cli.trained import PredictRequest as Request
    from khop.cli.trained import predict

    given = named(options)
    predict(Request(run_folder, raw, graph, pairs, rows, out, checkpoint.value, given, report.as_json))
