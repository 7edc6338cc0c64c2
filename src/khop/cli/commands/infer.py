"""`khop infer`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.commands.shared import Checkpoint, JsonLast, Oversubscribe, Procs, RunFolder
from khop.cli.options import Options, named, takes_run_options
from khop.cli.run_folder import read_run
from khop.config.fields import run_fields
from khop.config.read import checked, with_options
from khop.config.run_fingerprint import MACHINE, TOGETHER


class Values(StrEnum):
    """What stands in a row."""

    EMBEDDINGS = "embeddings"
    OUTPUTS = "outputs"


Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FILE",
        help="What is written: FILE.npy, with FILE.ids.npy, or FILE.parquet.",
        show_default=False,
    ),
]
NodeTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--node-type",
        metavar="TEXT",
        help="Whose rows, may be given several times: then each has a file, FILE.TYPE.npy. "
        "Default: the node types that the run is about.",
        show_default=False,
    ),
]
SplitName = Annotated[
    str | None,
    typer.Option("--split", metavar="TEXT", help="Only the nodes of this split.", show_default=False),
]
Ids = Annotated[
    Path | None,
    typer.Option(
        "--ids", metavar="FILE.npy", help="Only the nodes in this file, in its order.", show_default=False
    ),
]
What = Annotated[
    Values,
    typer.Option("--values", help="Rows of the last layer, or the model's outputs: logits of classes."),
]
Weights = Annotated[Checkpoint, typer.Option("--checkpoint", help="The weights that are used.")]


def register(app: typer.Typer) -> None:
    """Add `khop infer`."""
    measured = MACHINE | TOGETHER | {"evaluation.batch_size"}
    fields = [entry for entry in run_fields() if entry.path in measured]
    app.command("infer")(takes_run_options(fields, default="as in the run")(_infer))


def _infer(
    run_folder: RunFolder,
    out: Out,
    node_type: NodeTypes = None,
    split: SplitName = None,
    ids: Ids = None,
    values: What = Values.EMBEDDINGS,
    checkpoint: Weights = Checkpoint.BEST,
    procs: Procs = None,
    oversubscribe: Oversubscribe = False,
    as_json: JsonLast = False,
    *,
    options: Options,
) -> None:
    """Write a row for every node, over all neighbors, layer by layer: activations may be larger than memory.

    What was stopped goes on when the same command is called again, also with another number of processes.
    """
    if split is not None and ids is not None:
        raise ValueError("--split and --ids both say which nodes: give one of them")
    raw = with_options(read_run(run_folder), options)
    config = checked(raw)
    from khop.cli.infer import Request, infer

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
        as_json,
    )
    infer(request, config, procs, oversubscribe=oversubscribe)
