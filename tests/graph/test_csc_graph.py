"""The graph store over CSC arrays, in memory and mapped from a folder."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contracts.graph_rules import PROMISES as RULE_PROMISES
from contracts.graph_store import BUYS, KEY, LIKE, PROMISES, SHOP, Make, Plain, int64, same, shop_frontier
from khop.draw import Frontier, Hop
from khop.graph.build import EdgeTable, NodeTable, write_graph
from khop.graph.csc_graph import CscGraph, csc_graph_from_edges
from khop.graph.folder import open_folder
from khop.kernels.csc import Csc
from khop.schema import Schema


def ends(pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    sources, destinations = int64([s for s, _ in pairs]), int64([d for _, d in pairs])
    return sources, destinations


def in_memory(plain: Plain) -> CscGraph:
    graph = csc_graph_from_edges(
        plain.counts,
        {name: ends(pairs) for name, pairs in plain.edges.items()},
        columns={type_: plain.tensors(type_) for type_ in plain.columns},
        sort_by=plain.sort_by,
    )
    originals = {node_type: int64(ids) for node_type, ids in plain.original_ids.items()}
    return CscGraph(graph.schema, graph.counts, graph.edges, originals, graph.columns)


def written(path: Path, plain: Plain) -> Path:
    originals = plain.original_ids
    nodes = {
        name: NodeTable(
            number,
            plain.tensors(name) | ({"original_id": int64(originals[name])} if name in originals else {}),
        )
        for name, number in plain.counts.items()
    }
    edges = {
        name: EdgeTable(*ends(pairs), columns=plain.tensors(name)) for name, pairs in plain.edges.items()
    }
    return write_graph(path, nodes, edges, sort_by=plain.sort_by)


@pytest.fixture(params=["in memory", "mapped", "unpickled"])
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Make:
    numbers, home = count(), tmp_path_factory.mktemp("graphs")

    def mapped(plain: Plain) -> CscGraph:
        return CscGraph.open(written(home / str(next(numbers)), plain))

    def unpickled(plain: Plain) -> CscGraph:
        graph = in_memory(plain)
        return pickle.loads(pickle.dumps(graph))

    return {"in memory": in_memory, "mapped": mapped, "unpickled": unpickled}[request.param]


@pytest.mark.parametrize("promise", [*PROMISES, *RULE_PROMISES], ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


def test_renumbering_changes_no_draw(make: Make) -> None:
    """The same graph with items and users in another order draws the same nodes, by their original ids."""
    new_of = {"user": [3, 0, 5, 1, 4, 2], "item": [8, 1, 7, 0, 2, 6, 3, 5, 4]}  # original id -> new id
    old_of = {name: [new.index(n) for n in range(len(new))] for name, new in new_of.items()}
    renumbered = Plain(
        SHOP.counts,
        {
            name: [(new_of[name[0]][s], new_of[name[2]][d]) for s, d in pairs]
            for name, pairs in SHOP.edges.items()
        },
        old_of,
    )
    items, hop = [5, 1, 1, 8, 0], Hop(3, {LIKE: 4, BUYS: 2})
    old = make(SHOP).sample_hop({"item": Frontier(int64(items))}, hop, KEY)
    new = make(renumbered).sample_hop({"item": Frontier(int64([new_of["item"][n] for n in items]))}, hop, KEY)
    for edge_type, drawn in new.items():
        assert [old_of[edge_type[0]][n] for n in drawn.nodes] == old[edge_type].nodes.tolist()


def test_a_mapped_graph_pickles_as_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "g", SHOP)
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(CscGraph.open("g"))
    assert len(pickled) < 1000
    code = f"import pickle; print(pickle.loads({pickled!r}).num_nodes('item'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=os.sep, capture_output=True, text=True, check=True, env=_with_khop()
    )
    assert done.stdout == "9\n"


def test_damaged_offsets_are_an_error_and_no_crash(tmp_path: Path) -> None:
    path = written(tmp_path / "g", SHOP)
    with (path / "edges/item__like__item/indptr.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")  # the highest byte of the last offset
    graph = CscGraph.open(path)
    with pytest.raises(ValueError, match=r"like.*row 8.*damaged"):
        graph.sample_hop({"item": Frontier(int64([0, 8]))}, Hop(1, {LIKE: 2}), KEY)


def test_a_folder_that_is_open_need_not_be_opened_again(tmp_path: Path) -> None:
    folder = open_folder(written(tmp_path / "g", SHOP))
    graph, hop = CscGraph.open(folder), Hop(1, {LIKE: 2})
    assert graph.edges[LIKE].indices.data_ptr() == folder.csc(LIKE).indices.data_ptr()
    assert same(
        graph.sample_hop(shop_frontier(1), hop, KEY), in_memory(SHOP).sample_hop(shop_frontier(1), hop, KEY)
    )


def test_arrays_that_do_not_fit_the_schema_are_refused() -> None:
    schema, csc = Schema(("item",), (LIKE,)), Csc(int64([0, 1]), int64([0]))
    with pytest.raises(ValueError, match=r"like.*has no edges"):
        CscGraph(schema, {"item": 1}, {})
    with pytest.raises(ValueError, match=r"like.*1 rows for 2 'item' nodes"):
        CscGraph(schema, {"item": 2}, {LIKE: csc})


def test_an_edge_list_in_memory_is_checked() -> None:
    with pytest.raises(ValueError, match="3"):
        csc_graph_from_edges({"item": 3}, {LIKE: (int64([0, 3]), int64([1, 1]))})
    assert csc_graph_from_edges({"item": 2}, {}).edges == {}
    empty = csc_graph_from_edges({"item": 0}, {LIKE: (int64([]), int64([]))})
    assert empty.edges[LIKE].indptr.tolist() == [0]
    assert empty.edges[LIKE].indices.dtype == torch.int32


def _with_khop() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
