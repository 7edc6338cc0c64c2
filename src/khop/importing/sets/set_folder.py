"""The folder of a standard set below the folder that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def set_folder(root: Path, names: Sequence[str], content: str, source: str) -> Path:
    """Return `root` or one of its folders `names`: the first that has `content`, a file or folder.

    ValueError with the places that were tried, and with `source`, the address of the set.
    """
    for folder in (root, *(root / name for name in names)):
        if (folder / content).exists():
            return folder
    tried = ", ".join(str(Path(name, content)) for name in (".", *names))
    raise ValueError(
        f"{root}: has none of {tried}; give the folder of the set as published, unpacked from {source}"
    )
