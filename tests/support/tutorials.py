"""Tutorials as programs: their files are written, their commands and scripts run, in order.

Indented commands run too, apart from those that need another machine or program; a server runs until the
end of its page. A block of TOML or Python that begins with `# NAME` is that file; another Python block is
run. Lines below a command are looked for in its output, in which numbers count as equal: scores differ
between processors.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
SCREENSHOTS = ("terminal.png", "tensorboard.png", "report.png")  # of scripts/make_screenshots.py
BLOCK = re.compile(r"^```(console|toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    \$ (.+)$", re.MULTILINE)
IN_PROSE = re.compile(r"`(khop [^`]+)`")
# Commands for machines, GPUs, programs or data that a test does not have, and the installation.
ELSEWHERE = (
    "pip install", "torchrun --nnodes 4", "sbatch", "kubectl", "python examples/launch/ray_train.py",
    "khop serve --on-ray", "khop import ogb:", "khop import dgl:", "khop train debian --device cuda",
)  # fmt: skip
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


def commands_of(text: str) -> list[str]:
    """Return the commands of a page that run: of console blocks, and indented ones."""
    blocks = [match[2] for match in BLOCK.finditer(text) if match[1] == "console"]
    in_blocks = [given.command for block in blocks for given in typed(block)]
    indented = [match[1] for match in INDENTED.finditer(text)]
    return [*in_blocks, *(one for one in indented if one not in in_blocks and not one.startswith(ELSEWHERE))]


def in_prose(text: str) -> list[str]:
    """Return the commands in the sentences of a page, but not mere names of commands and options."""
    sentences = INDENTED.sub("", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    found = [match[1] for match in IN_PROSE.finditer(sentences)]
    return [one for one in found if any(not word.startswith("-") for word in one.split()[2:])]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command: it finds khop, and the modules of the page."""
    beside = Path(sys.executable).parent
    path = {"PATH": f"{beside}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(folder), "COLUMNS": "200"}
    return os.environ | path


@contextmanager
def serving(command: str, folder: Path) -> Iterator[None]:
    """Run a server while the rest of its page runs."""
    words = ["bash", "-ec", f"exec {command}"]
    with subprocess.Popen(
        words, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("serving ")
        yield
        server.terminate()
        assert server.wait(timeout=60) == 0


def run_in_shell(given: Typed, folder: Path) -> None:
    """Run a command; AssertionError if it fails, or does not print the lines of the page."""
    done = subprocess.run(
        ["bash", "-ec", given.command],
        cwd=folder,
        env=environment(folder),
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
    in_blocks = {
        g.command for match in BLOCK.finditer(text) if match[1] == "console" for g in typed(match[2])
    }
    left = set(commands_of(text)) - in_blocks
    matches = sorted([*BLOCK.finditer(text), *INDENTED.finditer(text)], key=lambda match: match.start())
    with ExitStack() as servers:
        for match in matches:
            if match.re is INDENTED:
                if match[1].startswith("khop serve ") and match[1] in left:
                    servers.enter_context(serving(match[1], folder))
                elif match[1] in left:
                    run_in_shell(Typed(match[1], ()), folder)
                continue
            language, block = match.groups()
            named = FILE.match(block)
            if named:
                (folder / named[1]).write_text(block)
            elif language == "console":
                for given in typed(block):
                    run_in_shell(given, folder)
            elif language == "python":
                above = "\n" * text.count("\n", 0, match.start(2))  # a traceback names the line of the page
                exec(compile(above + block, page, "exec"), namespace)


def pictures(page: Path) -> list[str]:
    """Return the names of the pictures that the tutorial itself makes."""
    return [name for name in PICTURE.findall(page.read_text()) if name not in SCREENSHOTS]


def original(picture: str, folder: Path) -> Path:
    """Return the file of a tutorial's folder that a picture is a copy of: its own, or the curve of a run."""
    run = picture.removesuffix("-curve.png")
    return folder / picture if run == picture else folder / "runs" / run / "curve.png"
