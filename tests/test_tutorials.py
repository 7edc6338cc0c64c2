"""The tutorials do what they show: their files are written, their commands and scripts run, in order.

A block of TOML or Python that begins with `# NAME` is that file; another Python block is run. Lines below a
command are looked for in its output, in which numbers count as equal: scores differ between processors.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
SEVERAL = ("from-glt", "many-processes")  # minutes on two cores: run by make test-long
BLOCK = re.compile(r"^```(console|toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:toml|py))\n")
NUMBER = re.compile(r"-?\d[\d,.]*(?:e-?\d+)?")


@dataclass(frozen=True)
class Typed:
    """A command of a console block, and the lines of its output that the page shows."""

    command: str
    shown: Sequence[str]


def typed(block: str) -> Iterator[Typed]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield Typed(command, [line for line in shown if line.strip()])


def masked(line: str) -> str:
    """Return the words of a line; each number is `#`."""
    return " ".join(NUMBER.sub("#", line).split())


def run_in_shell(given: Typed, folder: Path) -> None:
    beside = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-ec", given.command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{given.command}\n{done.stdout}{done.stderr}"
    printed = {masked(line) for line in (done.stdout + done.stderr).splitlines()}
    assert [line for line in given.shown if masked(line) not in printed] == [], "\n".join(sorted(printed))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] * (page.stem in SEVERAL), id=page.stem)
        for page in TUTORIALS
    ],
)
def test_a_tutorial_runs_from_its_first_line_to_its_last(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    namespace = {"__name__": "__main__"}
    text = page.read_text()
    for match in BLOCK.finditer(text):
        language, block = match.groups()
        named = FILE.match(block)
        if named:
            (tmp_path / named[1]).write_text(block)
        elif language == "console":
            for given in typed(block):
                run_in_shell(given, tmp_path)
        elif language == "python":
            padding = "\n" * text.count(
                "\n", 0, match.start(2)
            )  # a traceback then names the line of the page
            exec(compile(padding + block, page, "exec"), namespace)


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


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_begins_with_its_purpose_and_its_time(page: Path) -> None:
    first = page.read_text().split("\n\n")[1]
    assert first.startswith("In this tutorial ")
    assert re.search(r"takes? (one|two|three|four|five) minutes?", first), first


def test_the_files_to_start_from_are_valid(tmp_path: Path) -> None:
    launch = ROOT / "examples" / "launch"
    subprocess.run(["bash", "-n", str(launch / "slurm.sbatch")], check=True)
    service, job = yaml.safe_load_all((launch / "kubernetes.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert f"--nnodes={job['spec']['completions']}" in pod["containers"][0]["args"]
    claims = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} <= claims
