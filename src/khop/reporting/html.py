"""Tables of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(label: str, heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that scrolls within the page if it is wide. The first cell of a row is its heading.

    Cells are plain text.
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heading)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    content = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="table" role="region" aria-label="{escape(label)}" tabindex="0">{content}</div>'


def _row(row: Sequence[str]) -> str:
    first, *cells = map(escape, row)
    return f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in cells)


def scrolled(label: str, pictures: str) -> str:
    """Return pictures that scroll within the page if they are wide."""
    return f'<div class="wide" role="region" aria-label="{escape(label)}" tabindex="0">{pictures}</div>'


def paragraph(words: str, kind: str = "") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>"
