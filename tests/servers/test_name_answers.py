"""Requests for ids that do not fit the graph or the limit of the server are refused with a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import khop
from khop.api.serve import ServedGraph
from khop.servers.errors import InvalidRequest, TooLarge
from khop.servers.frame import whole
from khop.servers.service import Service
from support.named_shop import write_named_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_named_shop(tmp_path_factory.mktemp("named") / "shop")


def asked(shop: Path, fields: dict[str, object], max_batch_bytes: int | None = None) -> bytes:
    """Return the answer to a request."""
    service = Service(ServedGraph.of(khop.open_graph(shop)), max_batch_bytes=max_batch_bytes)
    graph = {"graph": service._served.fingerprint, "kind": "node-ids"}
    request = whole({**graph, **fields}, [torch.tensor([3, -1]), torch.rand(2)])
    return b"".join(map(bytes, service.accept(request).run()))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"type": "tag", "first": 0, "end": 1}, "ids of 'tag': the graph stores those of ['user', 'item']"),
        ({"type": "user", "first": 80, "end": 91}, "nodes 80 to 90: there are 90"),
        ({"type": "user", "first": 5, "end": 4}, "a whole number from 5"),
        ({"type": "user", "nodes": 0}, "nodes -1 to 3: there are 90"),
        ({"type": "user", "nodes": 1}, "must be int64"),
        ({"type": ["user", "buys", "item"], "first": 0, "end": 1}, "not text"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(shop: Path, fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        asked(shop, fields)


def test_an_answer_has_as_many_ids_as_the_limit_allows_and_at_least_one(shop: Path) -> None:
    """The id of node 0 is empty, and takes the 8 bytes of its place; that of node 1 is longer."""
    fields: dict[str, object] = {"type": "user", "first": 0, "end": 2}
    assert b'["int64",[2]],["uint8",[0]]' in asked(shop, fields, 9)
    assert b'["int64",[3]]' in asked(shop, fields, 1000)
    with pytest.raises(TooLarge, match="the id of node 1 of 'user' has more than the 9 bytes"):
        asked(shop, {"type": "user", "first": 1, "end": 2}, 9)


def test_labels_that_no_import_recorded_are_refused(shop: Path) -> None:
    with pytest.raises(InvalidRequest, match=re.escape("labels of 'tag': the import recorded those of")):
        asked(shop, {"kind": "labels", "type": "tag"})
