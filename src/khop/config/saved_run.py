"""Settings of a run, read from its folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from khop.components import Permission
from khop.config.read import RawRun, read_toml

CONFIG, CHECKPOINTS = "config.toml", "checkpoints"
DIGEST = b"# sha256 of what follows: "


def is_run_folder(path: Path) -> bool:
    """Return whether `khop train` has made this folder."""
    return (path / CONFIG).is_file()


def saved_run(folder: Path, packages: Sequence[str], notice: Callable[[str], None]) -> RawRun:
    """Read the run in `folder`, which may name code of `packages`. ValueError if it is not a run folder.

    If config.toml is not as khop wrote it, `notice` gets a sentence. Settings that decide the course of a run
    are compared with the checkpoint; all others are used as they are.
    """
    file = folder / CONFIG
    if not is_run_folder(folder):
        raise ValueError(f"{folder}: not a run folder, it has no {CONFIG}; name one that khop train has made")
    _, is_signed, rest = file.read_bytes().partition(DIGEST)
    digest, _, body = rest.partition(b"\n")
    if is_signed and digest != digest_of(body):
        notice(f"{file}: was changed or damaged after khop train wrote it; its present settings are used")
    return replace(read_toml(file), permission=Permission(tuple(packages)))


def digest_of(body: bytes) -> bytes:
    """Return the digest of the settings, as `config.toml` holds it."""
    return hashlib.sha256(body).hexdigest().encode()
