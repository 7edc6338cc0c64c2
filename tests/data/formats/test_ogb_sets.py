"""The table of OGB's sets agrees with its addresses and folders."""

from __future__ import annotations

from khop.data.formats.ogb import OGB_SETS


def test_addresses_and_folders() -> None:
    assert OGB_SETS["ogbn-arxiv"].url == "http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
    assert OGB_SETS["ogbl-citation2"].url == "http://snap.stanford.edu/ogb/data/linkproppred/citation-v2.zip"
    assert OGB_SETS["ogbn-papers100M"].folders == ("papers100M-bin", "ogbn_papers100M", "ogbn-papers100M")
    assert {name for name, one in OGB_SETS.items() if one.has_links} == {
        name for name in OGB_SETS if name.startswith("ogbl-")
    }
