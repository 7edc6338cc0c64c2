"""Tutorials as programs: their files are written, their commands and scripts run, in order.

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

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
SCREENSHOTS = ("terminal.png", "tensorboard.png", "report.png")  # of scripts/make_screenshots.py
BLOCK = re.compile(r"^```(console|toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:toml|py))\n")
NUMBER = re.compile(r"-?\d[\d,.]*(?:e-?\d+)?")
PICTURE = re.compile(r"!\[[^\]]+\]\(([\w-]+\.png)\)")


@dataclass(frozen=True)
class Typed:
    """A command of a console block, and the lines of its output that the page shows."""

    command: str
    shown: Sequence[str]


def typed(block: str) -> Iterator[Typed]:
    """Yield the commands of a console block."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield Typed(command, [line for line in shown if line.strip()])


def masked(line: str) -> str:
    """Return the words of a line; each number is `#`."""
    return " ".join(NUMBER.sub("#", line).split())


def run_in_shell(given: Typed, folder: Path) -> None:
    """Run a command; AssertionError if it fails, or does not print the lines of the page."""
    beside = Path(sys.executable).parent
    path = {"PATH": f"{beside}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-ec", given.command],
        cwd=folder,
        env=os.environ | path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{given.command}\n{done.stdout}{done.stderr}"
    printed = {masked(line) for line in (done.stdout + done.stderr).splitlines()}
    assert [line for line in given.shown if masked(line) not in printed] == [], "\n".join(sorted(printed))


def run_tutorial(page: Path, folder: Path) -> None:
    """Do all that a page shows, in an empty folder, which is the working directory."""
    (folder / "examples").symlink_to(ROOT / "examples")
    namespace = {"__name__": "__main__"}
    text = page.read_text()
    for match in BLOCK.finditer(text):
        language, block = match.groups()
        named = FILE.match(block)
        if named:
            (folder / named[1]).write_text(block)
        elif language == "console":
            for given in typed(block):
                run_in_shell(given, folder)
        elif language == "python":
            above = "\n" * text.count("\n", 0, match.start(2))  # a traceback then names the line of the page
            exec(compile(above + block, page, "exec"), namespace)


def pictures(page: Path) -> list[str]:
    """Return the names of the pictures that the tutorial itself makes."""
    return [name for name in PICTURE.findall(page.read_text()) if name not in SCREENSHOTS]


def original(picture: str, folder: Path) -> Path:
    """Return the file of a tutorial's folder that a picture is a copy of: its own, or the curve of a run."""
    run = picture.removesuffix("-curve.png")
    return folder / picture if run == picture else folder / "runs" / run / "curve.png"
