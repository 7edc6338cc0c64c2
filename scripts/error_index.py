"""Collect the sentences of all errors that khop raises, for the page docs/errors.md of the site.

usage: python scripts/error_index.py    # prints the list
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "khop"
VALUE = "…"  # in place of a value
# Parts of khop that a user knows, and folders or files of src/khop that raise their errors.
AREAS = {
    "The command and run files": ("cli", "run", "components.py"),
    "Importing tables and data of others": ("data/tables", "data/formats", "data/debian", "data", "pyg"),
    "Graph folders and columns": ("graph", "graph/features", "schema.py"),
    "Samplers, rules and batches": ("sampling", "kernels", "loading", "draw.py", "batch.py"),
    "Models, training and inference": ("models", "training", "inference"),
    "Several processes and partitioned graphs": ("distributed", "graph/partitions", "data/partition"),
    "Servers": ("servers",),
    "Planning, profiles and reports": ("run/planning", "run/reporting", "run/profile.py"),
}
OTHERS = "Functions of the API"
SHORTEST = 20  # characters; a shorter text is part of a sentence


@dataclass(frozen=True, order=True)
class Sentence:
    """The text of an error, with `…` for each value, and the class that is raised."""

    text: str
    error: str


def by_area() -> dict[str, list[Sentence]]:
    """Return the sentences of each area, in alphabetical order."""
    found: dict[str, set[Sentence]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        room, top = name.rpartition("/")[0], name.partition("/")[0]
        areas = (area for place in (name, room, top) for area, places in AREAS.items() if place in places)
        area = next(areas, OTHERS)
        found[area] |= set(sentences(ast.parse(path.read_text())))
    return {area: sorted(found[area], key=_by_words) for area in (*AREAS, OTHERS)}


def sentences(tree: ast.AST) -> Iterator[Sentence]:
    """Yield the texts of the `raise` statements of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = " ".join(_text(node.exc.args[0]).split())
            if len(text) >= SHORTEST:
                yield Sentence(text, ast.unparse(node.exc.func).rpartition(".")[2])


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(_text(value) if isinstance(value, ast.Constant) else VALUE for value in values)
        case ast.BinOp(left=left, right=right):
            return _text(left) + _text(right)
    return ""


def _by_words(sentence: Sentence) -> str:
    return sentence.text.strip(f"{VALUE} :.,-'\"").lower()


def as_markdown() -> str:
    """Return a section for each area, with an item per sentence."""
    lines: list[str] = []
    for area, found in by_area().items():
        lines += ["", f"## {area}", ""]
        lines += [f"* {_code(each.text)}" + _kind(each.error) for each in found]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if fence == "`" else f"{fence} {text} {fence}"


def _kind(error: str) -> str:
    return "" if error == "ValueError" or not error[:1].isupper() else f" ({error})"


if __name__ == "__main__":
    print(as_markdown())
