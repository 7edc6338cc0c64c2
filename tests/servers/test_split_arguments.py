"""Arguments of splits travel as plain values."""

from __future__ import annotations

import json
from typing import Any

import pytest

import khop
from khop.graph.import_record import TimeCutOffs
from khop.sampling.link_split import LinkColumns, Shares
from khop.servers.json_fields import Document, written
from khop.servers.split_arguments import ByColumn, SplitArguments, SplitMethod
from support.small_typed_folders import BUYS

METHODS = [Shares(0.1, 30, 0.5), TimeCutOffs(-(1 << 63), (1 << 63) - 1), ByColumn()]


def document(plain: object) -> Document:
    return Document(json.loads(written(plain)), "split")


@pytest.mark.parametrize("method", METHODS)
def test_arguments_come_back_equal(typed_graph: khop.Graph, method: SplitMethod) -> None:
    given = SplitArguments((BUYS,), method, LinkColumns(3, "weight", "time"), (1 << 64) - 1)
    found = SplitArguments.read(document(given.plain), typed_graph.schema)
    assert found == given
    assert written(found.plain) == written(given.plain)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"by": "size"}, "split.by: is 'size', and must be one of"),
        ({"by": "time", "val": 0.5}, "not a whole number"),
        ({"by": "column", "edge_types": []}, "edge_types: is empty; name at least one edge type"),
        ({"by": "time", "val": 1 << 63}, "not a whole number"),
        ({"edge_types": ["user"]}, "is no edge type"),
        ({"time": "nope"}, "nope"),
    ],
)
def test_arguments_that_do_not_fit_are_sentences(
    typed_graph: khop.Graph, change: dict[str, Any], sentence: str
) -> None:
    plain = SplitArguments((BUYS,), Shares(1, 1), LinkColumns(), 1).plain
    with pytest.raises(ValueError, match=sentence):
        SplitArguments.read(document({**plain, **change}), typed_graph.schema)
