"""`khop.import_tables`: tables with ids of any kind become a graph folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from khop.arguments import path_of, whole_number
from khop.graph.progress import ProgressCallback
from khop.importing.given_encoders import GivenEncoders
from khop.importing.pipeline import LEAST_MEMORY, Imported, run_import
from khop.importing.read_spec import checked_spec, read_spec
from khop.importing.source import SourceFolder
from khop.importing.spec import Spec
from khop.kernels.memory import free_memory_bytes


def import_tables(
    spec: str | os.PathLike[str] | Mapping[str, Any] | Spec,
    out: str | os.PathLike[str],
    *,
    memory: int | None = None,
    threads: int = 1,
    folder: str | os.PathLike[str] = ".",
    environment: Mapping[str, str] | None = None,
    notice: ProgressCallback | None = None,
    encoders: str | os.PathLike[str] | None = None,
) -> Imported:
    """Write a graph folder from tables, complete or not at all, and return its counts.

    `spec` is a TOML file, or the same values as a mapping. In a mapping, `rows` may replace `files`: a
    pandas, polars or Arrow table. Paths in a file are relative to the file, others to `folder`. `memory` is
    the budget in bytes, at least 64 MB, by default half of what is free: half of it for the dictionaries of
    ids, which are in files beyond it, the rest for edges under way. `environment` has the variables of
    `database = "env:NAME"`: paths, or addresses of Postgres servers. The result depends on the rows and their
    order alone.

    `encoders` is a graph folder that an import has written, or the folder of a run on one: the tables are
    later data. Statistics, vocabularies, categories and classes of that graph are used; none are computed.
    Columns, times and reverses that the spec does not name are the recorded ones. Tables hold new nodes;
    edges may also name nodes of the graph by their ids.

    ValueError names file, row and column of the first problem.
    """
    threads = whole_number("threads", threads, 1)
    least, free = LEAST_MEMORY, free_memory_bytes()
    budget = max(least, free // 2) if memory is None else whole_number("memory", memory, least)
    start = path_of("folder", folder)
    given = None if encoders is None else GivenEncoders.open(path_of("encoders", encoders))
    match spec:
        case Spec():
            values = spec
        case Mapping():
            values = checked_spec(spec, "spec")
        case _:
            path = path_of("spec", spec)
            values, start = read_spec(path), path.parent
    source = SourceFolder(start, environment or {})
    with closing(source.databases):
        return run_import(
            values,
            path_of("out", out),
            source,
            threads=threads,
            memory=budget,
            notice=notice,
            encoders=given,
        )
