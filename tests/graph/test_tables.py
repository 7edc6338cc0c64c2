"""Tables of nodes and edges: counts come from what is given."""

from __future__ import annotations

import numpy as np
import pytest

from khop.graph.tables import EdgeTable, GivenEdges, GivenNodes, NodeTable, id_dtype


def test_the_count_of_nodes_comes_from_ids_or_a_column() -> None:
    assert GivenNodes.of("user", NodeTable(ids=["a", "b"])).entry.count == 2
    assert GivenNodes.of("user", NodeTable(columns={"x": np.zeros(3)})).entry.count == 3
    with pytest.raises(ValueError, match="neither count nor column"):
        GivenNodes.of("user", NodeTable())


def test_ends_are_both_of_one_width() -> None:
    table = EdgeTable(np.array([0], np.int32), np.array([0], np.int64))
    given = GivenEdges.of(("a", "to", "a"), table, {"a": 1})
    assert [str(end.dtype) for end in given.ends()] == ["torch.int64", "torch.int64"]


@pytest.mark.parametrize(("count", "dtype"), [(2**31, "int32"), (2**31 + 1, "int64")])
def test_ids_are_as_narrow_as_they_fit(count: int, dtype: str) -> None:
    assert id_dtype(count) == dtype
