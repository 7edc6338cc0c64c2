"""Resolve a run against its graph and machine: fill in open settings, and reject impossible ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import torch

from khop.config.kinds import TASKS
from khop.config.memory import check_memory
from khop.config.on_servers import graph_on_servers
from khop.config.options import options_of, with_values
from khop.config.read import RawRun, notes_on
from khop.config.resolve_task import LABEL, ResolveContext, with_node_defaults
from khop.config.run_type import component_of
from khop.config.section import Fanout
from khop.config.tables import TaskTable
from khop.config.values import RunConfig
from khop.datasets.builtin import builtin_folder, builtin_names
from khop.graph.folder import Folder
from khop.graph.progress import ProgressCallback
from khop.loading.cores import sampler_threads, usable_cores
from khop.loading.streams import gpu_remedy, num_gpus
from khop.partition.parts_folder import known_folder
from khop.sampling.fanouts import fanout_by_type
from khop.schema import Schema
from khop.training.run_loggers import LoggerKind, check_logger
from khop.training.tensorboard import check_tensorboard

EMBEDDING = 32  # numbers learned for each node without columns, unless a run says otherwise


def graph_folder(
    config: RunConfig, raw: RawRun, cache: Path, notice: ProgressCallback | None = None
) -> Folder:
    """Open the graph of a run, or connect to its servers.

    A built-in graph is unpacked into `cache` on first use. `notice` receives the progress of the unpacking.
    """
    if config.servers.addresses:
        return graph_on_servers(config, raw)
    if config.graph in builtin_names():
        return known_folder(builtin_folder(config.graph, cache, notice))
    path = Path(config.graph)
    if not path.is_dir():
        close = difflib.get_close_matches(config.graph, builtin_names(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"built-in graphs are {', '.join(builtin_names())}"
        raise ValueError(f"graph is {config.graph!r}: no such folder; {hint} ({raw.where('graph')})")
    return known_folder(path)


def resolve(config: RunConfig, graph: Folder, raw: RawRun) -> RunConfig:
    """Return the run with all settings filled in. Raises ValueError if the graph or machine does not fit it.

    The result has the absolute path of the graph, so that the run can be repeated from any folder.
    """
    config = _with_inputs(config, graph.schema, raw)
    task = _resolved_task(config, graph, raw)
    _check_column(config, graph.schema, raw)
    for section, fanouts in (("sampler", config.sampler.fanouts), ("evaluation", config.evaluation.fanouts)):
        _check_fanouts(f"{section}.fanouts", fanouts, graph.schema, raw)
    _check_device(config.device, raw)
    if config.tensorboard:
        _check_tensorboard(raw)
    if config.logger != "none":
        _check_logger(config.logger, raw)
    is_named = config.graph in builtin_names() or bool(config.servers.addresses)
    name = config.graph if is_named else str(graph.path.absolute())
    layers = config.model.layers or len(config.sampler.fanouts)
    resolved = config.model_copy(
        update={
            "graph": name,
            "task": task,
            "model": config.model.model_copy(update={"layers": layers}),
            "threads": config.threads or sampler_threads(usable_cores()),
            "compute_threads": config.compute_threads or usable_cores(),
        }
    )
    check_memory(resolved, graph, raw)
    return resolved


def notes_of(config: RunConfig, raw: RawRun) -> list[str]:
    """Return a sentence for each setting of a resolved run that follows from others or from the graph."""
    notes, model = notes_on(raw), config.model
    given = raw.values.get("model", {})
    written = given if isinstance(given, Mapping) else {}
    if model.column != "x" and "column" not in written:
        notes.append(f"model.column is {model.column!r}: it is the only column of numbers of nodes")
    if model.embedding and written.get("embedding") is None:
        notes.append(f"model.embedding is {model.embedding}: no node has a column, so rows are learned")
    return notes


def _with_inputs(config: RunConfig, schema: Schema, raw: RawRun) -> RunConfig:
    """Fill in the input of the model if a graph without the default column leaves one choice."""
    written = raw.values.get("model", {})
    columns = [of for node_type in schema.node_types for of in schema.columns.get(node_type, {}).items()]
    is_open = isinstance(written, Mapping) and "column" not in written and config.model.embedding is None
    if not is_open or any(name == config.model.column for name, _ in columns):
        return config
    fit = {name for name, spec in columns if "float" in spec.dtype or spec.sparse_width is not None}
    labels = {LABEL, config.task.label}
    if len(fit - labels) == 1:
        chosen: dict[str, object] = {"column": (fit - labels).pop()}
    elif not fit - labels:
        is_light = config.model.kind == "lightgcn"  # it adds the rows of all layers, of one width
        chosen = {"embedding": config.model.hidden if is_light else EMBEDDING}
    else:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update=chosen)})


def _resolved_task(config: RunConfig, graph: Folder, raw: RawRun) -> TaskTable:
    component = component_of(config, "task")
    if config.task.kind not in TASKS.builtin:
        config = config.model_copy(update={"task": with_node_defaults(config.task, graph.schema)})
    options = options_of(config.task, component.options)
    resolved = component.resolve(options, ResolveContext(config, graph, raw))
    return with_values(config.task, resolved)


def _check_fanouts(path: str, fanouts: tuple[Fanout, ...], schema: Schema, raw: RawRun) -> None:
    for hop, fanout in enumerate(fanouts, start=1):
        try:
            fanout_by_type(schema, fanout)
        except ValueError as error:
            raise ValueError(f"{path}, hop {hop}: {error} ({raw.where(path)})") from None


def _check_column(config: RunConfig, schema: Schema, raw: RawRun) -> None:
    column = config.model.column
    names = {name for node_type in schema.node_types for name in schema.columns.get(node_type, {})}
    if column not in names and not config.model.embedding:
        there, where = ", ".join(sorted(names)) or "none", raw.where("model.column")
        raise ValueError(
            f"model.column is {column!r}: no node type has it, the columns are {there} ({where})"
        )


def _check_tensorboard(raw: RawRun) -> None:
    try:
        check_tensorboard()
    except ValueError as error:
        raise ValueError(f"tensorboard is true: {error} ({raw.where('tensorboard')})") from None


def _check_logger(kind: LoggerKind, raw: RawRun) -> None:
    try:
        check_logger(kind)
    except ValueError as error:
        raise ValueError(f"logger is {kind!r}: {error} ({raw.where('logger')})") from None


def _check_device(device: str, raw: RawRun) -> None:
    wanted = torch.device(device)
    if wanted.type == "cpu":
        return
    there = num_gpus()
    if (wanted.index or 0) >= there:
        devices = f"torch finds {there} CUDA devices" if there else "torch finds no CUDA device"
        raise ValueError(
            f"device is {device!r}: {devices}; use cpu, or {gpu_remedy()} ({raw.where('device')})"
        )
