"""Lists that servers hold: equal to those of the graph, with digests, and refused where they do not fit."""

from __future__ import annotations

import re

import pytest
import torch

import khop
import khop.servers.lists as lists
from khop.api.serve import ServedGraph
from khop.sampling.seeds import NodeSeeds
from khop.servers.errors import TooLarge
from khop.servers.frame import Frame
from khop.servers.json_fields import Document
from khop.servers.lists import link_list, seed_list
from support.same_samples import assert_same
from support.small_typed_folders import BUYS

SPLIT = {
    "by": "random", "edge_types": [list(BUYS)],
    "val": 0.2, "test": 30, "disjoint_share": 0.0, "negatives": 1, "label": None,
    "time": None, "seed": 3,
}  # fmt: skip


def reference(**fields: object) -> Document:
    return Document(fields, "list")


def test_a_split_is_a_list_of_seeds(typed_graph: khop.Graph) -> None:
    served = ServedGraph.of(typed_graph)
    found = seed_list(served, reference(split="train", types=["user", "item"], times=None))
    expected = NodeSeeds({t: torch.as_tensor(ids) for t, ids in served.splits["train"].items()})
    assert_same(found.digest(), expected.digest())
    assert found.counts == expected.counts


def test_times_of_a_column_are_part_of_the_list(typed_graph: khop.Graph) -> None:
    served = ServedGraph.of(typed_graph)
    plain, timed = (
        seed_list(served, reference(split="val", types=["user"], times=times)) for times in (None, "age")
    )
    assert plain.digest() != timed.digest()


def test_links_of_a_split_are_those_of_split_links(typed_graph: khop.Graph) -> None:
    served = ServedGraph.of(typed_graph)
    expected = khop.split_links(typed_graph, BUYS, 0.2, 30, seed=3)
    for part, links in (("train", expected.train_links), ("test", expected.test_links)):
        found = link_list(served, reference(view=[{"split_links": SPLIT, "part": "val"}], part=part))
        assert found.digest() == links.digest()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"split": "nope", "types": ["user"]}, "no split 'nope'; there are ['train', 'val', 'test']"),
        ({"split": "val", "types": ["tag"]}, "has nodes of ['user'], none of 'tag'"),
        ({"split": "val", "types": ["user"], "times": "nope"}, "'nope'"),
        ({"view": [], "part": "train"}, "links of part 'train': the view has those of []"),
        (
            {"view": [{"split_links": SPLIT, "part": "nope"}], "part": "val"},
            "must be one of ['train', 'val', 'test']",
        ),
    ],
)
def test_a_list_that_there_is_not_is_named(
    typed_graph: khop.Graph, fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        seed_list(ServedGraph.of(typed_graph), reference(**fields))


def test_rows_that_are_too_many_at_once_are_refused_before_they_are_read(
    typed_graph: khop.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"view": [], "type": "user", "columns": ["x"], "float32": [], "ids": 0}
    width = 4 * typed_graph.columns["user"]["x"].shape[1]
    frame = Frame(reference(**fields), (torch.zeros(10, dtype=torch.int64),), 0)
    monkeypatch.setattr(lists, "MOST_ROWS_BYTES", 10 * width)
    lists.answered(ServedGraph.of(typed_graph), lists.ROWS, frame)
    monkeypatch.setattr(lists, "MOST_ROWS_BYTES", 10 * width - 1)
    with pytest.raises(TooLarge, match=f"rows of x: {10 * width} bytes are requested at once"):
        lists.answered(ServedGraph.of(typed_graph), lists.ROWS, frame)
