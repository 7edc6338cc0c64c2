"""Measure how plainly docstrings and pages are written, and find words that were retired.

Fails where docstrings or pages use more relative clauses, odd phrases or long sentences than the limits
allow, or where a name or phrase of tests/retired_words.txt is back in the code or the pages.

usage: python scripts/plain_words.py [--worst 10]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RETIRED = ROOT / "tests" / "retired_words.txt"
OLD_NAMES = ROOT / "src" / "khop" / "migrations.py"  # the table of old names
PAGES = ["README.md", "CONTRIBUTING.md", "docs/**/*.md"]
OPENER = re.compile(r"(What|Who|Whom|Whose|Whether|How|Where|Those|Which|That|As)\b")
CLAUSE = re.compile(r"\b(what|who|whom|whose|whoever|whatever|those|whichever)\b", re.IGNORECASE)
ODD = re.compile(
    r"\b(hears?|(is|are) told|lies? with|at home|one's own|so many|so much|nobody|(is|are) wanted|dealt|"
    r"elsewhere|comes? to nothing|meanwhile|whereupon|thereof|therein|all the same)\b",
    re.IGNORECASE,
)
LONG_WORDS = 30


@dataclass(frozen=True)
class Limits:
    """The most that texts of one kind may have."""

    openers_percent: float
    clauses_per_1000: float
    odd_per_1000: float
    long_percent: float


LIMITS = {"docstrings": Limits(1.0, 2.0, 0.3, 4.0), "pages": Limits(100.0, 2.0, 0.3, 4.0)}


@dataclass(frozen=True)
class Text:
    """A docstring, or a paragraph of a page."""

    place: str
    words: str


def main() -> None:
    """Print one line per kind of text; exit with 1 at an exceeded limit or a retired word."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worst", type=int, default=0, help="sentences to print of each kind (default 0)")
    worst = parser.parse_args().worst
    kinds = {"docstrings": list(docstrings()), "pages": list(paragraphs())}
    problems = [problem for kind, texts in kinds.items() for problem in measured(kind, texts, worst)]
    problems += retired_words()
    for problem in problems:
        print(f"plain words: {problem}", file=sys.stderr)
    sys.exit(bool(problems))


def docstrings() -> Iterator[Text]:
    """The docstrings of modules, classes and functions of the library."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kinds) and (words := ast.get_docstring(node)):
                yield Text(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", words)


def paragraphs() -> Iterator[Text]:
    """The prose of the pages, without code, tables and headings."""
    for path in sorted(page for pattern in PAGES for page in ROOT.glob(pattern)):
        prose = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        prose = re.sub(r"^(?:\s*\|| {4}|#+ |<!--).*$", "", prose, flags=re.MULTILINE)
        for block in re.split(r"\n\s*\n", prose):
            if len(block.split()) > 5:
                yield Text(str(path.relative_to(ROOT)), block)


def sentences(text: str) -> list[str]:
    """The sentences of a text; code counts as one word."""
    text = " ".join(re.sub(r"`+[^`]*`+", "X", text).split())
    return [found for found in re.split(r"(?<=[.!?:;])\s+", text) if len(found.split()) > 2]


def measured(kind: str, texts: Iterable[Text], worst: int) -> list[str]:
    """Print the figures of some texts; the limits that they exceed."""
    texts, limits = list(texts), LIMITS[kind]
    found = [(text.place, sentence) for text in texts for sentence in sentences(text.words)]
    words = max(1, sum(len(sentence.split()) for _, sentence in found))
    figures = {
        "openers %": 100 * sum(bool(OPENER.match(text.words)) for text in texts) / max(1, len(texts)),
        "clauses per 1,000 words": 1000 * sum(len(CLAUSE.findall(sentence)) for _, sentence in found) / words,
        "odd phrases per 1,000 words": 1000
        * sum(len(list(ODD.finditer(sentence))) for _, sentence in found)
        / words,
        "long sentences %": 100 * sum(len(s.split()) > LONG_WORDS for _, s in found) / max(1, len(found)),
    }
    print(f"{kind}: {words} words, " + ", ".join(f"{name} {value:.1f}" for name, value in figures.items()))
    for place, sentence in sorted(found, key=lambda item: -_oddness(item[1]))[:worst]:
        print(f"    {place}: {sentence}")
    most = [limits.openers_percent, limits.clauses_per_1000, limits.odd_per_1000, limits.long_percent]
    return [
        f"{kind}: {name} {value:.1f}, at most {limit} are allowed"
        for (name, value), limit in zip(figures.items(), most, strict=True)
        if value > limit
    ]


def _oddness(sentence: str) -> int:
    return 2 * len(CLAUSE.findall(sentence)) + 3 * len(list(ODD.finditer(sentence)))


def retired_words() -> list[str]:
    """The places where a retired name or phrase is used again."""
    words = [line for line in RETIRED.read_text().splitlines() if line and not line.startswith("#")]
    pattern = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in words))
    files = [*(ROOT / "src").rglob("*.py"), *(page for name in PAGES for page in ROOT.glob(name))]
    return [
        f"{path.relative_to(ROOT)}:{number}: {hit[0]!r} was retired (tests/retired_words.txt)"
        for path in sorted(files)
        if path != OLD_NAMES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (hit := pattern.search(line))
    ]


if __name__ == "__main__":
    main()
