"""Files of tests that one process runs, because what they share takes seconds of each process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import Producer

SHARED = ("support.started_ranks", "support.syntax_trees")  # by the module that has it


class SharedFiles(LoadFileScheduling):
    """Distribution of whole files, and of the files that share something, to processes of pytest-xdist."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._scope = cache(lambda file: _shared(config.rootpath / file) or file)

    def _split_scope(self, nodeid: str) -> str:
        return self._scope(super()._split_scope(nodeid))


def _shared(file: Path) -> str | None:
    text = file.read_text()
    return next((module for module in SHARED if f"from {module} import" in text), None)
