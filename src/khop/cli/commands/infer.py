"""`khop infer`: write the outputs of a trained run for all nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import read_run
from khop.cli.commands.shared import AllowCode, CheckpointChoice, RankOptions, RankReport, RunFolder, Values
from khop.cli.options import Options, ShortHelp, named, takes_groups, takes_run_options
from khop.run.fields import run_fields
from khop.run.read import MACHINE, TOGETHER

Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FILE",
        help="File to write: FILE.npy (and FILE.ids.npy with the ids), or FILE.parquet.",
        show_default=False,
    ),
]
NodeTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--node-type",
        metavar="TEXT",
        help="Node type to infer; can be repeated, with one file per type, FILE.TYPE.npy "
        "(default: the node types of the run's task).",
        show_default=False,
    ),
]
SplitName = Annotated[
    str | None,
    typer.Option(
        "--split",
        metavar="TEXT",
        help="Infer only the nodes of this split (default: all nodes). In a graph split by time, messages "
        "pass only over the edges that the evaluation of this split uses (default: all edges).",
        show_default=False,
    ),
]
Ids = Annotated[
    Path | None,
    typer.Option(
        "--ids",
        metavar="FILE.npy",
        readable=False,
        help="Infer only the node numbers in this file, in its order (default: all nodes).",
        show_default=False,
    ),
]
RowValues = Annotated[
    Values,
    typer.Option(
        "--values",
        help="Values to write: embeddings (output of the last layer) or outputs (class logits).",
    ),
]
Weights = Annotated[CheckpointChoice, typer.Option("--checkpoint", help="Checkpoint to use.")]


def register(app: typer.Typer) -> None:
    """Add `khop infer`."""
    measured = MACHINE | TOGETHER | {"evaluation.batch_size", "evaluation.batch_edges"}
    fields = [entry for entry in run_fields() if entry.path in measured]
    app.command("infer", cls=ShortHelp)(
        takes_run_options(fields, default="as in the run")(takes_groups(_infer))
    )


def _infer(
    run_folder: RunFolder,
    out: Out,
    node_type: NodeTypes = None,
    split: SplitName = None,
    ids: Ids = None,
    values: RowValues = Values.EMBEDDINGS,
    checkpoint: Weights = CheckpointChoice.BEST,
    *,
    ranks: RankOptions,
    report: RankReport,
    allow_code: AllowCode = None,
    options: Options,
) -> None:
    """Write one row per node, computed exactly: layer by layer, over all neighbors.

    Activations can be larger than memory. To continue a stopped inference, run the same command again; the
    number of processes may change.
    """
    if split is not None and ids is not None:
        raise ValueError("--split and --ids both select nodes: give only one of them")
    raw = read_run(run_folder, allow_code or (), options)
    from khop.run.check import checked

    config = checked(raw)
    from khop.cli.trained import InferRequest as Request
    from khop.cli.trained import infer

    request = Request(
        run_folder,
        raw,
        out,
        tuple(node_type or ()),
        split,
        ids,
        values.value,
        checkpoint.value,
        named(options),
        report.as_json,
    )
    infer(request, config, ranks)
