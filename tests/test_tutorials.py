"""The tutorials do what they show, and make the pictures that they have: support/tutorials.py runs them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from PIL import Image, ImageFilter

from support.tutorials import (
    ELSEWHERE,
    ROOT,
    TUTORIALS,
    commands_of,
    in_prose,
    original,
    pictures,
    run_tutorial,
    typed,
)

sys.path.insert(0, str(ROOT / "scripts"))
import build_docs

LAUNCH = ROOT / "examples" / "launch"
ALIKE = 0.85  # correlation of blurred pictures: scores, and so the curves, differ a little between processors


def likeness(one: Path, other: Path) -> float:
    """Correlation of two pictures, in which lines count although they are a few pixels apart."""
    with Image.open(one) as first, Image.open(other) as second:
        if first.size != second.size:
            return 0.0
        blurred = [
            np.asarray(each.convert("L").filter(ImageFilter.GaussianBlur(8)), dtype=np.float64).ravel()
            for each in (first, second)
        ]
    return float(np.corrcoef(*blurred)[0, 1])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    TUTORIALS,
    ids=lambda page: page.stem,
)
def test_a_tutorial_runs_from_its_first_line_to_its_last_and_makes_its_pictures(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_tutorial(page, tmp_path)
    for name in pictures(page):
        assert likeness(original(name, tmp_path), page.with_name(name)) > ALIKE, name


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_commands_in_sentences_are_among_those_that_run(page: Path) -> None:
    text = page.read_text()
    run = commands_of(text)
    assert [one for one in in_prose(text) if one not in run and not one.startswith(ELSEWHERE)] == []


def test_no_two_pictures_of_tutorials_are_alike() -> None:
    shown = [page.with_name(name) for page in TUTORIALS for name in pictures(page)]
    alike = [
        (one.name, other.name)
        for number, one in enumerate(shown)
        for other in shown[:number]
        if likeness(one, other) > ALIKE
    ]
    assert alike == []


@pytest.mark.parametrize(("page", "most"), [("from-dgl", 15), ("from-glt", 12)])
def test_a_port_changes_the_stated_number_of_lines(page: str, most: int) -> None:
    text = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text()
    (original_script, port) = build_docs.sides(text)
    changed = build_docs.changed_lines(original_script, port)
    removed = build_docs.changed_lines(port, original_script)
    assert "khop" not in original_script
    stated = re.search(r"(\d+) lines change and (\d+) disappear", text)
    assert stated is not None
    assert [int(number) for number in stated.groups()] == [len(changed), len(removed) - len(changed)]
    assert len(changed) <= most


def test_each_script_of_torch_geometric_changes_one_line() -> None:
    text = (ROOT / "docs" / "tutorials" / "from-pyg.md").read_text()
    scripts = re.findall(r"^```python\n(# \w+\.py\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(scripts) == 3
    for script in scripts:
        (changed,) = [line for line in script.splitlines() if "khop" in line]
        now, was = changed.split("  # was: ")
        assert now.split(" import ")[1] == was.split(" import ")[1]
        assert was.startswith("from torch_geometric.loader import ")


def test_tutorials_are_short_to_type() -> None:
    """From a clone to own ids: five commands of khop, no Python, 25 lines of TOML."""
    text = (ROOT / "docs" / "tutorials" / "shop.md").read_text().partition("## 5.")[0]
    lines = [line for block in re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
             for line in block.splitlines() if line.strip() and not line.startswith("#")]  # fmt: skip
    assert len(lines) <= 25
    assert "```python" not in text
    page = (ROOT / "docs" / "tutorials" / "shop.md").read_text()
    in_short = re.findall(r"^    \$ (.+)$", page, re.MULTILINE)
    run = [given.command for block in re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
           for given in typed(block)]  # fmt: skip
    assert len(in_short) <= 5
    assert in_short[0].startswith("pip install")
    assert set(in_short[1:]) <= set(run)  # the test above runs them, in their order


@pytest.mark.parametrize("classes", [("MaxLayer", "MaxModel"), ("AbsoluteError", "SizeTask")])
def test_a_model_or_a_task_of_your_own_takes_40_lines(classes: tuple[str, ...]) -> None:
    page = (ROOT / "docs" / "tutorials" / "own-components.md").read_text()
    (module,) = re.findall(r"^```python\n(# mine\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    found = {node.name: node for node in ast.parse(module).body if isinstance(node, ast.ClassDef)}
    imports = [line for line in module.splitlines() if line.startswith(("import ", "from "))]
    lines = [
        line for name in classes for line in (ast.get_source_segment(module, found[name]) or "").splitlines()
    ]
    decorators = sum(len(found[name].decorator_list) for name in classes)
    assert len(imports) + decorators + len([line for line in lines if line.strip()]) <= 40


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_begins_with_its_purpose_and_its_time(page: Path) -> None:
    first = page.read_text().split("\n\n")[1]
    assert first.startswith("In this tutorial ")
    assert re.search(r"takes? (one|two|three|four|five) minutes?", first), first


def test_the_files_to_start_from_are_valid() -> None:
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    (script,) = pod["containers"][0]["args"]
    assert f"--nnodes={job['spec']['completions']} " in script
    claims = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} <= claims


def kubernetes_script() -> str:
    _, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    (script,) = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return str(script).replace("/data/", "")


@pytest.mark.parametrize(
    ("launcher", "script", "out"),
    [
        ("srun", (LAUNCH / "slurm.sbatch").read_text(), "runs/slurm-7"),
        ("torchrun", kubernetes_script(), "runs/khop"),
    ],
    ids=["slurm", "kubernetes"],
)
def test_a_job_that_starts_again_resumes(tmp_path: Path, launcher: str, script: str, out: str) -> None:
    """A program in place of the launcher prints the arguments that the script gives to it."""
    (tmp_path / launcher).write_text('#!/bin/bash\necho "$@"\n')
    (tmp_path / launcher).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}

    def started() -> str:
        command = ["bash", "-ec", script, "name", "run.toml"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.partition("train ")[2].strip()

    assert started() == f"run.toml --out {out}"
    (tmp_path / out / "checkpoints" / "last").mkdir(parents=True)
    assert started() == f"--resume {out}"
