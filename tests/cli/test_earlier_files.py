"""Graphs, runs and checkpoints of an earlier version open, resume, are evaluated and inferred.

tests/fixtures/earlier/README.md says how they were written.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import khop
from khop.migrations import RENAMED, with_new_names

from .conftest import Ran
from .test_processes import KHOP

Command = Callable[..., Ran]
EARLIER = Path(__file__).parents[1] / "fixtures" / "earlier"
# What the earlier version measured and computed on one machine; another one may round otherwise.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, with the runs' graphs at their new place, in the working directory."""
    folder = tmp_path / "earlier"
    shutil.copytree(EARLIER, folder)
    for config in folder.glob("stopped/*/config.toml"):
        config.write_text(config.read_text().replace("/tmp/fx/out", str(folder)))
    monkeypatch.chdir(folder)
    return folder


def records(path: Path) -> list[dict[str, object]]:
    """The lines of a log without times, keys of earlier versions with their new names."""
    lines = [with_new_names(json.loads(line)) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def as_earlier(record: Mapping[str, object]) -> dict[str, object]:
    """A line without the scores of baselines, which earlier versions did not compute."""
    return {name: of for name, of in record.items() if not re.search("_(majority|mean|popularity)_", name)}


def test_graphs_open_and_verify(khop_command: Command, earlier: Path) -> None:
    for folder in ("shop", "parts"):
        assert khop_command("verify", folder).code == 0
        graph = khop.open_graph(folder)
        assert {t: graph.num_nodes(t) for t in graph.schema.node_types} == {"item": 30, "user": 60}


def resumed(khop_command: Command, run: str) -> None:
    if run == "parts":
        command = [*KHOP, "train", "--resume", f"stopped/{run}", "--procs", "2"]
        subprocess.run(command, check=True, capture_output=True, timeout=240)
        return
    ran = khop_command("train", "--resume", f"stopped/{run}")
    assert ran.code == 0, ran.stderr


@pytest.mark.parametrize("run", ["labels", "links", "parts"])
def test_a_stopped_run_continues_as_with_the_earlier_version(
    khop_command: Command, earlier: Path, run: str
) -> None:
    old_steps = (EARLIER / "stopped" / run / "steps.jsonl").read_text()
    resumed(khop_command, run)
    there, wanted = Path("stopped", run), Path("expected", run)
    for name in ("metrics.jsonl", "steps.jsonl"):
        assert_close([*map(as_earlier, records(there / name))], records(wanted / name))
        text = (there / name).read_text()
        assert not any(f'"{entry.old.partition(".")[2]}":' in text for entry in RENAMED)
    # Lines from before are the same text but for the names.
    new_steps = (there / "steps.jsonl").read_text().splitlines()
    for old, new in zip(old_steps.splitlines(), new_steps, strict=False):
        assert json.dumps(with_new_names(json.loads(old))) == new
    found, expected = (
        load_file(folder)
        for folder in (there / "checkpoints/last/model.safetensors", wanted / "model.safetensors")
    )
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **CLOSE)
    ran = khop_command("evaluate", str(there), "--json")
    scores, old_scores = as_earlier(json.loads(ran.stdout)), json.loads((wanted / "scores.json").read_text())
    assert scores.keys() == old_scores.keys()
    for name in scores.keys() - {"run", "checkpoint"}:
        assert scores[name] == pytest.approx(old_scores[name], abs=1e-3)
    if (wanted / "user.npy").exists():
        assert khop_command("infer", str(there), "--out", "rows.npy", "--node-type", "user").code == 0
        np.testing.assert_allclose(np.load("rows.npy"), np.load(wanted / "user.npy"), **CLOSE)


def test_the_run_of_an_earlier_version_is_repeated_from_its_config(
    khop_command: Command, earlier: Path
) -> None:
    ran = khop_command("train", "stopped/labels/config.toml", "--out", "again")
    assert ran.code == 0, ran.stderr
    assert 'temporal_strategy = "latest"' in Path("again/config.toml").read_text()
    again = [*map(as_earlier, records(Path("again/metrics.jsonl")))]
    assert_close(again, records(Path("expected/labels/metrics.jsonl")))


def assert_close(found: object, expected: object) -> None:
    """The same structure, names and whole numbers; other numbers but for rounding."""
    if isinstance(expected, Mapping):
        assert isinstance(found, Mapping)
        assert found.keys() == expected.keys()
        for name in expected:
            assert_close(found[name], expected[name])
    elif isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for each, wanted in zip(found, expected, strict=True):
            assert_close(each, wanted)
    else:
        assert found == (pytest.approx(expected, rel=1e-4) if isinstance(expected, float) else expected)
