"""The work of `khop recommend`."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from khop.api.open_ids import open_ids
from khop.api.recommend import Candidates, Recommendations, Recommender
from khop.cli.bytes_bar import counting_bar
from khop.cli.commands.shared import RankOptions, RankReport
from khop.cli.lines import tell
from khop.cli.next_steps import reading, say_next
from khop.cli.progress import two_columns
from khop.cli.ranks import as_ranks, run_of_rank
from khop.cli.run_folder import CHECKPOINTS
from khop.cli.terminal import say
from khop.config.build import Run
from khop.config.read import RawRun
from khop.config.recommending import draws_for, recommender_of
from khop.config.values import RunConfig
from khop.graph.names import Names
from khop.graph.node_ids import OwnIds, stored_ids
from khop.inference.parquet_file import check_parquet, id_columns, parquet, write_parquet
from khop.schema import EdgeType, NodeType
from khop.training.interrupts import terminations_raised

BY = ("model", "popularity")
_COMPARED_IDS = 50_000  # of a type, for the nearest one


@dataclass(frozen=True)
class Request:
    """The arguments of one call of the command."""

    folder: Path
    raw: RawRun
    users: tuple[str, ...]  # empty: all
    out: Path | None
    k: int
    candidates: Candidates
    split: str
    checkpoint: str
    report: RankReport


def recommend(request: Request, config: RunConfig) -> None:
    """Recommend in one process."""
    as_ranks(recommend_rank, request, config, RankOptions())


def recommend_rank(rank: int, device: torch.device, request: Request) -> None:
    """Recommend as the only rank: check everything, compute, and print or write."""
    begun = time.perf_counter()
    console = Console(stderr=request.report.as_json)
    if request.out is not None:
        check_parquet(request.out, "--out")
    checkpoint = request.folder / CHECKPOINTS / request.checkpoint
    run = run_of_rank(request.raw, device, frozenset(), checkpoint)
    recommender = recommender_of(run, request.split, request.k, request.candidates)
    sources = _sources(run, recommender, request.users)
    run.restore(checkpoint, tell, request.raw.options)
    work = request.folder if request.out is None else request.out.absolute().parent
    with (
        terminations_raised(),
        counting_bar("computing nodes of all layers") as layers,
        recommender.rows(draws_for(run), work, layers) as ranker,
        counting_bar("ranking users") as ranking,
    ):
        pieces = ranker.pieces(sources, ranking)
        outcome = _concluded(run, recommender.edge_type, pieces, request, console)
    outcome = {
        "run": str(request.folder),
        "checkpoint": request.checkpoint,
        "split": request.split,
        **outcome,
        "seconds": round(time.perf_counter() - begun, 2),
    }
    say(console, *two_columns({name: of for name, of in outcome.items() if name != "users"}))
    all_users = ("-k", str(request.k), "--out", str(request.folder / "recommended.parquet"))
    all_at_once = ("khop", "recommend", str(request.folder), *all_users)
    say_next(console, all_at_once if request.out is None else reading(request.out))
    if request.report.as_json:
        print(json.dumps(outcome))


def _concluded(
    run: Run, edge_type: EdgeType, pieces: Iterator[Recommendations], request: Request, console: Console
) -> dict[str, Any]:
    """Write the file, or print and return the recommendations; with the numbers of users and of cold ones."""
    names, counts = Names.of(run.graph.folder), {"nodes": 0, "cold": 0}

    def counted() -> Iterator[Recommendations]:
        for piece in pieces:
            counts["nodes"] += piece.sources.numel()
            counts["cold"] += int(piece.cold.sum())
            yield piece

    if request.out is not None:
        columns = (_columns(piece, edge_type, names) for piece in counted())
        rows = write_parquet(request.out, columns)
        return {"file": str(request.out), "rows": rows, **counts}
    users = [user for piece in counted() for user in _listed(run, piece, edge_type)]
    for user in users:
        by = "" if user["by"] == BY[0] else "  (no edge before the cut-off: by popularity)"
        say(console, f"{user['id']}{by}")
        for rank, item in enumerate(user["recommended"], 1):
            say(console, f"{rank:>4}  {item['id']}  {item['score']:.4g}")
    return {"users": users, **counts}


def _columns(piece: Recommendations, edge_type: EdgeType, names: Names) -> Mapping[str, Any]:
    """Return the columns of a row per recommendation."""
    source, _, destination = edge_type
    at, place = (piece.destinations >= 0).nonzero().unbind(1)
    found, pyarrow = piece.destinations[at, place], parquet()
    return {
        **id_columns(names.ids.get(source), piece.sources[at], "source_id", "source"),
        "rank": pyarrow.array((place + 1).numpy()),
        **id_columns(names.ids.get(destination), found, "destination_id", "destination"),
        "score": pyarrow.array(piece.scores[at, place].double().numpy()),
        "by": pyarrow.array([BY[cold] for cold in piece.cold[at].int().tolist()], pyarrow.string()),
    }


def _listed(run: Run, piece: Recommendations, edge_type: EdgeType) -> list[dict[str, Any]]:
    """Return for each source its id, the ids and scores of its recommendations, and their origin."""
    of_sources, of_destinations = (_shown(run, t) for t in edge_type[::2])
    users = []
    for row, user in enumerate(of_sources(piece.sources)):
        nodes = piece.destinations[row][piece.destinations[row] >= 0]
        ids, scores = of_destinations(nodes), piece.scores[row].tolist()
        recommended = [{"id": id_, "score": score} for id_, score in zip(ids, scores, strict=False)]
        users.append({"id": user, "by": BY[int(piece.cold[row])], "recommended": recommended})
    return users


def _shown(run: Run, node_type: NodeType) -> Callable[[Tensor], Sequence[str | int]]:
    """Return a function from nodes to the users' ids, or to their numbers."""
    ids = _own_ids(run, node_type)
    return (lambda nodes: nodes.tolist()) if ids is None else (lambda nodes: ids.ids(nodes.tolist()))


def _own_ids(run: Run, node_type: NodeType) -> OwnIds | None:
    folder = run.graph.folder
    if folder is None or node_type not in stored_ids(folder):
        return None
    return open_ids(folder.path, node_type)


def _sources(run: Run, recommender: Recommender, users: Sequence[str]) -> Tensor:
    """Return the nodes of the given ids, or all nodes. ValueError names an unknown id, and near ones."""
    node_type = recommender.edge_type[0]
    if not users:
        return recommender.sources(None)
    ids = _own_ids(run, node_type)
    if ids is None:
        try:
            return recommender.sources(torch.tensor([int(user) for user in users]))
        except ValueError as error:
            raise ValueError(
                f"--user {', '.join(users)}: the graph stores no ids of {node_type!r}, so give numbers of "
                f"nodes: {error}"
            ) from error
    rows = ids.rows(users)
    for user, row in zip(users, rows.tolist(), strict=True):
        if row < 0:
            raise ValueError(f"--user {user!r}: no {node_type!r} has this id{_nearest(ids, user)}")
    return recommender.sources(torch.from_numpy(rows).long())


def _nearest(ids: OwnIds, user: str) -> str:
    """Return the nearest ids as the end of a sentence; types of many ids are not searched."""
    hint = f"; find ids by khop lookup GRAPH {ids.node_type} 0 --by node"
    if len(ids) > _COMPARED_IDS:
        return hint
    near = difflib.get_close_matches(user, map(str, ids.ids(range(len(ids)))), n=3)
    return f"; the nearest are {', '.join(near)}" if near else hint
