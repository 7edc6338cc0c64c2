"""Splits of links over parts: each server splits its own edges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.sampling.link_split import Counted
from khop.servers.json_fields import Document
from khop.servers.parts.split import SharedSplit
from khop.servers.split_arguments import SplitArguments
from support.parts_in_process import part_services
from support.small_typed_folders import BUYS

ARGUMENTS = {
    "by": "random", "edge_types": [list(BUYS)],
    "val": 0.2, "test": 40, "disjoint_share": 0.25, "negatives": 2, "label": None,
    "time": None, "seed": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def splits(typed_parts: Path) -> list[SharedSplit]:
    """The same split on the server of each part."""
    return [
        service._part._views.split(Document([], "view"), Document(ARGUMENTS, "split"))  # type: ignore[union-attr,attr-defined]
        for service in part_services(typed_parts)
    ]


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_the_links_of_all_parts_are_those_of_one_process(
    splits: list[SharedSplit], typed_parts: Path, name: str
) -> None:
    split = khop.split_links(khop.open_graph(typed_parts), BUYS, 0.2, 40, disjoint_share=0.25, seed=4)
    expected = {"train": split.train_links, "val": split.val_links, "test": split.test_links}[name]
    counts = torch.cat([of_part.link_counts(name, BUYS) for of_part in splits])
    assert counts.tolist() == torch.bincount(expected.edges[BUYS][1], minlength=200).tolist()
    assert splits[0].ask_link_counts(name, BUYS).tolist() == counts.tolist()
    rows = [of.link_rows(name, BUYS, torch.arange(int(of.link_counts(name, BUYS).sum()))) for of in splits]
    found = torch.cat([of_part["ends"] for of_part in rows])
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.edges[BUYS].T.tolist()))


def test_counts_of_links_need_no_other_part(splits: list[SharedSplit]) -> None:
    every = [int(of_part.counts(Counted(BUYS))) for of_part in splits]
    assert sum(every) == 3000
    assert all(
        int(of.counts(Counted(BUYS, 48)).sum()) == count for of, count in zip(splits, every, strict=True)
    )


def test_links_that_there_are_not_are_refused(splits: list[SharedSplit]) -> None:
    with pytest.raises(ValueError, match="part 'dev' of a split"):
        splits[0].part("dev")
    with pytest.raises(ValueError, match="links -1 to 0: there are"):
        splits[0].link_rows("val", BUYS, torch.tensor([0, -1]))
    with pytest.raises(ValueError, match="must be int64"):
        splits[0].link_rows("val", BUYS, torch.tensor([0.5]))
    with pytest.raises(ValueError, match="the split has those of"):
        splits[0].link_counts("val", ("item", "like", "item"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"edge_types": ["user"]}, "is no edge type"),
        ({"label": "price"}, "price"),
        ({"val": 2.5}, "must be a share from 0 to below 1"),
        ({"negatives": -1}, "not a whole number"),
    ],
)
def test_arguments_that_do_not_fit_are_sentences(
    splits: list[SharedSplit], change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        SplitArguments.read(Document({**ARGUMENTS, **change}, "split"), splits[0].graph.schema)
