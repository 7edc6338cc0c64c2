"""A products-like graph, made on the GPU in seconds: Lomax degrees, as in graphs.py; sources by degree."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from gpu_run import NODES
from torch import Tensor

import khop
from khop.graph.features.table import FeatureTable
from khop.graph.store import CscGraph
from khop.kernels.csc import Csc
from khop.schema import ColumnSpec, Schema

MEAN_DEGREE, MAX_DEGREE, TAIL = 51.4, 20_000, 2.3
WIDTH, CLASSES, TRAIN = 100, 47, 196_615
EDGE_TYPE = ("node", "to", "node")


@dataclass(frozen=True)
class Products:
    """The graph in host memory, with its features, and the seeds of training."""

    graph: khop.Graph
    csc: Csc  # in host memory
    x: Tensor  # float32 (nodes, width), in host memory
    y: Tensor  # int64 (nodes)
    train: Tensor  # int64 (seeds)


def products(nodes: int = NODES, seed: int = 0, device: str = "cuda") -> Products:
    """Make the graph. Edges of a row are in no order; self loops and repeated edges stay, and are few."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = (1 - torch.rand(nodes, device=device, generator=generator)) ** (-1 / TAIL) - 1
    for _ in range(4):  # the cap lowers the mean
        weights = (weights * (MEAN_DEGREE / weights.mean())).clamp(max=MAX_DEGREE)
    degrees = weights.long().clamp(min=1)
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    owners = torch.repeat_interleave(torch.arange(nodes, device=device, dtype=torch.int32), degrees)
    picks = torch.randint(owners.numel(), (owners.numel(),), device=device, generator=generator)
    csc = Csc(indptr.cpu(), owners[picks].cpu(), nodes)
    del owners, picks
    y = torch.randint(CLASSES, (nodes,), device=device, generator=generator)
    centers = torch.randn(CLASSES, WIDTH, device=device, generator=generator)
    x = (centers[y] + torch.randn(nodes, WIDTH, device=device, generator=generator)).cpu()
    columns = {"node": {"x": x, "y": y.cpu()}}
    specs = {
        "node": {"x": ColumnSpec("float32", (WIDTH,)), "y": ColumnSpec("int64", (), num_classes=CLASSES)}
    }
    schema = Schema(("node",), (EDGE_TYPE,), columns=specs)
    topology = CscGraph(schema, {"node": nodes}, {EDGE_TYPE: csc}, columns=columns)
    train = torch.randperm(nodes, device=device, generator=generator)[:TRAIN].cpu()
    return Products(khop.Graph(topology, FeatureTable(columns)), csc, x, columns["node"]["y"], train)


def quantized(given: Products) -> khop.Graph:
    """The same graph with features of int8 and their scales."""
    made = khop.quantize(given.x)
    topology = given.graph.topology
    spec = ColumnSpec("int8", (WIDTH,), scales=tuple(made.scales.tolist()))
    specs = {"node": {**topology.schema.columns["node"], "x": spec}}
    schema = replace(topology.schema, columns=specs)
    columns = {"node": {"x": made.values, "y": given.y}}
    placed = replace(topology, schema=schema, columns=columns)
    return khop.Graph(placed, FeatureTable.of(schema, columns))
