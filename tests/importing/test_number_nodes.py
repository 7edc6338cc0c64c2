from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.importing.shop import spec

from khop import import_tables, open_graph, open_ids

EDGES = "edges.user buys item"


def test_types_without_rows_have_the_ids_that_edges_name(tmp_path: Path) -> None:
    import_tables(spec(**{"nodes.user": {}}), tmp_path / "out")
    graph = open_graph(tmp_path / "out")
    assert graph.num_nodes("user") == 3
    csc = graph.folder.csc(("user", "buys", "item"))  # type: ignore[union-attr]
    pairs = list(zip(csc.indices.tolist(), csc.destinations().tolist(), strict=True))
    assert pairs == [(1, 0), (0, 0), (0, 1), (2, 1), (1, 2), (0, 2), (2, 3)]
    assert open_ids(tmp_path / "out", "user").ids([0, 1, 2]) == ["u1", "u2", "u3"]


def test_new_sources_of_an_edge_type_come_before_its_new_destinations(tmp_path: Path) -> None:
    follows = pa.table({"from": ["u9", "u8", "u9"], "to": ["u7", "u9", "u8"]})
    edges = {"user follows user": {"rows": follows, "source": "from", "destination": "to", "orphans": "add"}}
    done = import_tables(spec(edges=edges, splits=None), tmp_path / "out")
    assert open_ids(tmp_path / "out", "user").ids([3, 4, 5]) == ["u9", "u8", "u7"]
    assert done.notes[0] == "user follows user: 3 nodes of user added by edges"
