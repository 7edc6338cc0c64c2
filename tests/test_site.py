"""The documentation site: it is built without a warning, and has an example of each public name."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import khop

ROOT = Path(__file__).parents[1]
HEADED = re.compile(r"^## (\w+)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


class Targets(HTMLParser):
    """All targets of links, pictures, scripts and styles of a page, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {name for name in (given.get("id"), given.get("name")) if name}
        self.targets += [value for key in ("href", "src") if (value := given.get(key))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "scripts/build_docs.py", "--out", str(out)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return out


def test_each_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {page: Targets(page) for page in site.rglob("*.html")}
    broken = []
    for page, found in pages.items():
        for target in found.targets:
            path, _, anchor = target.partition("#")
            if ":" in path:
                continue
            file = (page.parent / path.partition("?")[0]).resolve() if path else page
            known = file.exists() and (not anchor or file not in pages or anchor in pages[file].anchors)
            if not known:
                broken.append(f"{page.relative_to(site)}: {target}")
    assert broken == []
    assert len(pages) > 30


def test_the_site_needs_no_network(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:)?//")
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


def test_each_public_name_is_in_the_reference_with_an_example() -> None:
    sections = dict(
        match.groups() for page in ROOT.glob("docs/api/*.md") for match in HEADED.finditer(page.read_text())
    )
    assert sorted(set(khop._PUBLIC) - set(sections)) == []
    assert [name for name, text in sections.items() if "```python" not in text] == []


def test_the_reference_has_no_name_that_is_not_public() -> None:
    named = re.findall(r"auto(?:class|function|exception):: khop\.(\w+)$", _reference(), re.MULTILINE)
    assert sorted(set(named) - set(khop._PUBLIC)) == []
    assert sorted(set(khop._PUBLIC) - set(named)) == []


def _reference() -> str:
    return "\n".join(page.read_text() for page in ROOT.glob("docs/api/*.md"))
