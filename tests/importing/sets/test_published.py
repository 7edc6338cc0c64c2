"""Published results stand in the graph folder and in the proposed run."""

from __future__ import annotations

from khop.importing.sets.ogb import OGB_SETS
from khop.importing.sets.published import PUBLISHED
from khop.pyg.import_set import PYG_RAW


def test_all_sets_of_ogb_and_torch_geometric_but_one_have_a_result() -> None:
    assert PUBLISHED.keys() == {*OGB_SETS, *PYG_RAW} - {"Coauthor-Physics"}


def test_each_result_has_its_source() -> None:
    for name, one in PUBLISHED.items():
        assert one.source.startswith("https://"), name
        assert one.record()["value"] == one.value
        assert str(one).startswith(one.metric)
