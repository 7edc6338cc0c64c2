"""Arrays for rules are those of their columns, made once, and refused where rows are not sorted.

Neighbors that a rule's reference gives are checked before anything uses them.

Rows follow a column of times when the writer is told so, in the folder and for the one who reads it.

Arrays on a device are those of the host, copied on first use and once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop import EdgeTable, NodeTable, Temporal, Uniform, Weighted, open_folder, write_graph
from khop.draw import DrawKey, Frontier, Neighbors, UniformNegatives
from khop.graph.manifest import fingerprint
from khop.graph.needs import (
    ArrayStore,
    EdgeColumn,
    NegativeNeed,
    RisingTimes,
    RuleArrays,
    SourceIds,
    Sources,
    StoredArrays,
    StoredTimes,
    WeightSums,
    negative_needs,
    rule_needs,
)
from khop.graph.negatives import partner_ranks, related_ranks
from khop.graph.rule import Hop, check_rule
from khop.graph.rule_arrays import edge_times, stored_csc
from khop.graph.store import csc_graph_from_edges
from khop.graph.verify import verify_folder
from khop.kernels.csc import Csc, build_csc
from khop.kernels.draw_request import DrawRequest
from khop.kernels.edge_times import outline
from khop.schema import ColumnSpec, Schema

TO = ("user", "buys", "item")
TIMES = st.lists(st.integers(-50, 50), min_size=6, max_size=6)
CSC = Csc(torch.tensor([0, 2, 2, 6]), torch.tensor([0, 1, 1, 0, 2, 2]), 3)


def arrays(own: list[int] | None, of_sources: list[int] | None) -> RuleArrays:
    columns: dict[object, dict[str, torch.Tensor]] = {TO: {}, "user": {}}
    if own is not None:
        columns[TO]["time"] = torch.tensor(own)
    if of_sources is not None:
        columns["user"]["time"] = torch.tensor(of_sources)
    return RuleArrays({TO: CSC}, columns)  # type: ignore[arg-type]


@given(own=st.none() | TIMES, of_sources=st.none() | st.lists(st.integers(-50, 50), min_size=3, max_size=3))
def test_times_are_the_later_ones_where_rows_ascend(
    own: list[int] | None, of_sources: list[int] | None
) -> None:
    made = arrays(own, of_sources)
    if own is None and of_sources is None:
        assert made[RisingTimes(TO, "time")] is None
        return
    later = [
        max(t for t in (own and own[edge], of_sources and of_sources[source]) if isinstance(t, int))
        for edge, source in enumerate(CSC.indices.tolist())
    ]
    known = edge_times(CSC, TO, made.columns, "time")
    assert known is not None
    assert known.tolist() == later
    if later[:2] == sorted(later[:2]) and later[2:] == sorted(later[2:]):
        times = made[RisingTimes(TO, "time")]
        assert times is not None
        assert times.values.tolist() == later
        assert torch.equal(times.outline, outline(CSC, times.values))
    else:
        with pytest.raises(ValueError, match="rows are not sorted by 'time': the edge at position"):
            made[RisingTimes(TO, "time")]


def test_source_ids_are_original_ids_and_are_made_once() -> None:
    originals = torch.tensor([70, 71, 72])
    made = RuleArrays({TO: CSC}, {}, {"user": originals})
    assert made[SourceIds(TO)] is not None
    assert torch.equal(made[SourceIds(TO)], originals[CSC.indices])
    assert made[SourceIds(TO)] is made[SourceIds(TO)]
    assert made[WeightSums(TO, "price")] is None
    assert made[EdgeColumn(TO, "price")] is None


def test_a_bad_weight_is_named_with_its_column() -> None:
    weights = torch.tensor([1.0, 2.0, 1.0, float("nan"), 0.0, 1.0])
    made = RuleArrays({TO: CSC}, {TO: {"price": weights}})
    with pytest.raises(ValueError, match="column 'price': weight nan at position 3"):
        made[WeightSums(TO, "price")]


def test_times_of_sources_in_other_parts_need_sorted_rows() -> None:
    elsewhere = Sources({"user": torch.arange(3)}, {"user": ("time",)})
    made = RuleArrays({TO: CSC}, {TO: {"time": torch.arange(6)}}, sources=elsewhere)
    with pytest.raises(ValueError, match="rows do not follow 'time', a column of its sources"):
        made[RisingTimes(TO, "time")]
    kept = torch.tensor([3, 5, 1, 1, 2, 9])
    sorted_rows = RuleArrays({TO: CSC}, {}, sorted_by={TO: "time"}, kept_times={TO: kept}, sources=elsewhere)
    times = sorted_rows[RisingTimes(TO, "time")]
    assert times is not None
    assert torch.equal(times.values, kept)


EDGE_DRAWS_TO = ("node", "to", "node")
TWO, EDGES = torch.tensor([2]), torch.arange(4)
NODES = torch.tensor([3, 2, 1, 4], dtype=torch.int32)


@dataclass(frozen=True)
class Given(khop.RuleBase):
    """A rule with a wrong result."""

    how: Callable[[DrawRequest], Neighbors]

    def reference(self, request: DrawRequest) -> Neighbors:
        return self.how(request)


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (lambda request: request.neighbors(torch.tensor([4]), EDGES), r"gave a row 4 edges, where most\(2\)"),
        (lambda request: request.neighbors(TWO, EDGES), "offsets do not split 4 edges into 1 rows"),
        (lambda request: request.neighbors(TWO, EDGES[2:] + 1), "returned an edge of another row; draw from"),
        (lambda request: request.neighbors(TWO, EDGES[:2], torch.ones(2)), "gave weights, where has_weights"),
        (lambda request: request.neighbors(TWO, EDGES[:2], TWO), "weights are torch.int64"),
        (lambda request: Neighbors(torch.tensor([0, 2]), NODES[:2]), "returned no edges; make Neighbors by"),
        (lambda request: Neighbors(torch.tensor([0, 2]), NODES[:2], EDGES[2:]), "nodes are not the sources"),
    ],
)
def test_a_wrong_result_of_a_rule_is_named(how: Callable[[DrawRequest], Neighbors], problem: str) -> None:
    ends = torch.tensor([*NODES.tolist(), 0]), torch.tensor([0, 0, 0, 0, 1])
    graph = csc_graph_from_edges({"node": 5}, {EDGE_DRAWS_TO: ends})
    with pytest.raises(ValueError, match=f"edge type .*Given.*{problem}"):
        graph.sample_hop(
            {"node": Frontier(torch.tensor([0]))}, Hop(1, {EDGE_DRAWS_TO: 2}, Given(how)), DrawKey(0)
        )


KNOWS, SENDS = ("person", "knows", "person"), ("mail", "sent-to", "person")
SINCE = torch.tensor([5, 9, 3, 7, 3])
ROW_ORDER_EDGES = {
    KNOWS: EdgeTable(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 0, 1, 0, 1]), {"time": SINCE}),
    SENDS: EdgeTable(torch.tensor([2, 1, 0]), torch.tensor([3, 3, 3])),
}
ROW_ORDER_NODES = {
    "person": NodeTable(5),
    "mail": NodeTable(columns={"time": np.array([1, 3, 2], np.int32)}, splits={"train": np.array([1])}),
}


def test_edges_follow_their_own_times_or_those_of_their_sources(tmp_path: Path) -> None:
    told: list[str] = []
    path = write_graph(
        tmp_path / "g",
        ROW_ORDER_NODES,
        ROW_ORDER_EDGES,
        sort_by="time",
        notice=lambda what, done, total: told.append(what),
    )
    folder = open_folder(path)
    assert folder.csc(KNOWS).indices.tolist() == [3, 1, 2, 4, 0]
    assert folder.columns()[KNOWS]["time"].tolist() == [7, 9, 3, 3, 5]
    assert folder.edge_id(KNOWS).tolist() == [3, 1, 2, 4, 0]
    assert folder.csc(SENDS).indices.tolist() == [0, 2, 1]
    assert [edge.row_order for edge in folder.manifest.edges] == ["time", "time"]
    assert [what for what in told if "were not in the order" in what] == [
        "rows of person__knows__person were not in the order of 'time': sorted",
        "rows of mail__sent-to__person were not in the order of 'time': sorted",
    ]
    assert verify_folder(path) == []


def test_rows_that_are_in_order_stay_and_nothing_is_said(tmp_path: Path) -> None:
    told: list[str] = []
    in_order = {KNOWS: replace(ROW_ORDER_EDGES[KNOWS], columns={"time": torch.arange(5)})}
    path = write_graph(
        tmp_path / "g", ROW_ORDER_NODES, in_order, sort_by="time", notice=lambda what, *_: told.append(what)
    )
    assert open_folder(path).csc(KNOWS).indices.tolist() == [1, 3, 0, 2, 4]
    assert not any("were not in the order" in what for what in told)


def test_types_without_times_keep_their_order(tmp_path: Path) -> None:
    nodes = ROW_ORDER_NODES | {"mail": NodeTable(3)}
    folder = open_folder(write_graph(tmp_path / "g", nodes, ROW_ORDER_EDGES, sort_by="time"))
    assert folder.csc(SENDS).indices.tolist() == [2, 1, 0]
    assert folder.manifest.edge(SENDS).row_order == "input"


@pytest.mark.parametrize(
    ("nodes", "edges", "by", "message"),
    [
        (
            ROW_ORDER_NODES,
            ROW_ORDER_EDGES,
            "when",
            r"sort_by 'when': no such column of times; there are .*'mail': \['time'\]",
        ),
        (ROW_ORDER_NODES, ROW_ORDER_EDGES, "input", "sort_by 'input': no such column"),
        (
            ROW_ORDER_NODES,
            {KNOWS: replace(ROW_ORDER_EDGES[KNOWS], columns={"time": SINCE.float()})},
            "time",
            r"'time' is float32 of shape \(5,\): times are whole numbers",
        ),
    ],
    ids=["unknown", "the word for none", "no whole numbers"],
)
def test_a_column_that_is_no_time_is_named(
    tmp_path: Path,
    nodes: dict[str, NodeTable],
    edges: dict[tuple[str, str, str], EdgeTable],
    by: str,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        write_graph(tmp_path / "g", nodes, edges, sort_by=by)
    assert list(tmp_path.iterdir()) == []


def test_verify_finds_rows_that_do_not_follow_their_column(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "g", ROW_ORDER_NODES, {KNOWS: ROW_ORDER_EDGES[KNOWS]})
    lying = (path / "graph.json").read_text().replace('"row_order": "input"', '"row_order": "time"')
    (path / "graph.json").write_text(_with_fingerprint(lying))
    (finding,) = verify_folder(path)
    assert finding.file == "edges/person__knows__person/indices.npy"
    assert "row_order is 'time', but the edge at position 1 is earlier" in finding.problem


def test_a_row_order_that_is_no_column_does_not_open(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "g", ROW_ORDER_NODES, {KNOWS: ROW_ORDER_EDGES[KNOWS]})
    lying = (path / "graph.json").read_text().replace('"row_order": "input"', '"row_order": "when"')
    (path / "graph.json").write_text(_with_fingerprint(lying))
    with pytest.raises(ValueError, match="row_order 'when': no such column"):
        open_folder(path)


def _with_fingerprint(text: str) -> str:
    document = json.loads(text)
    del document["fingerprint"]
    return json.dumps({**document, "fingerprint": fingerprint(document)})


STORED_ARRAYS_TO = ("node", "to", "node")
COLUMNS = {
    STORED_ARRAYS_TO: {"time": torch.tensor([1, 5, 2, 9]), "weight": torch.tensor([1.0, 3.0, 1.0, 1.0])}
}
ENDS = (torch.tensor([0, 1, 2, 0]), torch.tensor([1, 1, 2, 2]))
GRAPH = csc_graph_from_edges({"node": 3}, {STORED_ARRAYS_TO: ENDS}, columns=COLUMNS, sort_by="time")


class Copies:
    """A memory of its own: it clones each tensor, and counts."""

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        self.made.append(tensor.clone())
        return self.made[-1]

    @property
    def store(self) -> ArrayStore:
        return ArrayStore(self.copy, self.copy)


def test_each_array_is_copied_once_also_by_threads() -> None:
    copies, made = Copies(), GRAPH.draws.arrays
    stored = StoredArrays(
        made, {STORED_ARRAYS_TO: stored_csc(GRAPH.csc(STORED_ARRAYS_TO), copies.store)}, {}, copies.store
    )
    assert len(copies.made) == 2
    assert stored.on_host[WeightSums(STORED_ARRAYS_TO, "weight")] is not None
    assert len(copies.made) == 2  # prepared on the host
    with ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(lambda _: stored[WeightSums(STORED_ARRAYS_TO, "weight")], range(8)))
    assert len(copies.made) == 3  # not the outline, which no kernel reads
    own = made[WeightSums(STORED_ARRAYS_TO, "weight")]
    assert own is not None
    for each in sums:
        assert each is sums[0]
        assert each is not None
        assert torch.equal(each.values, own.values)
        assert torch.equal(each.outline, own.outline)
        assert each.values.data_ptr() != own.values.data_ptr()


def test_every_kind_of_array_is_that_of_the_host() -> None:
    stored = StoredArrays(
        GRAPH.draws.arrays, {STORED_ARRAYS_TO: GRAPH.csc(STORED_ARRAYS_TO)}, {}, Copies().store
    )
    times, own = stored[RisingTimes(STORED_ARRAYS_TO, "time")], stored[StoredTimes(STORED_ARRAYS_TO, "time")]
    assert times is not None
    assert times.values.tolist() == [1, 5, 2, 9]
    assert own is not None
    assert own.edges is not None
    assert own.edges.tolist() == [1, 5, 2, 9]
    assert stored[SourceIds(STORED_ARRAYS_TO)].tolist() == [0, 1, 2, 0]
    column = stored[EdgeColumn(STORED_ARRAYS_TO, "weight")]
    assert column is not None
    assert torch.equal(column, COLUMNS[STORED_ARRAYS_TO]["weight"])
    assert (
        stored[EdgeColumn(STORED_ARRAYS_TO, "price")] is stored[WeightSums(STORED_ARRAYS_TO, "price")] is None
    )


def test_damaged_edges_are_not_copied() -> None:
    damaged = Csc(torch.tensor([0, 3, 2]), torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match="indptr"):
        stored_csc(damaged, Copies().store)


# Rules are values that refuse what they could not keep.


BUYS, LIKES = ("user", "buys", "item"), ("item", "likes", "item")
SCHEMA = Schema(
    ("user", "item"),
    (BUYS, LIKES),
    columns={
        "user": {"born": ColumnSpec("int64", ())},
        "item": {"x": ColumnSpec("float32", (8,)), "y": ColumnSpec("int64", ())},
        BUYS: {
            "price": ColumnSpec("float32", ()),
            "at": ColumnSpec("int32", ()),
            "why": ColumnSpec("uint8", (3,)),
        },
    },
)


@pytest.mark.parametrize(
    "rule",
    [
        Uniform(True),
        Weighted("price"),
        Weighted("at"),
        Temporal("at", window=(3, -3)),
        Temporal("born", inner=Weighted("price", replacement=True)),
    ],
    ids=str,
)
def test_a_rule_that_the_graph_has_columns_for_passes(rule: Uniform | Weighted | Temporal) -> None:
    check_rule(rule, SCHEMA)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Weighted("cost"), r"no column 'cost'; there are at of user buys item, price of user buys item, why"),
        (Weighted("born"), "no column 'born'"),
        (Weighted("why"), r"'why' of .*'buys'.* is uint8 of shape \(3,\): one number per row"),
        (Temporal("when"), r"^Temporal\(column='when'\): no column 'when'; there are .*, born of user"),
        (Temporal("price"), "'price' of .* is float32 of shape .*: one integer per row"),
        (Temporal("at", inner=Weighted("cost")), "no column 'cost'"),
    ],
    ids=str,
)
def test_a_column_that_is_not_there_or_does_not_do_is_named(rule: Weighted | Temporal, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_rule(rule, SCHEMA)


# Needs of rules and of negatives, told apart.


BUYS_NEEDS = ("user", "buys", "item")


def test_each_need_goes_to_rules_or_to_negatives_in_order() -> None:
    weights = WeightSums(BUYS_NEEDS, "price")
    times = RisingTimes(BUYS_NEEDS, "time")
    negatives = NegativeNeed(BUYS_NEEDS, UniformNegatives(2))
    mixed = [weights, negatives, times]
    assert rule_needs(mixed) == [weights, times]
    assert negative_needs(mixed) == [negatives]


# Partners of sources equal brute force, for all edges and by relation.


NODES_PARTNER_RANKS = 6
EDGES_PARTNER_RANKS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 5)), max_size=25
)
ORDER = torch.tensor([3, 5, 0, 1, 4, 2])  # the node of each rank


def rows_of(ranks: Csc) -> list[list[int]]:
    return [ranks.indices[a:b].tolist() for a, b in zip(ranks.indptr[:-1], ranks.indptr[1:], strict=True)]


@given(edges=EDGES_PARTNER_RANKS, same=st.booleans())
def test_rows_are_the_partners_of_each_source_in_order(edges: list[tuple[int, int, int]], same: bool) -> None:
    given = torch.tensor(edges, dtype=torch.int64).view(-1, 3)
    csc, order = build_csc(
        given[:, 0].contiguous(), given[:, 2].contiguous(), NODES_PARTNER_RANKS, NODES_PARTNER_RANKS
    )
    rank = {node: place for place, node in enumerate(ORDER.tolist())}
    found = rows_of(partner_ranks(csc, NODES_PARTNER_RANKS, ORDER, same))
    for source in range(NODES_PARTNER_RANKS):
        partners = {d for s, _, d in edges if s == source} | ({source} if same else set())
        assert found[source] == sorted(rank[d] for d in partners)
    related = related_ranks(
        csc, given[order.long(), 1], (NODES_PARTNER_RANKS, NODES_PARTNER_RANKS), ORDER, same
    )
    asked = torch.cartesian_prod(torch.arange(NODES_PARTNER_RANKS), torch.arange(5))
    rows = related.rows(asked[:, 0].contiguous(), asked[:, 1].contiguous())
    by_pair = rows_of(related.ranks)
    for (source, relation), row in zip(asked.tolist(), rows.tolist(), strict=True):
        partners = {d for s, r, d in edges if (s, r) == (source, relation)} | ({source} if same else set())
        assert by_pair[row] == sorted(rank[d] for d in partners)
