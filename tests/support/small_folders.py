"""A small graph from which something can be learnt in a second."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.draw import mix64
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable

ITEM = "item"


def write_learnable_graph(path: Path, nodes: int = 600, classes: int = 4, degree: int = 6) -> Path:
    """Nodes of one type, most neighbors of one class; columns x and category, splits train, val and test.

    The features hold less than the neighbors tell, so that a model which samples beats one that does not.
    """
    generator = torch.Generator().manual_seed(mix64(nodes) >> 1)
    labels = torch.randint(classes, (nodes,), generator=generator)
    x = torch.nn.functional.one_hot(labels, classes).float() + 1.2 * torch.randn(
        nodes, classes, generator=generator
    )
    sources = torch.randint(nodes, (nodes * degree * 4,), generator=generator)
    destinations = torch.randint(nodes, (nodes * degree * 4,), generator=generator)
    strange = torch.rand(sources.numel(), generator=generator) < 0.05
    kept = (labels[sources] == labels[destinations]) | strange
    order = torch.randperm(nodes, generator=generator)
    train, val, test = order.split([nodes * 3 // 5, nodes // 5, nodes - nodes * 3 // 5 - nodes // 5])
    return write_graph(
        path,
        {
            ITEM: NodeTable(
                columns={"x": x, "category": labels},
                splits={"train": train, "val": val, "test": test},
                num_classes={"category": classes},
            )
        },
        {(ITEM, "like", ITEM): EdgeTable(sources[kept], destinations[kept])},
    )


def write_hub_graph(path: Path, nodes: int = 400, hub_degree: int = 5000) -> Path:
    """Nodes of one type with a few edges, but for two hubs with `hub_degree` each; column x, splits."""
    generator = torch.Generator().manual_seed(11)
    hubs = torch.tensor([nodes // 3, nodes - 2]).repeat_interleave(hub_degree)
    destinations = torch.cat([torch.randint(nodes, (3 * nodes,), generator=generator), hubs])
    sources = torch.randint(nodes, (destinations.numel(),), generator=generator)
    labels = torch.randint(3, (nodes,), generator=generator)
    x = torch.randn(nodes, 5, generator=generator)
    sizes = [nodes // 2, nodes // 4, nodes - nodes // 2 - nodes // 4]
    train, val, test = torch.randperm(nodes, generator=generator).split(sizes)
    table = NodeTable(
        columns={"x": x, "category": labels},
        splits={"train": train, "val": val, "test": test},
        num_classes={"category": 3},
    )
    return write_graph(path, {ITEM: table}, {(ITEM, "like", ITEM): EdgeTable(sources, destinations)})
