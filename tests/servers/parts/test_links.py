"""Numbers of links over all parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.features.store import Rows
from khop.partition.parts_folder import open_parts
from khop.servers.json_fields import Document
from khop.servers.parts.links import LinkPlaces, shared_links
from support.parts_in_process import part_services
from support.small_typed_folders import BUYS

COUNTS = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(counts=COUNTS, seed=st.integers(0, 99))
def test_links_are_numbered_by_the_original_ids_of_their_destinations(counts: list[int], seed: int) -> None:
    originals = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))
    by_id = [(node, row) for node, count in enumerate(counts) for row in range(count)]
    expected = sorted(by_id, key=lambda link: (int(originals[link[0]]), link[1]))
    places = LinkPlaces.of(torch.tensor(counts), originals)
    assert places.count == len(expected)
    nodes, rows = places.found(torch.arange(places.count))
    assert nodes.tolist() == [node for node, _ in expected]
    assert rows.tolist() == [by_id.index(link) for link in expected]


def test_a_list_of_links_has_the_digest_and_the_rows_of_the_local_one(typed_parts: Path) -> None:
    arguments = {
        "by": "random",
        "edge_types": [list(BUYS)], "val": 0.2, "test": 40, "disjoint_share": 0.0, "negatives": 2,
        "label": "weight", "time": "time", "seed": 4,
    }  # fmt: skip
    split = khop.split_links(
        khop.open_graph(typed_parts), BUYS, 0.2, 40, negatives=2, label="weight", time="time", seed=4
    )
    served = part_services(typed_parts)[1]._part
    found = served._views.split(Document([], "view"), Document(arguments, "split"))  # type: ignore[union-attr,attr-defined]
    for name, expected in (
        ("train", split.train_links),
        ("val", split.val_links),
        ("test", split.test_links),
    ):
        links = shared_links(found, name, found.graph)
        assert (dict(links.counts), links.facts) == (dict(expected.counts), expected.facts)
        assert links.digest() == expected.digest()
    wanted = {BUYS: Rows(torch.tensor([5, 1]), ("ends", "times"), {"times": 1})}
    rows = links.table.gather(wanted)[BUYS]
    assert rows["ends"].tolist() == split.test_links.edges[BUYS][:, [5, 1]].T.tolist()
    assert rows["times"].tolist() == [int(split.test_links.times[BUYS][5])]


def test_a_part_of_a_split_that_there_is_not_is_refused(typed_parts: Path) -> None:
    assert len(open_parts(typed_parts).parts) == 3
    arguments = {"by": "random", "edge_types": [["user", "sells", "item"]]}
    views = part_services(typed_parts)[0]._part._views  # type: ignore[union-attr,attr-defined]
    with pytest.raises(ValueError, match="has no field"):
        views.split(Document([], "view"), Document(arguments, "split"))
