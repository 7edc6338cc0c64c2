"""Small data objects and ways to load them with every neighbor, so that nothing is drawn.

Run by itself in an environment with torch_geometric and torch-sparse, this file writes what
torch_geometric's own loaders make of them: `python tests/pyg/pyg_cases.py` -> tests/pyg/recorded.json.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

RECORDED = Path(__file__).parent / "recorded.json"


def some(count: int, limit: int, step: int) -> Tensor:
    """Numbers below `limit` that look unordered and are the same everywhere."""
    return (torch.arange(count) * step + torch.arange(count) ** 2 * 7 + step // 3) % limit


def plain() -> Data:
    """Every kind of attribute: of nodes, of edges, of the graph; isolated nodes, multi-edges."""
    edge_index = torch.stack([some(60, 23, 11), some(60, 19, 5)])
    return Data(
        x=some(25 * 3, 100, 13).view(25, 3).float(),
        y=some(25, 4, 3),
        edge_index=edge_index,
        edge_attr=some(60 * 2, 100, 17).view(60, 2).float(),
        edge_weight=torch.arange(60),
        train_mask=some(25, 3, 5) == 0,
        name="plain",
        threshold=torch.tensor(0.5),
    )


def typed() -> HeteroData:
    """Three node types, one of them without columns, four edge types, one of them without edges."""
    data = HeteroData()
    data["user"].x = some(9 * 2, 50, 7).view(9, 2).float()
    data["item"].x = some(12, 50, 3).view(12, 1).float()
    data["item"].y = some(12, 5, 7)
    data["tag"].num_nodes = 4
    data["user", "buys", "item"].edge_index = torch.stack([some(20, 9, 5), some(20, 12, 11)])
    data["user", "buys", "item"].edge_attr = torch.arange(20)
    data["item", "rev_buys", "user"].edge_index = torch.stack([some(20, 12, 11), some(20, 9, 5)])
    data["tag", "on", "item"].edge_index = torch.stack([some(10, 4, 3), some(10, 12, 5)])
    data["user", "knows", "user"].edge_index = torch.stack([some(8, 9, 4), some(8, 9, 7)])
    data["user", "likes", "tag"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    return data


@dataclass(frozen=True)
class Case:
    """A loader with every neighbor, and whose batches to look at."""

    data: Callable[[], Data | HeteroData]
    arguments: Mapping[str, Any]
    loader: str = "NeighborLoader"


NODES = torch.tensor([3, 8, 1, 20, 22])
TWICE = torch.tensor([3, 8, 3, 1, 8, 8])
PAIRS = torch.tensor([[3, 8, 3, 22, 1], [8, 3, 5, 0, 1]])
BOUGHT = torch.tensor([[3, 8, 3, 0], [8, 3, 5, 11]])
BUYS = ("user", "buys", "item")

CASES = {
    "two hops": Case(plain, {"num_neighbors": [-1, -1], "input_nodes": NODES, "batch_size": 3}),
    "a mask": Case(plain, {"num_neighbors": [-1], "input_nodes": plain().train_mask, "batch_size": 4}),
    "all nodes": Case(plain, {"num_neighbors": [-1], "batch_size": 10}),
    "no hops": Case(plain, {"num_neighbors": [], "input_nodes": NODES, "batch_size": 3}),
    "a hop of none": Case(plain, {"num_neighbors": [0, -1], "input_nodes": NODES, "batch_size": 3}),
    "twice": Case(plain, {"num_neighbors": [-1, -1], "input_nodes": TWICE, "batch_size": 6}),
    "drop last": Case(
        plain, {"num_neighbors": [-1], "input_nodes": NODES, "batch_size": 2, "drop_last": True}
    ),
    "bidirectional": Case(
        plain,
        {"num_neighbors": [-1, -1], "input_nodes": NODES, "batch_size": 2, "subgraph_type": "bidirectional"},
    ),
    "induced": Case(
        plain,
        {"num_neighbors": [-1, -1], "input_nodes": NODES, "batch_size": 2, "subgraph_type": "induced"},
    ),
    "typed": Case(
        typed,
        {"num_neighbors": [-1, -1], "input_nodes": ("item", torch.tensor([2, 7, 7, 11])), "batch_size": 3},
    ),
    "typed, all of a type": Case(typed, {"num_neighbors": [-1, -1], "input_nodes": "user", "batch_size": 4}),
    "typed, by edge type": Case(
        typed,
        {
            "num_neighbors": {
                BUYS: [-1, -1],
                ("item", "rev_buys", "user"): [-1, 0],
                ("tag", "on", "item"): [0, -1],
                ("user", "knows", "user"): [0, 0],
                ("user", "likes", "tag"): [-1, -1],
            },
            "input_nodes": ("item", None),
            "batch_size": 5,
        },
    ),
    "typed, bidirectional": Case(
        typed,
        {
            "num_neighbors": [-1, -1],
            "input_nodes": ("item", torch.tensor([2, 7])),
            "batch_size": 2,
            "subgraph_type": "bidirectional",
        },
    ),
    "typed, induced": Case(
        typed,
        {
            "num_neighbors": [-1, -1],
            "input_nodes": ("item", torch.tensor([2, 7])),
            "batch_size": 2,
            "subgraph_type": "induced",
        },
    ),
    "links": Case(
        plain,
        {"num_neighbors": [-1, -1], "edge_label_index": PAIRS, "batch_size": 3},
        "LinkNeighborLoader",
    ),
    "labeled links": Case(
        plain,
        {
            "num_neighbors": [-1],
            "edge_label_index": PAIRS,
            "edge_label": torch.arange(5),
            "batch_size": 2,
        },
        "LinkNeighborLoader",
    ),
    "all links": Case(plain, {"num_neighbors": [-1], "batch_size": 30}, "LinkNeighborLoader"),
    "induced links": Case(
        plain,
        {"num_neighbors": [-1], "edge_label_index": PAIRS, "batch_size": 5, "subgraph_type": "induced"},
        "LinkNeighborLoader",
    ),
    "typed links": Case(
        typed,
        {"num_neighbors": [-1, -1], "edge_label_index": (BUYS, BOUGHT), "batch_size": 3},
        "LinkNeighborLoader",
    ),
    "typed links, all of a type": Case(
        typed, {"num_neighbors": [-1], "edge_label_index": BUYS, "batch_size": 9}, "LinkNeighborLoader"
    ),
    "typed links, one node type": Case(
        typed,
        {
            "num_neighbors": [-1],
            "edge_label_index": (("user", "knows", "user"), torch.tensor([[3, 3, 0], [0, 8, 3]])),
            "edge_label": torch.tensor([0.5, 2.0, 1.0]),
            "batch_size": 3,
        },
        "LinkNeighborLoader",
    ),
}


def facts(batch: Data | HeteroData) -> dict[str, Any]:
    """Everything a batch holds, as plain values: shape and dtype of every tensor and what is in it."""
    found: dict[str, Any] = {}
    for storage in batch.stores:
        for name, value in storage.items():
            owner = (
                ""
                if storage._key is None
                else " ".join([storage._key] if isinstance(storage._key, str) else storage._key)
            )
            found[f"{owner}.{name}"] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return [str(value.dtype), list(value.shape), value.flatten().tolist()]
    return value


def main() -> None:
    from torch_geometric import loader
    from torch_geometric.sampler import utils

    warnings.simplefilter("ignore")
    # torch_geometric sorts edges by destination with a sort that leaves open in what order equal ones come.
    utils.index_sort = lambda index: torch.sort(index, stable=True)
    recorded = {}
    for name, case in CASES.items():
        batches = getattr(loader, case.loader)(case.data(), **case.arguments)
        recorded[name] = [facts(batch) for batch in batches]
    with RECORDED.open("w") as file:
        json.dump(recorded, file, indent=None, separators=(",", ":"))
        file.write("\n")
    print(f"{len(recorded)} cases, {RECORDED.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
