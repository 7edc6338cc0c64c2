"""The built site in a real browser: two widths, light and dark, from files, without network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import NEEDS_BROWSER, Browser, browser
from support.built_site import build_site

pytestmark = [NEEDS_BROWSER, pytest.mark.long, pytest.mark.timeout(900)]
FOUND = "return [...document.querySelectorAll('#search-results li a')].map(link => link.textContent)"
CUT = """
return [...document.querySelectorAll('.highlight pre')]
  .filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent.slice(0, 40))
"""
# An element with text, its color, and the first background behind it that is not transparent.
PALE = """
const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const numbers = c => c.match(/[\\d.]+/g).map(Number);
const lum = c => { const [r, g, b] = numbers(c).map(v => linear(v / 255)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const back = e => { const c = getComputedStyle(e).backgroundColor; const a = numbers(c)[3];
  return (a === undefined || a > 0.5) || !e.parentElement ? c : back(e.parentElement); };
const ratio = (a, b) => (Math.max(lum(a), lum(b)) + 0.05) / (Math.min(lum(a), lum(b)) + 0.05);
return [...document.querySelectorAll('article p, article th, article td, article li, article h1, article h2')]
  .map(e => [e.textContent.slice(0, 20), ratio(getComputedStyle(e).color, back(e))]).filter(([text, found]) => found < 4.5)
"""  # noqa: E501


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_every_page_fits_and_is_readable_without_an_error(
    site: Path, window: Browser, width: int, scheme: str
) -> None:
    window.prefer(scheme)
    window.resize(width, 900)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        window.open(page.as_uri())
        assert window.overflow() == [], page
        assert window.run(PALE) == [], page
        assert window.errors() == [], page
        assert width == 400 or window.run(CUT) == [], page


def test_the_search_finds_pages_without_network(site: Path, window: Browser) -> None:
    window.open((site / "search.html").as_uri() + "?q=partition")
    for _ in range(100):
        if "Partitioning" in (found := window.run(FOUND)):  # they come one by one
            break
        window.run("return new Promise(done => setTimeout(done, 100))")
    assert "Partitioning" in found
    assert window.errors() == []


def test_the_search_finds_the_sentence_of_an_error(site: Path, window: Browser) -> None:
    window.open((site / "search.html").as_uri() + "?q=MASTER_PORT")
    for _ in range(100):
        if "Partitioning" in (found := window.run(FOUND)):  # they come one by one
            break
        window.run("return new Promise(done => setTimeout(done, 100))")
    assert any("Errors" in each for each in found)
