"""A batch passes few files of khop between the loader and the model, and docs/internals.md lists them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = {"one process": 14, "2 ranks, features": 21, "2 ranks, all": 24}
Walks = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def walks() -> Walks:
    command = [sys.executable, str(ROOT / "benchmarks" / "walks.py"), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    found: Walks = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("walk", MOST)
def test_a_batch_passes_few_files(walks: Walks, walk: str) -> None:
    assert "model" not in " ".join(walks[walk])  # it ends before the model
    assert "sampling/sampler.py" in walks[walk]
    assert len(walks[walk]) <= MOST[walk], sorted(walks[walk])


@pytest.mark.parametrize("walk", MOST)
def test_the_page_has_a_row_for_each_stop(walks: Walks, walk: str) -> None:
    sections = re.split(r"^## ", (ROOT / "docs" / "internals.md").read_text(), flags=re.MULTILINE)
    listed: set[str] = set()
    for section in sections[1 : 2 + list(MOST).index(walk)]:  # each has the stops that it adds
        listed |= set(re.findall(r"^\| \d+ \| `([^`]+)`", section, re.MULTILINE))
        listed -= set(re.findall(r"^`([^`]+)` is not used", section, re.MULTILINE))
    assert set(walks[walk]) == listed
