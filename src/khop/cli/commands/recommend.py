"""`khop recommend`: list the destinations with the highest scores for each source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import read_run
from khop.cli.commands.shared import AllowCode, CheckpointChoice, RankReport, RunFolder
from khop.cli.options import takes_groups


class Until(StrEnum):
    """Edges to use for recommendations."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"
    ALL = "all"


Users = Annotated[
    list[str] | None,
    typer.Option(
        "--user",
        metavar="ID",
        help="Id of a node to recommend for, or its number if the graph stores no ids; can be repeated "
        "(default: all nodes, with --out).",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE.parquet",
        help="File to write, with a row per recommendation (default: print them).",
        show_default=False,
    ),
]
Count = Annotated[int, typer.Option("-k", metavar="INT", help="Recommendations per node.")]
SplitName = Annotated[
    Until,
    typer.Option(
        "--split",
        help="Edges to use: those before the cut-off of a split, as in its evaluation, or all.",
    ),
]
Weights = Annotated[CheckpointChoice, typer.Option("--checkpoint", help="Checkpoint to use.")]


@dataclass(frozen=True)
class Choice:
    """Options for the candidates and their number."""

    k: Count = 20
    unseen: Annotated[
        bool, typer.Option("--unseen", help="Exclude nodes to which the source is already linked.")
    ] = False
    split: SplitName = Until.ALL


def register(app: typer.Typer) -> None:
    """Add `khop recommend`."""
    app.command("recommend")(takes_groups(_recommend))


def _recommend(
    run_folder: RunFolder,
    user: Users = None,
    out: Out = None,
    *,
    choice: Choice,
    report: RankReport,
    checkpoint: Weights = CheckpointChoice.BEST,
    allow_code: AllowCode = None,
) -> None:
    """Recommend the destinations with the highest scores for each source of a link-prediction run.

    Scores are exact, over all neighbors. Sources without edges get the most popular nodes and are marked.
    """
    if choice.k < 1:
        raise ValueError(f"-k {choice.k}: must be at least 1")
    if not user and out is None:
        raise ValueError(
            "no node is given: use --user ID, or --out FILE.parquet to write recommendations for all nodes"
        )
    raw = read_run(run_folder, allow_code or (), {})
    from khop.run.check import checked

    config = checked(raw)
    from khop.cli.trained import RecommendRequest as Request
    from khop.cli.trained import recommend

    request = Request(
        run_folder,
        raw,
        tuple(user or ()),
        out,
        choice.k,
        "unseen" if choice.unseen else "all",
        choice.split.value,
        checkpoint.value,
        report,
    )
    recommend(request, config)
