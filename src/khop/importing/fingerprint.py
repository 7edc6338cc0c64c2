"""Identity of an import's input: the spec, size and time of every file, and snapshots of servers."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from khop.importing.database import database_of
from khop.importing.files import find_files
from khop.importing.source import SourceFolder
from khop.importing.spec import Source, Spec

FORMAT = 1  # of the files between stages; a khop that writes others must not take them up


def fingerprint_of(spec: Spec, folder: SourceFolder, encoders: str = "") -> str:
    """Return equal text for equal input. Tables in memory never have equal input.

    `encoders` identifies the encoders of later data.
    """
    sources: list[tuple[str, Source]] = [(f"nodes.{name}", node) for name, node in spec.nodes.items()]
    sources += [(f"nodes.{name}.also", one) for name, node in spec.nodes.items() for one in node.also]
    sources += [(f'edges."{name}"', edge) for name, edge in spec.edges.items()]
    sources += [(f"edges_from[{number}]", table) for number, table in enumerate(spec.edges_from)]
    if any(source.rows is not None for _, source in sources):
        return uuid.uuid4().hex
    files = [state for key, source in sources for state in _states(source, folder, key)]
    splits = [spec.splits, *(node.split for node in spec.nodes.values())]
    lists = {path for split in splits if split is not None for path in split.files.values()}
    files += [_state(file.path) for file in find_files(sorted(lists), folder.path, "splits")]
    content: dict[str, Any] = {"format": FORMAT, "spec": spec.model_dump(mode="json"), "files": files}
    if encoders:
        content["encoders"] = encoders
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _states(source: Source, folder: SourceFolder, key: str) -> Iterator[list[str | int]]:
    if source.files is not None:
        for file in find_files(source.files, folder.path, f"{key}.files"):
            yield _state(Path(file.path))
    elif source.database is not None:
        database = database_of(source.database, folder.path, folder.environment, f"{key}.database")
        if database.path is None:
            yield [database.name, folder.databases.server(database, "database").state]
            return
        yield _state(database.path)
        log = database.path.with_name(f"{database.path.name}-wal")  # rows of SQLite that the file has not yet
        if log.exists():
            yield _state(log)


def _state(path: Path) -> list[str | int]:
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]
