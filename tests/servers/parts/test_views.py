"""Views of a part, each made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.servers.json_fields import Document
from khop.servers.parts.views import PartViews
from support.parts_in_process import part_services
from support.small_typed_folders import BUYS, LIKE

SPLIT = {
    "by": "random", "edge_types": [list(BUYS)],
    "val": 0.2, "test": 0.1, "disjoint_share": 0.0, "negatives": 1, "label": None,
    "time": None, "seed": 4,
}  # fmt: skip


def view(*steps: dict[str, object]) -> Document:
    return Document(list(steps), "view")


@pytest.fixture(scope="module")
def views(typed_parts: Path) -> PartViews:
    views: PartViews = part_services(typed_parts)[0]._part._views  # type: ignore[union-attr,attr-defined]
    return views


def test_steps_follow_one_another(views: PartViews) -> None:
    only = {"only": [list(BUYS), list(LIKE)]}
    graph = views.graph(view(only, {"split_links": SPLIT, "part": "val"}))
    assert graph.schema.edge_types == (BUYS, LIKE)
    assert graph.held.thinned == {BUYS}
    assert graph is views.graph(view(only, {"split_links": SPLIT, "part": "val"}))
    assert views.graph(view()).held.thinned == frozenset()


def test_only_a_split_has_links(views: PartViews) -> None:
    links = views.links(view({"split_links": SPLIT, "part": "test"}))
    assert {name: dict(of.counts) for name, of in links.items()} == {
        "train": {BUYS: 2100}, "val": {BUYS: 600}, "test": {BUYS: 300},
    }  # fmt: skip
    assert views.links(view()) == views.links(view({"only": [list(BUYS)]})) == {}


def test_a_step_that_does_not_fit_is_a_sentence(views: PartViews) -> None:
    with pytest.raises(ValueError, match="no edge type"):
        views.graph(view({"only": [["user", "sells", "item"]]}))
    with pytest.raises(ValueError, match="part 'dev'"):
        views.graph(view({"split_links": SPLIT, "part": "dev"}))
