"""Both kinds of data objects are storages by type."""

from __future__ import annotations

import torch
from torch_geometric.data import Data, HeteroData

from khop.pyg.outputs import EDGE, NODE, TypedData, owner_of, storages

ENDS = torch.tensor([[0, 1], [1, 2]])


def test_data_without_types_has_one_type_of_each_kind() -> None:
    data = Data(x=torch.zeros(3, 2), edge_index=ENDS)
    typed = TypedData.of(data)
    assert typed is not None
    assert not typed.is_typed
    assert typed.nodes[NODE].num_nodes == 3
    assert torch.equal(typed.edges[EDGE].edge_index, ENDS)
    ((owner, storage),) = storages(data)
    assert owner is None
    assert owner_of(data, owner).x is storage["x"]


def test_data_with_types_keeps_them() -> None:
    data = HeteroData({"user": {"x": torch.zeros(3, 2)}, ("user", "knows", "user"): {"edge_index": ENDS}})
    typed = TypedData.of(data)
    assert typed is not None
    assert typed.is_typed
    assert list(typed.nodes) == ["user"]
    assert list(typed.edges) == [("user", "knows", "user")]
    assert {owner: owner_of(data, owner) for owner, _ in storages(data)} == typed.nodes | typed.edges


def test_other_objects_have_no_storages() -> None:
    assert TypedData.of((object(), object())) is None
