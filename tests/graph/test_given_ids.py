"""Ids of nodes as users give them in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import khop
from khop.graph.given_ids import given_ids, kind_of
from khop.kernels.id_table import StringKeys


@pytest.mark.parametrize(
    ("ids", "kind", "plain"),
    [
        (["b", "a"], "string", ["b", "a"]),
        (np.array(["b", "ä"]), "string", ["b", "ä"]),
        (np.array(["b", "a"], object), "string", ["b", "a"]),
        (["a", "a\0", "\0"], "string", ["a", "a\0", "\0"]),
        (np.array([3, 1], np.uint8), "int64", [3, 1]),
        (torch.tensor([3, 1], dtype=torch.int32), "int64", [3, 1]),
        (StringKeys.of(["b"]), "string", ["b"]),
    ],
)
def test_text_and_integers_are_ids(ids: Any, kind: str, plain: list[Any]) -> None:  # noqa: ANN401
    keys = given_ids(ids, "node type 'user'")
    assert kind_of(keys) == kind
    assert (keys.strings() if isinstance(keys, StringKeys) else keys.tolist()) == plain


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"ids": ["a", "b", "a"]}, r"ids\[2\] is 'a', and so is ids\[0\]: an id names one node; remove one"),
        ({"ids": np.array([5, 5])}, r"ids\[1\] is 5, and so is ids\[0\]"),
        ({"ids": ["a"], "count": 2}, "has 2 nodes and 1 ids; give one id per node"),
        ({"ids": np.array([0.5])}, r"ids\[0\] is 0.5: ids are text or integers of 64 bits"),
        ({"ids": np.array([1], np.uint64)}, r"ids\[0\] is 1: ids are text or integers"),
        ({"ids": np.zeros((2, 2), np.int64)}, r"ids have shape \(2, 2\): give one per node"),
        ({"ids": ["a", None]}, r"ids\[1\] is None"),
    ],
)
def test_what_is_no_id_is_refused_before_anything_is_written(
    table: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"node type 'user'.*{message}"):
        khop.write_graph(tmp_path / "g", {"user": khop.NodeTable(**table)}, {})
    assert list(tmp_path.iterdir()) == []
