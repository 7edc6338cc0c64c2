"""The page of `khop report` in a real browser: two widths, light and dark, no error, no overflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Ran
from support.browser import NEEDS_BROWSER, browser

pytestmark = [NEEDS_BROWSER, pytest.mark.long, pytest.mark.timeout(600)]
CONTRASTS = """
const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const lum = c => {
  const [r, g, b] = c.match(/[\\d.]+/g).map(v => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const back = getComputedStyle(document.body).backgroundColor;
const ratio = (a, b) => (Math.max(lum(a), lum(b)) + 0.05) / (Math.min(lum(a), lum(b)) + 0.05);
return [...document.querySelectorAll('p, th, td, li, h1, h2, h3')].map(e => {
  const style = getComputedStyle(e);
  return [e.tagName + ' ' + e.textContent.slice(0, 20), ratio(style.color, back)]; })
  .filter(([name, found]) => found < 4.5)
"""


@pytest.fixture
def report(khop_command: Callable[..., Ran], small_run: Path) -> Path:
    """A report on two runs, one of them with a long name."""
    names = ("a", f"runs/{'a-long-name-' * 8}b")
    for name, hidden in zip(names, ("16", "8"), strict=True):
        assert khop_command("train", "run.toml", "--out", name, "--hidden", hidden).code == 0
    assert khop_command("report", *names, "-o", "report.html").code == 0
    return Path("report.html").absolute()


def test_the_page_fits_and_is_readable_at_two_widths_in_light_and_dark(report: Path, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as window:
        for scheme in ("light", "dark"):
            for width in (390, 1280):
                window.prefer(scheme)
                window.resize(width, 900)
                window.open(report.as_uri())
                assert window.overflow() == [], (scheme, width)
                assert window.run(CONTRASTS) == [], (scheme, width)
        assert window.run("return document.querySelectorAll('img').length") > 6
        assert window.run("return performance.getEntriesByType('resource').length") == 0
        assert window.errors() == []


def test_the_checks_of_the_browser_can_fail(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<p style='width:3000px'>wide</p><script>undefined.x</script>")
    with browser(tmp_path / "profile") as window:
        window.resize(390, 900)
        window.open(page.as_uri())
        assert len(window.overflow()) == 2
        assert "Cannot read properties of undefined" in window.errors()[0]
