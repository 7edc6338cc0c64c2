"""Run folders below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from khop.config.saved_run import CONFIG
from khop.reporting.run_summary import METRICS

_LOGS = (METRICS, "steps.jsonl", "checkpoints")  # one of them is in each run folder, and in no other


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders in and below a folder, by name. Hidden folders and links are left out.

    ValueError if the folder does not exist.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name a folder with runs, made by khop train")
    for path, folders, files in os.walk(folder):
        folders.sort()
        if CONFIG in files and any(name in files or name in folders for name in _LOGS):
            folders.clear()  # a run contains no other runs
            if METRICS in files or "checkpoints" in os.listdir(path):
                yield Path(path)
        folders[:] = [name for name in folders if not name.startswith(".")]
