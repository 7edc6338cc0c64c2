"""The documentation site: it is built without a warning, and has an example of each public name."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sphinx.search.en import SearchEnglish

import khop
import khop.models
import khop.pyg
import khop.testing
from khop.training.edge_tasks import LINK_METRICS
from khop.training.metrics import METRICS, REGRESSION_METRICS
from khop.training.multi_label_metrics import MULTI_LABEL_METRICS
from support.built_site import build_site
from test_docs import SEARCHED

pytestmark = pytest.mark.timeout(900)  # of the build of the site on a busy machine
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import error_index  # noqa: E402

HEADED_BY_WORDS = re.compile(r"^## ([\w -]+)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
DESCRIBED = re.compile(r"auto(?:class|function|exception|module):: khop\.([\w.]+)$", re.MULTILINE)


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
    return build_site(tmp_path_factory.mktemp("site"))


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


def test_no_page_is_orphaned(site: Path) -> None:
    """Each page is reached from the first one by links within the pages, without search and index."""
    reached, todo = set(), [site / "index.html"]
    while todo:
        page = todo.pop()
        if page not in reached and page.suffix == ".html" and page.exists():
            reached.add(page)
            todo += [(page.parent / target.partition("#")[0]).resolve() for target in Targets(page).targets]
    assert set(site.rglob("*.html")) - reached == set()


def test_each_metric_has_a_line_in_its_table() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    sections = dict(HEADED_BY_WORDS.findall(page))
    kinds = {"Classification": METRICS, "Multi-label classification": MULTI_LABEL_METRICS,
             "Regression": REGRESSION_METRICS, "Link prediction": dict.fromkeys(LINK_METRICS)}  # fmt: skip
    missing = [
        f"{title}: {name}"
        for title, names in kinds.items()
        for name in names
        if f"`{name}`" not in sections[title]
    ]
    assert missing == []


def test_the_site_lists_the_sentence_of_each_error(site: Path) -> None:
    shown = re.sub(r"<[^>]+>", "", (site / "errors.html").read_text())
    found = error_index.by_area()
    assert all(found.values())
    assert sum(map(len, found.values())) > 500
    words = "give one fanout per layer"
    assert words in shown
    assert any(words in sentence.text for sentence in found["The command and run files"])


def test_the_site_needs_no_network(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:)?//")
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


@pytest.mark.parametrize("query", [*SEARCHED, "Cannot re-initialize CUDA"])
def test_the_search_finds_the_answer_for_a_name_of_another_library(site: Path, query: str) -> None:
    """As searchtools.js does: each stem of the query is a term of the page."""
    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    language = SearchEnglish({})
    for word in filter(language.word_filter, language.split(query.lower())):
        found = [index[kind].get(language.stem(word), []) for kind in ("terms", "titleterms")]
        pages = {page for each in found for page in (each if isinstance(each, list) else [each])}
        assert index["docnames"].index("where-is") in pages, word


def test_the_reference_has_tables_of_parameters_and_names_of_types(site: Path) -> None:
    page = (site / "api" / "batches.html").read_text()
    loader = page[page.index('id="khop.Loader"') :]
    signature, _, body = loader.partition("</dt>")
    assert "seeds: GivenSeeds," in re.sub(r"<[^>]+>", "", signature)
    assert '<dl class="field-list' in body


def test_toml_is_highlighted_as_toml(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        built = (site / page.relative_to(ROOT / "docs")).with_suffix(".html").read_text()
        assert built.count('class="highlight-toml') == page.read_text().count("```toml\n"), page


def test_the_reference_shows_the_sentence_of_a_property_as_it_is(site: Path) -> None:
    assert "<p>Number of blocks in a sample: one per hop.</p>" in (site / "api" / "samplers.html").read_text()


def test_each_public_name_is_in_a_section_of_the_reference_with_an_example() -> None:
    sections = re.split(r"^## ", _reference(), flags=re.MULTILINE)
    described = {name: section for section in sections for name in DESCRIBED.findall(section)}
    assert sorted(name for name in khop._PUBLIC if "```python" not in described.get(name, "")) == []


def test_the_reference_describes_each_public_name_once_and_no_others() -> None:
    public = [
        *khop._PUBLIC,
        *(f"models.{name}" for name in khop.models.__all__),
        *(f"pyg.{name}" for name in khop.pyg.__all__),
        *(f"testing.{name}" for name in khop.testing.SUITES),
    ]
    assert sorted(DESCRIBED.findall(_reference())) == sorted(public)


def _reference() -> str:
    return "\n".join(page.read_text() for page in ROOT.glob("docs/api/*.md"))
