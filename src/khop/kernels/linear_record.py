"""Measured choices as small files in the user's cache folder, one for each machine, dtype and shape."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from khop.kernels.linear_blocks import Blocks
from khop.kernels.linear_measure import Measured

FORMAT = 2  # 1: near ties went to any number of rows


def read_record(path: Path, key: str) -> Measured | None:
    """Read the choice for a key from a file; None if the file is missing, damaged or for another key."""
    try:
        found = json.loads(path.read_bytes())
        if (found["format"], found["key"]) != (FORMAT, key):
            return None
        ratio = found["over_float32"]
        if isinstance(ratio, bool) or not isinstance(ratio, float | int) or not 0 < ratio < 1e6:
            return None
        return Measured(blocks_of(found["blocks"]), float(ratio))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def keep_record(path: Path, key: str, measured: Measured) -> Measured:
    """Write the choice unless another process already did; return the choice in the file.

    The file appears whole or not at all. If it cannot be written, only this process uses the choice.
    """
    content = {
        "format": FORMAT,
        "key": key,
        "blocks": values_of(measured.blocks),
        "over_float32": measured.over_float32,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError:
        return measured
    new = Path(name)
    try:
        with open(descriptor, "w") as file:
            file.write(json.dumps(content) + "\n")
        return _publish(new, path, key, measured)
    except OSError:
        return measured
    finally:
        new.unlink(missing_ok=True)


def _publish(new: Path, path: Path, key: str, measured: Measured) -> Measured:
    try:
        os.link(new, path)  # fails if the file exists: the first writer wins
    except FileExistsError:
        found = read_record(path, key)
        if found is not None:
            return found
        new.replace(path)
    except OSError:  # a file system without links
        new.replace(path)
    return measured


def values_of(blocks: Blocks | None) -> dict[str, object]:
    """Return the choice as JSON values."""
    if blocks is None:
        return {"library": "torch"}
    return {"library": blocks.library, "rows": blocks.rows, "in_float32": blocks.in_float32}


def blocks_of(values: object) -> Blocks | None:
    """Return the choice from JSON values; ValueError if they are invalid."""
    match values:
        case {"library": "torch", **rest} if not rest:
            return None
        case {"library": library, "rows": int(rows), "in_float32": bool(in_float32), **rest}:
            if not rest and not isinstance(rows, bool):
                return Blocks(library, rows, in_float32)
    raise ValueError(f"{values!r}: not a way to compute a layer; measure it anew")
