"""Hops and negatives as servers write and read them."""

from __future__ import annotations

import json

import pytest
import torch

from khop.draw import DrawKey, DrawnNegatives, Frontier, Positives, UniformNegatives, WeightedNegatives
from khop.exchange.draw_wire import HopWire, NegativeWire
from khop.rules.labor import Labor
from khop.rules.rule import Hop, Rule
from khop.rules.temporal import Temporal
from khop.rules.uniform import Uniform
from khop.rules.weighted import Weighted
from khop.schema import ColumnSpec, Schema
from khop.servers.json_fields import Document
from khop.servers.parts.wire import hop_fields, negative_fields, read_hop, read_negatives
from khop.servers.registry import BUILTIN
from support.small_typed_folders import BUYS, LIKE

COLUMNS = {BUYS: {"time": ColumnSpec("int64", ()), "weight": ColumnSpec("float32", ())}}
SCHEMA = Schema(("user", "item"), (BUYS, LIKE), columns=COLUMNS)
NODES, EDGES = {"user": 300, "item": 200}, {BUYS: 3000, LIKE: 900}
IDS = torch.tensor([3, 0])


def sent(fields: dict[str, object]) -> Document:
    """Return fields as they arrive."""
    return Document(json.loads(json.dumps(fields)), "request")


@pytest.mark.parametrize(
    ("rule", "frontier"),
    [
        (Uniform(replacement=True), Frontier(IDS)),
        (Weighted("weight"), Frontier(IDS, tree=IDS)),
        (Labor(kappa=2), Frontier(IDS)),
        (Temporal("time", window=(9, 0), inner=Weighted("weight")), Frontier(IDS, until=IDS, tree=IDS)),
    ],
    ids=["uniform", "trees", "labor", "times"],
)
def test_a_hop_is_read_as_it_was_written(rule: Rule, frontier: Frontier) -> None:
    hop, key = Hop(3, {BUYS: 4, LIKE: -1}, rule, edge_ids=True), DrawKey((1 << 64) - 1, 7, 5)
    wire = HopWire.of({"item": frontier}, hop, key, NODES, EDGES)
    asked = read_hop(sent(hop_fields((), hop, key, wire)), BUILTIN, SCHEMA, NODES, EDGES)
    assert (asked.hop, asked.key, asked.wire) == (hop, key, wire)
    assert (asked.key.of_epoch, asked.key.step) == (7, 5)


@pytest.mark.parametrize("until", [None, IDS], ids=["always", "times"])
@pytest.mark.parametrize("negatives", [UniformNegatives(2, exact=True), WeightedNegatives("w", exact=True)])
def test_negatives_are_read_as_they_were_written(
    negatives: DrawnNegatives, until: torch.Tensor | None
) -> None:
    key, positives = DrawKey(7, 3, 2), Positives(IDS, IDS, until, "time")
    asked = read_negatives(sent(negative_fields((), BUYS, negatives, positives, key)), BUILTIN, SCHEMA, NODES)
    assert (asked.edge_type, asked.negatives, asked.key) == (BUYS, negatives, key)
    assert asked.wire == NegativeWire.of(BUYS, negatives, positives, key, 200)
