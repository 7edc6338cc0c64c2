"""Implementation of the commands for trained runs: evaluate, infer, predict and recommend."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from khop.api.inference import Inference
from khop.api.open_graph import names_of, open_ids
from khop.api.recommend import Candidates, Recommendations, Recommender
from khop.api.split_links import time_cut_offs
from khop.cli.commands.shared import RankOptions, RankReport, Values
from khop.cli.lines import tell
from khop.cli.progress import beside_scores, two_columns
from khop.cli.rank_runs import fitted_run_of_rank, run_of_rank
from khop.cli.ranks import as_ranks, with_device
from khop.cli.run_folder import write_config, write_whole
from khop.cli.stores import published_files
from khop.cli.terminal import bytes_bar, counting_bar, reading, say, say_next
from khop.distributed.processes.group import this_group
from khop.errors import told
from khop.graph.atomic import in_bytes
from khop.graph.node_ids import Names, OwnIds, stored_ids
from khop.graph.npy import header_of
from khop.graph.remote import with_urls
from khop.inference.chunks import Progress
from khop.inference.predictions import Columns, check_parquet, id_columns, parquet, write_parquet
from khop.run.build import Run
from khop.run.contexts import Evaluation
from khop.run.parts import in_flight_of
from khop.run.predict import draws_for, predict_later, predict_rows, recommender_of
from khop.run.read import CHECKPOINTS, RawRun
from khop.run.tasks.baselines import has_label_propagation, label_propagation, own_features
from khop.run.values import RunConfig
from khop.sampling.seeds import ids_here
from khop.schema import EdgeType, NodeType
from khop.training.replace_folder import pushed_folders
from khop.training.run_output import BEST, LAST
from khop.training.step_clock import Unwatched
from khop.training.tasks import OWN_FEATURES, score_name
from khop.training.trainer import terminations_raised

BASELINES = "baselines"
_TRAINED = "trained"  # a file that marks the baseline as trained
# Options of an evaluation that would change the training of the baseline.
_DECIDING = frozenset({"evaluation.batch_size", "evaluation.batch_edges", "links.eval_negatives"})


@dataclass(frozen=True)
class OwnFeatures:
    """The baseline of a run, in a subfolder of the run folder."""

    run: Run  # of the baseline
    folder: Path

    @classmethod
    def of(cls, run: Run, raw: RawRun, folder: Path) -> OwnFeatures:
        """Make the baseline of the run in `folder`; ValueError if the task has no node features."""
        return cls(own_features(run, raw), folder / BASELINES / OWN_FEATURES)

    def train(self) -> None:
        """Train the baseline with the run's settings, or resume, and load its best weights. Collective."""
        trainer = self.run.trainer(self.folder, Unwatched())
        if self._shared(bool(pushed_folders(self.folder / CHECKPOINTS / LAST))):
            trainer.resume()
        trainer.fit()
        if this_group().rank == 0:
            write_config(self.folder, self.run.config)
            write_whole(self.folder / _TRAINED, b"")
        self.run.restore(self.folder / CHECKPOINTS / BEST, tell, ())

    def load(self, given: frozenset[str]) -> None:
        """Load the best weights, after training if there are none. `given` are options of an evaluation."""
        if self._shared((self.folder / _TRAINED).is_file()):
            self.run.restore(self.folder / CHECKPOINTS / BEST, tell, given)
            return
        if given & _DECIDING:
            raise ValueError(
                f"--baselines: the baseline is not trained yet, and {', '.join(sorted(given & _DECIDING))} "
                "would change its training; run khop evaluate with --baselines alone first"
            )
        self.train()

    def scores(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str]
    ) -> dict[str, float]:
        """Compute scores, such as "val/own-features/accuracy". Collective."""
        scores = self.run.scores(splits, progress, extra_metrics)
        named = {name: name if "/" in name else f"{name}/{self.run.task.metric}" for name in scores}
        return {named[name].replace("/", f"/{OWN_FEATURES}/", 1): score for name, score in scores.items()}

    def _shared(self, is_there: bool) -> bool:
        """Return rank 0's value on all ranks. Collective."""
        group = this_group()
        with group.exchanging("looking for a baseline"):
            return bool(json.loads(group.share_bytes(json.dumps(is_there).encode())))


def label_propagation_scores(
    run: Run, splits: Sequence[str], extra_metrics: Sequence[str]
) -> Mapping[str, float]:
    """Return the scores of label propagation; with servers, print a message and return none.

    Collective.
    """
    if run.graph.servers is not None and has_label_propagation(run) and this_group().rank == 0:
        tell(
            "--baselines: label propagation is left out, because the edges are on servers; to compute it, "
            "evaluate on the graph folder"
        )
    return label_propagation(run, splits, extra_metrics)


@dataclass(frozen=True)
class TrainedCall:
    """The arguments of one call of the command, the same for every rank."""

    folder: Path
    raw: RawRun
    splits: tuple[str, ...]  # empty: all splits of the run
    checkpoint: str
    metrics: tuple[str, ...]
    given: frozenset[str]  # options given in this call, not in the run
    as_json: bool
    predictions: Path | None
    baselines: bool  # also train and score the baseline on node features


def evaluate(request: TrainedCall, config: RunConfig, ranks: RankOptions) -> None:
    """Evaluate as all ranks."""
    as_ranks(evaluate_rank, request, with_device(request.raw, config, ranks), ranks)


def evaluate_rank(rank: int, device: torch.device, request: TrainedCall) -> None:
    """Evaluate as one rank, often the only one. Rank 0 prints."""
    console = Console(stderr=request.as_json, quiet=rank > 0)
    if request.predictions is not None and rank == 0:
        check_parquet(request.predictions, "--predictions")
    checkpoint = request.folder / CHECKPOINTS / request.checkpoint
    run, memory_line = fitted_run_of_rank(request.raw, device, request.given, "evaluation", checkpoint)
    if memory_line is not None:
        say(console, memory_line)
    run.restore(checkpoint, tell, request.raw.options)
    baseline = OwnFeatures.of(run, request.raw, request.folder) if request.baselines else None
    with counting_bar("evaluating", rank) as progress:
        arguments = (request.splits or run.run_task.splits, progress, request.metrics)
        if request.predictions is None:
            scores = run.compared(*arguments)
        else:
            scores = _written(run.evaluated(*arguments), run, request.predictions, rank)
        if baseline is not None:
            baseline.load(request.given)
            scores |= baseline.scores(*arguments)
            scores |= label_propagation_scores(run, arguments[0], request.metrics)
    outcome: dict[str, object] = {
        "run": str(request.folder),
        "checkpoint": request.checkpoint,
        **{score_name(name, run.task.metric): score for name, score in scores.items()},
    }
    if request.predictions is not None:
        outcome["predictions"] = str(request.predictions)
    say(console, *two_columns(beside_scores(outcome)))
    report = ("khop", "report", str(request.folder), "-o", str(request.folder / "report.html"))
    say_next(console, report if request.predictions is None else reading(request.predictions))
    if request.as_json and rank == 0:
        print(with_urls(json.dumps(outcome)))


def _written(evaluation: Evaluation, run: Run, path: Path, rank: int) -> dict[str, float]:
    """Write the predictions on rank 0; return the scores."""
    if rank == 0:
        write_parquet(path, evaluation.predictions.pieces(names_of(run.graph)))
        published_files(path)
    return {**evaluation.scores, **evaluation.baselines}


@dataclass(frozen=True)
class InferRequest:
    """The arguments of one call of the command, the same for every rank."""

    folder: Path
    raw: RawRun
    out: Path
    node_types: tuple[str, ...]
    split: str | None
    ids: Path | None
    values: str
    checkpoint: str
    given: frozenset[str]  # options given in this call, not in the run
    as_json: bool


def infer(request: InferRequest, config: RunConfig, ranks: RankOptions) -> None:
    """Compute outputs as all ranks."""
    as_ranks(infer_rank, request, with_device(request.raw, config, ranks), ranks)


def infer_rank(rank: int, device: torch.device, request: InferRequest) -> None:
    """Compute outputs as one rank, often the only one. Rank 0 prints, and moves the result to its path."""
    begun = time.perf_counter()
    console = Console(stderr=request.as_json, quiet=rank > 0)
    checkpoint = request.folder / CHECKPOINTS / request.checkpoint
    run, memory_line = fitted_run_of_rank(request.raw, device, request.given, "inference", checkpoint)
    if memory_line is not None:
        say(console, memory_line)
    run.restore(checkpoint, tell, request.raw.options)
    with bytes_bar("dividing the nodes into chunks") if rank == 0 else nullcontext():
        inference = _inference(run, request)
    if run.config.sampler.time is not None:
        say(
            console,
            "rows are computed as of the latest time in the data; to compute each node at its own time, use "
            "khop evaluate --predictions",
        )
    if request.split is None and time_cut_offs(run.graph) is not None:
        say(
            console,
            "messages pass over all edges, including those after the cut-offs; to use the edges that the "
            "evaluation of a split uses, give --split",
        )
    say(console, f"needs up to {in_bytes(inference.bytes_needed)} of disk space; {_left(inference)}")
    bar = counting_bar("computing nodes of all layers", rank)
    with _stoppable(inference, rank), terminations_raised(), bar as progress:
        files = inference.run(progress, in_flight_of(run.config))
    if rank == 0:
        published_files(*(file for output in inference.outputs for file in output.files))
    outcome: dict[str, Any] = {
        "run": str(request.folder),
        "checkpoint": request.checkpoint,
        "values": request.values,
        "files": [str(path) for path in files.values()],
        "rows": [output.count for output in inference.outputs],
        "seconds": round(time.perf_counter() - begun, 2),
    }
    texts = {name: ", ".join(map(str, outcome[name])) for name in ("files", "rows")}
    say(console, *two_columns({**outcome, **texts}))
    say_next(console, reading(next(iter(files.values()))))
    if request.as_json and rank == 0:
        print(with_urls(json.dumps(outcome)))


def _inference(run: Run, request: InferRequest) -> Inference:
    node_types = request.node_types or run.run_task.node_types
    nodes = _nodes(run, request, node_types)
    return run.inference(request.out, node_types, nodes, Values(request.values).value, request.split)


def _nodes(run: Run, request: InferRequest, node_types: tuple[str, ...]) -> Tensor | None:
    """Return the requested node ids; None: all nodes."""
    if request.ids is not None:
        return ids_of(request.ids)
    if request.split is None:
        return None
    if len(node_types) > 1:
        raise ValueError(f"--split {request.split}: has nodes of {', '.join(node_types)}; give --node-type")
    of_types = run.graph.split(request.split)
    if node_types[0] not in of_types:
        raise ValueError(
            f"--split {request.split}: has nodes of {', '.join(of_types)}, but none of {node_types[0]}"
        )
    return ids_here(of_types[node_types[0]])


def ids_of(file: Path) -> Tensor:
    """Read the node ids in a .npy file. Raises ValueError if it contains no ids."""
    if not file.is_file():
        raise ValueError(f"{file}: no such file; --ids takes a .npy file of node ids")
    try:
        with file.open("rb") as opened:
            descr, shape = header_of(opened)
            header_bytes = opened.tell()
        dtype = np.dtype(descr)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{file}: not a .npy file; --ids takes one of node ids") from None
    if len(shape) != 1 or not isinstance(shape[0], int) or shape[0] < 0 or dtype.kind not in "iu":
        raise ValueError(f"{file}: contains {dtype} of shape {shape}; --ids takes a list of whole numbers")
    if shape[0] == 0:
        raise ValueError(f"{file}: contains no ids; --ids takes at least one")
    size, stated = file.stat().st_size, header_bytes + shape[0] * dtype.itemsize
    if size != stated:
        raise ValueError(
            f"{file}: has {size:,} bytes, but its header says {stated:,}: truncated or damaged; write it "
            "again"
        )
    ids = np.fromfile(file, dtype, offset=header_bytes)
    if ids.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{file}: contains {ids.max()}; --ids takes node ids, which are below 2^63")
    return torch.from_numpy(ids.astype(np.int64))


def _left(inference: Inference) -> str:
    state = "continues from" if inference.work_folder.is_dir() else "unfinished work is in"
    return f"the result takes {in_bytes(inference.bytes_kept)}; {state} {inference.work_folder}"


@contextmanager
def _stoppable(inference: Inference, rank: int) -> Iterator[None]:
    """Stop without an error on Ctrl-C and SIGTERM. Rank 0 prints how to continue."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if rank == 0:
            tell(
                f"stopped; finished rows are in {inference.work_folder}; run the same command again to "
                "continue"
            )
            told(stop)
        raise


_SHOWN = 10  # rows without --out
_HIDDEN = ("scores", "output")  # columns too wide for a terminal


@dataclass(frozen=True)
class PredictRequest:
    """The arguments of one call of the command."""

    folder: Path
    raw: RawRun
    later: Path | None
    pairs: Path | None
    rows: Path | None
    out: Path | None
    checkpoint: str
    given: frozenset[str]  # options given in this call, not in the run
    as_json: bool


def predict(request: PredictRequest) -> None:
    """Predict new nodes or rows, or score pairs, and write or print the predictions."""
    console = Console(stderr=request.as_json)
    if request.out is not None:
        check_parquet(request.out, "--out")
    checkpoint = request.folder / CHECKPOINTS / request.checkpoint
    run = run_of_rank(request.raw, torch.device("cpu"), request.given, checkpoint)
    run.restore(checkpoint, tell, request.raw.options)
    outcome: dict[str, object] = {"run": str(request.folder), "checkpoint": request.checkpoint}
    named = {"graph": request.later, "pairs": request.pairs, "table": request.rows}
    outcome |= {name: str(path) for name, path in named.items() if path is not None}
    with counting_bar("predicting") as progress:
        pieces = _pieces(run, request, progress)
        if request.out is None:
            lines, outcome["rows"] = _lines(pieces)
        else:
            lines, outcome["rows"] = [], write_parquet(request.out, pieces)
            published_files(request.out)
            outcome["predictions"] = str(request.out)
    for line in lines:
        say(console, line)
    say(console, *two_columns(outcome))
    say_next(console, _again_to_file(request) if request.out is None else reading(request.out))
    if request.as_json:
        print(with_urls(json.dumps(outcome)))


def _again_to_file(request: PredictRequest) -> tuple[str, ...]:
    """Return this command line with an output file."""
    later = () if request.later is None else ("--graph", str(request.later))
    pairs = () if request.pairs is None else ("--pairs", str(request.pairs))
    rows = () if request.rows is None else ("--rows", str(request.rows))
    return "khop", "predict", str(request.folder), *later, *pairs, *rows, "--out", "predictions.parquet"


def _pieces(run: Run, request: PredictRequest, progress: Progress) -> Iterator[Columns]:
    """Return an iterator over consecutive predictions, of new nodes, of a table or of pairs."""
    if request.rows is not None:
        if request.later is not None or request.pairs is not None:
            raise ValueError(
                "--rows excludes --graph and --pairs, because rows are about nodes of the graph; give "
                "--rows alone"
            )
        return predict_rows(run, request.rows, progress).pieces()
    if request.pairs is not None:
        return _pairs(run, request.pairs, request.later, progress)
    if request.later is None:
        raise ValueError(
            "--graph is missing: give a folder of new nodes, --pairs FILE for a link-prediction run, or "
            "--rows FILE for a run with seed tables"
        )
    found = predict_later(run, request.later, progress)
    for note in found.notes:
        tell(note)
    return found.pieces()


def _pairs(run: Run, pairs: Path, later: Path | None, progress: Progress) -> Iterator[Columns]:
    try:
        from khop.run.load_run import predict_pairs, unscored  # needs the packages of imports
    except ImportError as error:
        raise ValueError(str(error)) from None
    unknown = rows = 0
    for piece in predict_pairs(run, pairs, later, progress).pieces():
        unknown, rows = unknown + piece["score"].null_count, rows + len(piece["score"])
        yield piece
    for note in unscored(unknown, rows):
        tell(note)


def _lines(pieces: Iterator[Columns]) -> tuple[list[str], int]:
    """Return the first rows as lines of text, with a line about the others, and the number of rows."""
    first: Mapping[str, Any] = next(pieces, {})
    count = sum(len(next(iter(piece.values()))) for piece in chain([first] if first else [], pieces))
    columns = {name: of_column for name, of_column in first.items() if name not in _HIDDEN}
    rows = zip(*(of_column.to_pylist()[:_SHOWN] for of_column in columns.values()), strict=True)
    lines = ["  ".join(columns), *("  ".join(map(_shown, row)) for row in islice(rows, _SHOWN))]
    left = count - _SHOWN
    return [*lines, *([f"and {left:,} more; --out FILE.parquet writes all"] if left > 0 else [])], count


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


BY = ("model", "popularity")
_COMPARED_IDS = 50_000  # more ids of a type are not searched for the nearest one


@dataclass(frozen=True)
class RecommendRequest:
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


def recommend(request: RecommendRequest, config: RunConfig) -> None:
    """Recommend in one process."""
    as_ranks(recommend_rank, request, config, RankOptions())


def recommend_rank(rank: int, device: torch.device, request: RecommendRequest) -> None:
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
        print(with_urls(json.dumps(outcome)))


def _concluded(
    run: Run,
    edge_type: EdgeType,
    pieces: Iterator[Recommendations],
    request: RecommendRequest,
    console: Console,
) -> dict[str, Any]:
    """Write the file, or print and return the recommendations, with counts of users and of cold users."""
    names, counts = Names.of(run.graph.folder), {"nodes": 0, "cold": 0}

    def counted() -> Iterator[Recommendations]:
        for piece in pieces:
            counts["nodes"] += piece.sources.numel()
            counts["cold"] += int(piece.cold.sum())
            yield piece

    if request.out is not None:
        columns = (_columns(piece, edge_type, names) for piece in counted())
        rows = write_parquet(request.out, columns)
        published_files(request.out)
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
    of_sources, of_destinations = (_shown_recommendations(run, t) for t in edge_type[::2])
    users = []
    for row, user in enumerate(of_sources(piece.sources)):
        nodes = piece.destinations[row][piece.destinations[row] >= 0]
        ids, scores = of_destinations(nodes), piece.scores[row].tolist()
        recommended = [{"id": id_, "score": score} for id_, score in zip(ids, scores, strict=False)]
        users.append({"id": user, "by": BY[int(piece.cold[row])], "recommended": recommended})
    return users


def _shown_recommendations(run: Run, node_type: NodeType) -> Callable[[Tensor], Sequence[str | int]]:
    """Return a function from nodes to the users' ids, or to their numbers."""
    ids = _own_ids(run, node_type)
    return (lambda nodes: nodes.tolist()) if ids is None else (lambda nodes: ids.ids(nodes.tolist()))


def _own_ids(run: Run, node_type: NodeType) -> OwnIds | None:
    folder = run.graph.folder
    if folder is None or node_type not in stored_ids(folder):
        return None
    return open_ids(folder.path, node_type)


def _sources(run: Run, recommender: Recommender, users: Sequence[str]) -> Tensor:
    """Return the nodes of the given ids, or all nodes. ValueError for an unknown id names similar ids."""
    node_type = recommender.edge_type[0]
    if not users:
        return recommender.sources(None)
    ids = _own_ids(run, node_type)
    if ids is None:
        try:
            return recommender.sources([int(user) for user in users])
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
    """Return similar ids as the end of a sentence; types with many ids are not searched."""
    hint = f"; look up ids with khop lookup GRAPH {ids.node_type} 0 --by node"
    if len(ids) > _COMPARED_IDS:
        return hint
    near = difflib.get_close_matches(user, map(str, ids.ids(range(len(ids)))), n=3)
    return f"; the nearest are {', '.join(near)}" if near else hint
