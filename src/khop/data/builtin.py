"""Built-in graphs: small snapshots in the wheel, unpacked into graph folders on first use."""

from __future__ import annotations

import difflib
import os
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from khop.arguments import path_of
from khop.data.debian.graph import read_snapshot, write_debian
from khop.data.importers import BUILTIN_NAMES, SNAPSHOT_SHA256, builtin_path
from khop.graph.atomic import ProgressCallback
from khop.graph.folder import open_folder
from khop.graph.remote import is_url, staged
from khop.user_cache import cache_folder

SNAPSHOT = "debian.npz"


def builtin_names() -> tuple[str, ...]:
    """Return the names of the built-in graphs.

    Returns:
        Names for `khop.open_graph` and `khop.builtin_folder`.
    Example:
        >>> khop.builtin_names()
        ('debian', 'debian-typed')
    """
    return BUILTIN_NAMES


def builtin_folder(
    name: str, cache: str | os.PathLike[str] | None = None, notice: ProgressCallback | None = None
) -> Path:
    """Return the graph folder of a built-in graph.

    The first use writes the folder atomically, in a few seconds. Processes may call this concurrently.

    Args:
        name: Name of the graph, one of `khop.builtin_names()`.
        cache: Folder of built-in graphs, by default $KHOP_CACHE, else khop in $XDG_CACHE_HOME, else
            ~/.cache/khop.
        notice: Function called with a text, the bytes done and the total bytes while the folder is
            written. Default None.
    Returns:
        The path of the graph folder.
    Raises:
        ValueError: There is no such graph, or the snapshot or the folder is damaged.
    Example:
        >>> graph = khop.open_graph(khop.builtin_folder("debian"))
        >>> graph.num_nodes("package")
        63436
    """
    if name not in BUILTIN_NAMES:
        raise ValueError(f"built-in graph {name!r}: there are {', '.join(builtin_names())}")
    folder = builtin_path(name, cache_folder() if cache is None else path_of("cache", cache))
    if not folder.exists():
        _write(name, folder, notice)
    return open_folder(folder).path


def named_folder(graph: str | os.PathLike[str]) -> Path:
    """Return the folder for `graph`: that of a built-in graph for its name, else the path itself.

    A folder in an object store is staged to the cache. ValueError if a name could be both.
    """
    if isinstance(graph, str) and is_url(graph):
        return staged(graph)
    if not isinstance(graph, str) or graph not in BUILTIN_NAMES:
        close = difflib.get_close_matches(graph, BUILTIN_NAMES, n=1) if isinstance(graph, str) else []
        if close and not Path(graph).exists():
            raise ValueError(f"graph {graph!r}: no such folder; did you mean the built-in {close[0]!r}?")
        return Path(graph)
    if Path(graph).exists():
        raise ValueError(
            f"graph {graph!r}: names both a built-in graph and a folder; give './{graph}' for the folder, or "
            f"khop.builtin_folder({graph!r}) for the built-in one"
        )
    return builtin_folder(graph)


def _write(name: str, folder: Path, notice: ProgressCallback | None) -> None:
    facts = read_snapshot(_snapshot())
    try:
        write_debian(folder, name, facts, notice)
    except ValueError:
        # Another process wrote the same graph first.
        if not folder.exists():
            raise


def _snapshot() -> bytes:
    file = files("khop.data.debian") / SNAPSHOT
    data = file.read_bytes()
    if sha256(data).hexdigest() != SNAPSHOT_SHA256:
        raise ValueError(
            f"{file}: checksum differs from khop's; the file was changed or damaged. Install khop again"
        )
    return data
