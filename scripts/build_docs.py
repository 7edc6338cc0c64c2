"""Build the documentation site: pages of docs/, the README, the examples, the reference of the API.

The pages are written for a repository's browser. They are copied to build/docs-source, where links to the
README and to files of the repository become links within the site. The tables of docs/index.md and of the
pages of sections become the navigation. No network is used.

usage: python scripts/build_docs.py [--out build/docs]
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import error_index
from sphinx.cmd.build import main as sphinx_build

ROOT = Path(__file__).resolve().parent.parent
STAGED = ROOT / "build" / "docs-source"
SECTIONS = (
    "index.md",
    "tutorials.md",
    "guides.md",
    "reference.md",
    "background.md",
)  # with a tree of contents
TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]*)(#[^)\s]*)?\)")
SIDES = re.compile(r'^<div class="side-by-side">\n(.*?)^</div>\n', re.MULTILINE | re.DOTALL)
SCRIPT = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
TYPED = re.compile(r"(?<=\n\n)    \$ .*\n(?:    .*\n)*")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


@dataclass(frozen=True)
class Page:
    """A page of the repository and its place in the site, both relative to their roots."""

    source: Path
    place: Path

    @classmethod
    def all(cls) -> list[Page]:
        """Return the README and its neighbors, then all pages below docs/."""
        below = sorted((ROOT / "docs").rglob("*.md"))
        tops = [cls(Path(name), Path(name)) for name in TOP_PAGES]
        tops.append(cls(Path("benchmarks/results/README.md"), Path("measurements.md")))
        return tops + [cls(page.relative_to(ROOT), page.relative_to(ROOT / "docs")) for page in below]


def main() -> None:
    """Stage the pages and build the site; exit with 1 at a warning, for example a link that leads nowhere."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="folder of the site")
    out = parser.parse_args().out
    stage()
    settings = ["-c", str(ROOT / "docs" / "site"), "-W", "--keep-going", "-q", "-E"]
    status = sphinx_build(["-b", "html", *settings, str(STAGED), str(out)])
    if status == 0:
        print(f"open {out}/index.html")
    sys.exit(1 if status else 0)


def stage() -> None:
    """Copy all pages and pictures to the folder that Sphinx reads."""
    shutil.rmtree(STAGED, ignore_errors=True)
    pages = Page.all()
    places = {page.source: page.place for page in pages}
    for picture in (ROOT / "docs").rglob("*.png"):
        _copied(picture, picture.relative_to(ROOT / "docs"))
    for page in pages:
        text = (ROOT / page.source).read_text()
        if str(page.place) in SECTIONS:
            text += navigation(page, text, places)
        if page.place == Path("errors.md"):
            text += error_index.as_markdown()
        text = SIDES.sub(_emphasized, _fenced(text))
        target = STAGED / page.place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(LINK.sub(partial(_within_site, page, places), text))


def navigation(page: Page, text: str, places: dict[Path, Path]) -> str:
    """Return a hidden tree of contents with the pages that a page links in its tables."""
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    linked = [_of_repository(page.source, match[2]) for row in rows if (match := LINK.search(row))]
    names = [places[each].with_suffix("") for each in dict.fromkeys(linked) if each in places]
    return "\n".join(["", "```{toctree}", ":hidden:", "", *map(str, names), "```", ""])


def sides(text: str) -> list[str]:
    """Return the scripts of a page that stand side by side: the original and its port."""
    (block,) = SIDES.findall(text)
    return [script for script in SCRIPT.findall(block)]


def changed_lines(before: str, after: str) -> list[int]:
    """Return the lines of `after` that `before` lacks, counted from 1. The first line is the file's name."""
    old, new = before.splitlines()[1:], after.splitlines()[1:]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        line + 2
        for kind, _, _, first, end in matcher.get_opcodes()
        if kind != "equal"
        for line in range(first, end)
    ]


def _emphasized(match: re.Match[str]) -> str:
    """Mark the lines in which two scripts differ."""
    both = SCRIPT.findall(match[0])
    others = iter(reversed(both))

    def marked(script: re.Match[str]) -> str:
        lines = ",".join(map(str, changed_lines(next(others), script[1])))
        return f"```{{code-block}} python\n:emphasize-lines: {lines}\n{script[1]}```"

    return SCRIPT.sub(marked, match[0])


def _fenced(text: str) -> str:
    """Give indented commands the language of a terminal."""
    fences = [(found.start(), found.end()) for found in FENCED.finditer(text)]

    def fenced(match: re.Match[str]) -> str:
        if any(start <= match.start() < end for start, end in fences):
            return match[0]
        lines = [line.removeprefix("    ") for line in match[0].splitlines()]
        return "\n".join(["```console", *lines, "```", ""])

    return TYPED.sub(fenced, text)


def _within_site(page: Page, places: dict[Path, Path], match: re.Match[str]) -> str:
    """Return a link as the site needs it."""
    label, target, anchor = match[1], match[2], match[3] or ""
    if "://" in target or not target:
        return match[0]
    named = _of_repository(page.source, target)
    if named in places:
        place = places[named]
    elif named.suffix == ".png":
        place = named.relative_to("docs")
        return f"{label}({_relative(place, page.place)})"
    else:
        place = _listing(named)
    return f"{label}({_relative(place, page.place)}{anchor})"


def _of_repository(page: Path, target: str) -> Path:
    """Return the file that a link of a page names, relative to the repository."""
    return (ROOT / page.parent / target).resolve().relative_to(ROOT)


def _relative(place: Path, page: Path) -> str:
    return "../" * (len(page.parts) - 1) + str(place)


def _listing(named: Path) -> Path:
    """Write a page with the text of a file, and return its place."""
    place = Path("files") / named.with_name(named.name.replace(".", "-") + ".md")
    target = STAGED / place
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        language = LANGUAGES.get(named.suffix, "text")
        text = (ROOT / named).read_text().rstrip("\n")
        fence = "`" * 4
        target.write_text(f"---\norphan: true\n---\n\n# {named}\n\n{fence}{language}\n{text}\n{fence}\n")
    return place


def _copied(source: Path, place: Path) -> None:
    target = STAGED / place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


if __name__ == "__main__":
    main()
