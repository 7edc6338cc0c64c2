"""A run recommends over the edges of a split, or over all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.run.predict import draws_for, recommender_of
from khop.sampling.rules.uniform import Uniform
from support.small_link_folders import BUYS, write_diary, write_shop
from support.typed_runs import prepared

LINKS = {"kind": "link-prediction", "target": "user buys item"}


def test_the_edges_are_those_of_the_split(tmp_path: Path) -> None:
    fanouts = {"fanouts": [{"user sees shop": 0, "*": 4}]}
    run = prepared(write_shop(tmp_path / "shop"), task=LINKS, sampler=fanouts)
    counts = [
        recommender_of(run, split, 3, "all").edges.csc(BUYS).num_edges for split in ("train", "test", "all")
    ]
    assert counts[0] < counts[1] < counts[2] == run.graph.num_edges(BUYS)
    assert draws_for(run).rule == Uniform()


def test_links_in_windows_of_time_are_refused(tmp_path: Path) -> None:
    run = prepared(
        write_diary(tmp_path / "diary"),
        task=LINKS,
        sampler={"fanouts": [4], "time": "day", "window": [9, 0]},
        evaluation={"fanouts": [4]},
    )
    with pytest.raises(ValueError, match=r"sampler.window is \(9, 0\): inference over all neighbors would"):
        recommender_of(run, "all", 3, "all")
