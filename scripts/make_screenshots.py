"""Make the pictures of the terminal, TensorBoard and a report that the tutorials show, from a real run.

Needs Chromium and its driver (Debian: chromium, chromium-driver), and the dependency group `pictures`.

usage: python scripts/make_screenshots.py [--epochs 5]
"""

from __future__ import annotations

import argparse
import contextlib
import html
import os
import pty
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support.browser import Browser, browser  # noqa: E402

OUT = ROOT / "docs" / "tutorials"
COLUMNS, LINES = 96, 26
COLORS = {"green": "#7ec699", "cyan": "#6cc7d9", "blue": "#7aa2f7", "magenta": "#c792ea", "red": "#f07178",
          "brown": "#e0c070", "brightblack": "#808890", "default": "#d8dee9"}  # fmt: skip
PAGE = """<!doctype html><meta charset="utf-8"><style>body {{ margin: 0; background: #1d232e; }}
pre {{ margin: 0; padding: 14px 18px; color: #d8dee9; width: max-content;
  font: 14px/1.35 "DejaVu Sans Mono", monospace; }}
</style><pre>{}</pre>"""
BAR = "━"  # of a progress bar


def main() -> None:
    """Train in a terminal, then look at the run in TensorBoard and at its report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5, help="epochs of the run (default 5)")
    epochs = str(parser.parse_args().epochs)
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder, "profile")) as window:
        work = Path(folder)
        command = ("khop", "train", "debian", "--epochs", epochs, "--out", "runs/first", "--tensorboard")
        shoot_terminal(window, command, work, OUT / "terminal.png")
        shoot_tensorboard(window, work, OUT / "tensorboard.png")
        subprocess.run(["khop", "report", "runs/first", "-o", "report.html"], cwd=work, check=True)
        window.resize(1000, 1250)
        window.open((work / "report.html").as_uri())
        window.picture(OUT / "report.png", whole=False)


def shoot_terminal(window: Browser, command: tuple[str, ...], work: Path, out: Path) -> None:
    """Run a command on a terminal of its own, and show the last screen that has bars in motion."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
    ours, theirs = pty.openpty()
    shown = ""
    stream.feed(f"$ {' '.join(command)}\r\n".encode())
    with subprocess.Popen(command, cwd=work, stdout=theirs, stderr=theirs, env={**os.environ, **size}):
        os.close(theirs)
        with contextlib.suppress(OSError):  # the command has ended
            while written := os.read(ours, 65536):
                stream.feed(written)
                now = as_html(screen)
                shown = now if BAR in now else shown
    os.close(ours)
    page = work / "terminal.html"
    page.write_text(PAGE.format(shown))
    window.open(page.as_uri())
    size_of = (
        "const box = document.querySelector('pre').getBoundingClientRect(); return [box.width, box.height]"
    )
    wide, high = window.run(size_of)
    window.resize(int(wide) + 1, int(high) + 1)
    window.picture(out)


def as_html(screen: pyte.Screen) -> str:
    """Return the text of a screen with its colors."""
    lines = []
    for row in range(screen.lines):
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        spans = [f'<span style="color:{_color(cell.fg)}">{html.escape(cell.data)}</span>' for cell in cells]
        lines.append("".join(spans) if any(cell.data.strip() for cell in cells) else "")
    return "\n".join(lines).rstrip("\n")


def _color(name: str) -> str:
    is_hex = len(name) == 6 and all(letter in "0123456789abcdef" for letter in name)
    return f"#{name}" if is_hex else COLORS.get(name, COLORS["default"])


def shoot_tensorboard(window: Browser, work: Path, out: Path) -> None:
    """Show the curves of the run in TensorBoard."""
    address = ("--host", "127.0.0.1", "--port", "16017")
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs", *address]
    with subprocess.Popen(
        command, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if "http://127.0.0.1" in line:
                break
        window.resize(1280, 860)
        window.open("http://127.0.0.1:16017/?darkMode=false#timeseries")
        time.sleep(25)  # it draws its curves after the page is loaded
        window.picture(out, whole=False)
        server.terminate()


if __name__ == "__main__":
    main()
