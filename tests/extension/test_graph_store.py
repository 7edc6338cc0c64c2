"""A graph store written outside khop: edges in a SQLite file; a hop reads the rows of its frontier."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor

import khop
from extension.training import losses_of, train
from khop.draw import DrawKey, FrontierByType, NeighborsByType
from khop.graph.needs import RuleArrays
from khop.graph.rule import Hop
from khop.graph.rule_arrays import EdgeDraws, asked_types, check_types
from khop.kernels.csc import Csc
from khop.schema import EdgeType, NodeType
from khop.testing.graph_store import PROMISES, Make
from khop.testing.graphs import PlainGraph, int64
from support.covered import covered
from support.small_graphs import one_type
from support.started_ranks import StartedRanks

TABLES = """
create table node_types (name text primary key, count integer);
create table original_ids (type text, node integer, id integer, primary key (type, node));
create table edges (type text, position integer, destination integer, source integer);
create index by_destination on edges (type, destination, position);
create table edge_types (name text primary key);
"""
ROWS = """
select destination, position, source from edges
where type = ? and destination in (select value from json_each(?)) order by position
"""


class SqliteGraph(khop.GraphStoreBase):
    """Edges in a database. khop's kernels draw from the rows that a hop reads, so the bits are khop's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._threads = threading.local()  # a connection of SQLite belongs to one thread
        self.counts: dict[NodeType, int] = dict(self._read("select name, count from node_types"))
        names = [json.loads(name) for (name,) in self._read("select name from edge_types")]
        self.schema = khop.Schema(tuple(self.counts), tuple(map(tuple, names)))

    def num_nodes(self, node_type: NodeType) -> int:
        if node_type not in self.counts:
            raise ValueError(f"no node type {node_type!r}; there are {list(self.counts)}")
        return self.counts[node_type]

    def num_edges(self, edge_type: EdgeType) -> int:
        ((number,),) = self._read("select count(*) from edges where type = ?", json.dumps(edge_type))
        return int(number)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        rows = self._read("select id from original_ids where type = ? order by node", node_type)
        return int64([id_ for (id_,) in rows]) if rows else None

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        check_types(frontier, hop, self.schema)
        asked = asked_types(frontier, hop)
        for edge_type in asked:
            self._check(edge_type, frontier[edge_type[2]].nodes)
        ids, rows = {}, {}  # the distinct nodes of a frontier are the rows of a small graph
        for node_type in {edge_type[2] for edge_type in asked}:
            nodes, places = frontier[node_type].nodes.unique(return_inverse=True)
            ids[node_type], rows[node_type] = nodes, replace(frontier[node_type], nodes=places)
        read = {t: self._rows(t, ids[t[2]]) for t in asked}
        originals = {t: self._originals(t, nodes) for t, nodes in ids.items()}  # they key the draws
        arrays = RuleArrays({t: csc for t, (csc, _) in read.items()}, {}, originals)
        drawn = EdgeDraws(self.schema, arrays).sample_hop(rows, hop, key)
        return {
            t: found if found.edges is None else replace(found, edges=read[t][1][found.edges])
            for t, found in drawn.items()
        }

    def _rows(self, edge_type: EdgeType, nodes: Tensor) -> tuple[Csc, Tensor]:
        """The edges into some nodes, and their positions among all edges."""
        edges = int64(self._read(ROWS, json.dumps(edge_type), json.dumps(nodes.tolist()))).view(-1, 3)
        degrees = torch.bincount(torch.searchsorted(nodes, edges[:, 0].contiguous()), minlength=nodes.numel())
        indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        return Csc(indptr, edges[:, 2].contiguous(), self.counts[edge_type[0]]), edges[:, 1].contiguous()

    def _originals(self, node_type: NodeType, nodes: Tensor) -> Tensor:
        ids = self.original_ids(node_type)
        return nodes if ids is None else ids[nodes]

    def _check(self, edge_type: EdgeType, nodes: Tensor) -> None:
        outside = nodes[(nodes < 0) | (nodes >= self.counts[edge_type[2]])]
        if outside.numel():
            raise ValueError(
                f"edge type {edge_type}: node {int(outside[0])}: must be in [0, {self.counts[edge_type[2]]})"
            )

    def _read(self, query: str, *values: object) -> list[tuple[object, ...]]:
        if not hasattr(self._threads, "connection"):
            self._threads.connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        return self._threads.connection.execute(query, values).fetchall()


def written(path: Path, plain: PlainGraph) -> Path:
    """The file of a graph; edges of a type are in CSC order."""
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(TABLES)
        connection.executemany("insert into node_types values (?, ?)", plain.counts.items())
        for node_type, ids in plain.original_ids.items():
            rows = [(node_type, node, id_) for node, id_ in enumerate(ids)]
            connection.executemany("insert into original_ids values (?, ?, ?)", rows)
        for edge_type in plain.edges:
            name = json.dumps(edge_type)
            connection.execute("insert into edge_types values (?)", (name,))
            ends = [(name, at, into, of) for at, (of, into) in enumerate(plain.pairs(edge_type))]
            connection.executemany("insert into edges values (?, ?, ?, ?)", ends)
    connection.close()
    return path


@pytest.fixture
def make(tmp_path: Path) -> Make:
    numbers = count()
    return lambda plain: SqliteGraph(written(tmp_path / f"{next(numbers)}.sqlite", plain))


@pytest.mark.core(6)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps_the_promises_of_a_graph_store(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


@pytest.mark.long
def test_training_draws_from_the_database(tmp_path: Path, ranks: StartedRanks) -> None:
    """The losses are those of khop's own store, bit for bit, and those of two ranks equal to 1e-12."""
    small = one_type(torch.float64)
    pairs = {t: list(zip(*(end.tolist() for end in ends), strict=True)) for t, ends in small.edges.items()}
    written(tmp_path / "graph.sqlite", PlainGraph(dict(small.store.counts), pairs))
    train_on_database(0, torch.device("cpu"), str(tmp_path), "one")
    train(khop.Graph(small.store, small.features), tmp_path / "memory")
    assert losses_of(tmp_path / "one") == losses_of(tmp_path / "memory")
    ranks.launch(train_on_database, 2, (str(tmp_path), "two"))
    assert losses_of(tmp_path / "two") == pytest.approx(losses_of(tmp_path / "one"), rel=1e-12)


@covered
def train_on_database(rank: int, device: torch.device, home: str, name: str) -> None:
    """Every rank opens the same file."""
    small, store = one_type(torch.float64), SqliteGraph(Path(home) / "graph.sqlite")
    store.schema = replace(store.schema, columns=small.store.schema.columns)
    train(khop.Graph(store, small.features), Path(home) / name)
