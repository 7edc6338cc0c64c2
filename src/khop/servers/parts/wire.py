"""Requests between servers of parts: their kinds, and the fields of hops and negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from khop.draw import DrawKey, DrawnNegatives, Frontier, Positives, check_drawn
from khop.exchange.draw_wire import HopWire, NegativeWire
from khop.rules.rule import Hop, Rule, check_rule
from khop.schema import EdgeType, NodeType, Schema
from khop.servers.draw_keys import read_key, written_key
from khop.servers.json_fields import Document, Plain, by_type
from khop.servers.registry import Registry, described
from khop.servers.settings import View
from khop.servers.split_arguments import edge_type_of

HOP, ROWS, NEGATIVES = "hop", "part rows", "part negatives"
DEGREES, EDGES = "part degrees", "part edges"
COUNTS, LINK_COUNTS, LINK_ROWS = "split counts", "split links", "split rows"
TOUCHED = "nodes with edges"
_NOTHING = torch.empty(0, dtype=torch.int64)


def hop_fields(view: View, hop: Hop, key: DrawKey, wire: HopWire) -> dict[str, Plain]:
    """Return the fields that state a hop, but for its frontier."""
    return {
        "view": list(view),
        "number": hop.number,
        "fanouts": by_type(hop.fanouts),
        "rule": described(hop.rule),
        "edge_ids": hop.edge_ids,
        "key": written_key(key),
        "sent": by_type({t: list(names) for t, names in wire.fields.items()}),
    }


@dataclass(frozen=True)
class HopQuestion:
    """A hop as a server reads it, with the format of its messages."""

    hop: Hop
    key: DrawKey
    wire: HopWire


def read_hop(
    given: Document,
    registry: Registry,
    schema: Schema,
    nodes: Mapping[NodeType, int],
    edges: Mapping[EdgeType, int],
) -> HopQuestion:
    """Read a hop over a graph; `nodes` and `edges` are its counts by type. ValueError names what is wrong."""
    fanouts = {edge_type_of(t, schema): count.whole(-1) for t, count in given["fanouts"].entries()}
    rule: Rule = registry.made(given["rule"])  # type: ignore[assignment]
    check_rule(rule, schema)
    hop = Hop(given["number"].whole(), fanouts, rule, given["edge_ids"].value is True)
    key = read_key(given["key"])
    frontier = {}
    for node_type, names in given["sent"].entries():
        if not isinstance(node_type, str) or node_type not in schema.node_types:
            raise ValueError(f"{names.where}: {node_type!r} is no node type; there are {schema.node_types}")
        sent = [name.text() for name in names.each()]
        if not set(sent) <= rule.frontier_fields:
            raise ValueError(f"{names.where}: {sent} are not among those that {rule} reads")
        frontier[node_type] = Frontier(_NOTHING, **dict.fromkeys(sent, _NOTHING))
    return HopQuestion(hop, key, HopWire.of(frontier, hop, key, nodes, edges))


def negative_fields(
    view: View, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
) -> dict[str, Plain]:
    """Return the fields that state a draw of exact negatives, but for its links."""
    return {
        "view": list(view),
        "type": list(edge_type),
        "negatives": described(negatives),
        "until": positives.until is not None,
        "time_column": positives.time_column,
        "key": written_key(key),
    }


@dataclass(frozen=True)
class NegativeQuestion:
    """A draw of exact negatives as a server reads it, with the format of its messages."""

    edge_type: EdgeType
    negatives: DrawnNegatives
    key: DrawKey
    wire: NegativeWire


def read_negatives(
    given: Document, registry: Registry, schema: Schema, nodes: Mapping[NodeType, int]
) -> NegativeQuestion:
    """Read a draw of negatives; ValueError names what is wrong."""
    edge_type = edge_type_of(given["type"].type_(), schema)
    negatives: DrawnNegatives = registry.made(given["negatives"])  # type: ignore[assignment]
    check_drawn(negatives)
    column, key = given.given("time_column"), read_key(given["key"])
    until = _NOTHING if given["until"].value is True else None
    positives = Positives(_NOTHING, _NOTHING, until, None if column is None else column.text())
    wire = NegativeWire.of(edge_type, negatives, positives, key, nodes[edge_type[2]])
    return NegativeQuestion(edge_type, negatives, key, wire)
