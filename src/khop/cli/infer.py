"""The work of `khop infer`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from khop.api.infer import Inference
from khop.api.time_split import time_cut_offs
from khop.cli.bytes_bar import bytes_bar, counting_bar
from khop.cli.commands.infer import Values
from khop.cli.commands.shared import RankOptions
from khop.cli.lines import tell
from khop.cli.next_steps import reading, say_next
from khop.cli.progress import two_columns
from khop.cli.ranks import as_ranks, run_of_rank
from khop.cli.terminal import say
from khop.config.build import Run
from khop.config.parts import in_flight_of
from khop.config.read import RawRun
from khop.config.saved_run import CHECKPOINTS
from khop.config.values import RunConfig
from khop.errors import told
from khop.graph.npy import header_of
from khop.graph.progress import in_bytes
from khop.sampling.listed import ids_here
from khop.training.interrupts import terminations_raised


@dataclass(frozen=True)
class Request:
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


def infer(request: Request, config: RunConfig, ranks: RankOptions) -> None:
    """Compute outputs as all ranks."""
    as_ranks(infer_rank, request, config, ranks)


def infer_rank(rank: int, device: torch.device, request: Request) -> None:
    """Compute outputs as one rank, often the only one. Rank 0 prints, and moves the result to its path."""
    begun = time.perf_counter()
    console = Console(stderr=request.as_json, quiet=rank > 0)
    checkpoint = request.folder / CHECKPOINTS / request.checkpoint
    run = run_of_rank(request.raw, device, request.given, checkpoint)
    run.restore(checkpoint, tell, request.raw.options)
    with bytes_bar("dividing the nodes into chunks") if rank == 0 else nullcontext():
        inference = _inference(run, request)
    if run.config.sampler.time is not None:
        say(console, "rows are of the end of the data; khop evaluate --predictions has each node at its time")
    if request.split is None and time_cut_offs(run.graph) is not None:
        say(
            console,
            "messages pass over all edges, also after the cut-offs; --split keeps those of evaluation",
        )
    say(console, f"up to {in_bytes(inference.bytes_needed)} of disk while it runs; {_left(inference)}")
    bar = counting_bar("computing nodes of all layers", rank)
    with _stoppable(inference, rank), terminations_raised(), bar as progress:
        files = inference.run(progress, in_flight_of(run.config))
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
        print(json.dumps(outcome))


def _inference(run: Run, request: Request) -> Inference:
    node_types = request.node_types or run.run_task.node_types
    nodes = _nodes(run, request, node_types)
    return run.inference(request.out, node_types, nodes, Values(request.values).value, request.split)


def _nodes(run: Run, request: Request, node_types: tuple[str, ...]) -> Tensor | None:
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
            f"--split {request.split}: has nodes of {', '.join(of_types)}, none of {node_types[0]}"
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
        raise ValueError(f"{file}: holds {dtype} of shape {shape}; --ids takes a list of whole numbers")
    if shape[0] == 0:
        raise ValueError(f"{file}: holds no ids; --ids takes at least one")
    size, stated = file.stat().st_size, header_bytes + shape[0] * dtype.itemsize
    if size != stated:
        raise ValueError(
            f"{file}: has {size:,} bytes, its header says {stated:,}; it was cut off or damaged, write it "
            "again"
        )
    ids = np.fromfile(file, dtype, offset=header_bytes)
    if ids.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{file}: holds {ids.max()}; --ids takes node ids, which are below 2^63")
    return torch.from_numpy(ids.astype(np.int64))


def _left(inference: Inference) -> str:
    word = "continuing in" if inference.work_folder.is_dir() else "work in"
    return f"{in_bytes(inference.bytes_kept)} stay; {word} {inference.work_folder}"


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
