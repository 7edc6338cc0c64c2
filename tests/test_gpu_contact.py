"""First contact with a GPU, as far as no GPU is needed: a dry run, stopped probes, and workers that end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gpu_tests import LEFT_OUT, TESTS

from support.commands import of_session
from support.gate import wait_until

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "gpu-contact"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the script itself runs on a GPU")
BREAKS = """
import torch

def test_breaks():
    torch.cuda.is_initialized = lambda: True

    def synchronize():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.cuda.synchronize = synchronize
    raise ValueError("the error of the test")

def test_comes_later():
    assert not torch.cuda.is_initialized()
"""


@pytest.fixture(scope="module")
def contact() -> ModuleType:
    loader = SourceFileLoader("gpu_contact", str(SCRIPT))
    module = module_from_spec(spec_from_loader("gpu_contact", loader))  # type: ignore[arg-type]
    sys.modules["gpu_contact"] = module  # dataclasses look it up
    loader.exec_module(module)
    return module


def lines(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "contact.jsonl").read_text().splitlines()]


@without_gpu
@pytest.mark.long  # half a minute
def test_without_a_gpu_each_probe_passes_or_says_so(tmp_path: Path, contact: ModuleType) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False, env=environment
    )
    log = (tmp_path / "contact.log").read_text()
    assert done.returncode == 0, done.stdout + log
    verdicts = {line["probe"]: line["verdict"] for line in lines(tmp_path)}
    assert list(verdicts) == [*contact.LIMITS_S, "tests"]
    assert set(verdicts.values()) == {"passed", "no GPU"}
    assert {name for name, verdict in verdicts.items() if verdict == "passed"} == {
        "environment", "first_launch", "restart",
    }  # fmt: skip
    assert re.search(r"\d+ tests collected", str(lines(tmp_path)[-1]["summary"])), log


@pytest.mark.long
@without_gpu
def test_figures_need_a_gpu(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path, "--figures"], capture_output=True, check=False)
    assert done.returncode == 0
    assert [line["verdict"] for line in lines(tmp_path)] == ["passed", "no GPU"]


def test_limits_leave_time_for_the_tests(contact: ModuleType) -> None:
    assert next(iter(contact.LIMITS_S)) == "environment"
    assert contact.TESTS_S < contact.CONTACT_S <= 330
    assert contact.FIGURES_S <= 300


def test_a_process_that_does_not_end_is_stopped_with_its_children(
    tmp_path: Path, contact: ModuleType
) -> None:
    trial = contact.Contact(tmp_path, time.monotonic() + 60)
    code, session = trial.run(["sh", "-c", "echo $$; sleep 600 & wait"], 3.0)
    assert code is None
    wait_until(lambda: of_session(int(session)) == [])
    assert "stopped after 3 s" in (tmp_path / "contact.log").read_text()


@pytest.mark.long
def test_a_probe_that_ends_without_an_answer_has_failed(tmp_path: Path, contact: ModuleType) -> None:
    trial = contact.Contact(tmp_path, time.monotonic() + 60)
    contact.probe(trial, ["no such probe"], 250.0)
    assert [(line["probe"], line["verdict"]) for line in lines(tmp_path)] == [("no such probe", "failed")]
    assert trial.has_failed


@pytest.mark.long
def test_a_worker_with_a_broken_gpu_ends_and_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(BREAKS)
    results = tmp_path / "results.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "gpu_tests", "-p", "no:cacheprovider",
         "--numprocesses=1", f"--results={results}", "."],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    found = [json.loads(line) for line in results.read_text().splitlines()]
    outcomes = [(line["test"].partition("::")[2], line["outcome"]) for line in found]
    assert ("test_comes_later", "passed") in outcomes, done.stdout + done.stderr
    assert "the error of the test" in found[0]["error"]


def test_all_tests_that_a_gpu_can_run_are_listed() -> None:
    tests = ROOT / "tests"
    device = re.compile(
        r"^from support\.(triton_rows|device_batches) import .*\b(DEVICE|\w*batch\w*)\b", re.M
    )
    marked = re.compile(r"^pytestmark\b.*\bmark\.gpu\b", re.M | re.S)
    found = [
        path.relative_to(ROOT)
        for path in tests.rglob("test_*.py")
        if device.search(text := path.read_text()) or marked.search(text)
    ]
    assert len(found) > 10
    listed = set(map(Path, TESTS))
    assert [str(path) for path in found if not listed & {path, *path.parents}] == []
    assert all((ROOT / path).exists() for path in (*listed, *LEFT_OUT))
