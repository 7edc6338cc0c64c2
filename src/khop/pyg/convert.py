"""Conversion between torch_geometric's data and khop's graphs, batches and links.

Arrays are shared if the layouts agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop.api.open_graph import Graph
from khop.arguments import graph_of, instance_of
from khop.batch import Adjacency, Batch
from khop.graph.features.table import FeatureTable
from khop.graph.inputs import (
    Given,
    are_reverses,
    is_sparse,
    refuse_unreadable,
    sparse_column,
    splits_of_masks,
    tensor_of,
)
from khop.graph.store import CscGraph
from khop.kernels.csc import Csc
from khop.kernels.lazy_rows import SparseRows
from khop.pyg.inputs import with_tensors
from khop.pyg.outputs import DATA_KINDS, EDGE, storages
from khop.pyg.source import Attributes, EdgeSource
from khop.sampling.links.link_seeds import Links
from khop.sampling.seeds import ids_here
from khop.schema import ColumnSpec, EdgeType, NodeType

LABEL = "edge_label"
_SIGNS = ("", "pos_", "neg_")  # RandomLinkSplit(split_labels=True) stores links and negatives separately
_FACTS = ("", "_index", "_time")


def links_from_pyg(data: Data | HeteroData, key: str = LABEL) -> Links:
    """Make `khop.Links` from the links that torch_geometric's `RandomLinkSplit` adds to data.

    Links are `<key>_index`, labels `<key>` and times `<key>_time`, for each edge type that has them. Links
    and negatives that `split_labels=True` stores separately (`pos_<key>`, `neg_<key>`) are concatenated in
    this order. Negatives are links with the label 0.

    Args:
        data: Data with links.
        key: Name of the links' attributes, as in `RandomLinkSplit(key=...)` (default "edge_label").
    Returns:
        The links with their labels and times, as seeds of a `khop.Loader`.
    Raises:
        ValueError: `data` has no such links.
    Example:
        >>> from torch_geometric.data import Data
        >>> ends = torch.tensor([[0, 1], [1, 2]])
        >>> data = Data(num_nodes=3, edge_index=ends, edge_label_index=ends, edge_label=torch.tensor([1, 0]))
        >>> links = khop.links_from_pyg(data)
    """
    instance_of("data", data, DATA_KINDS, "must be a torch_geometric Data or HeteroData")
    found = {}
    for owner, storage in storages(data):
        of_type = None if isinstance(owner, str) else _links(storage, key)
        if of_type is not None:
            edge_type: EdgeType = owner if isinstance(owner, tuple) else EDGE
            found[edge_type] = of_type
    if not found:
        raise ValueError(
            f"{key}_index: no edge type of the data has it; split the data with RandomLinkSplit(...), or "
            "make khop.Links({edge_type: ends}) yourself"
        )
    by_fact = {
        what: {edge_type: of_type[what] for edge_type, of_type in found.items() if what in of_type}
        for what in _FACTS
    }
    return Links(by_fact["_index"], by_fact[""] or None, by_fact["_time"] or None)


def label_names(storage: Any) -> frozenset[str]:
    """Return the attributes about links. They are not columns, whatever their length.

    These are all names with `edge_label`, and all names with a `<key>` for which `<key>_index` exists.
    """
    keys = {LABEL} | {
        name.removesuffix("_index").removeprefix(sign)
        for name, value in storage.items()
        for sign in _SIGNS
        if name.endswith("_index") and name != "edge_index" and _is_ends(value) and name.startswith(sign)
    }
    return frozenset(f"{sign}{key}{fact}" for key in keys for sign in _SIGNS for fact in _FACTS)


def _links(storage: Any, key: str) -> dict[str, Tensor] | None:
    """Return the links of one edge type, by the attributes' suffixes; None where it has no links."""
    signs = [sign for sign in _SIGNS if f"{sign}{key}_index" in storage]
    if not signs:
        return None
    parts: dict[str, list[Tensor]] = {}
    for fact in _FACTS:
        there = [storage[f"{sign}{key}{fact}"] for sign in signs if f"{sign}{key}{fact}" in storage]
        if there and len(there) < len(signs):
            raise ValueError(f"{key}{fact}: some of the links have it and others do not; give it for all")
        if there:
            parts[fact] = [torch.as_tensor(part).detach().cpu() for part in there]
    joined = {fact: torch.cat(of_fact, dim=1 if fact == "_index" else 0) for fact, of_fact in parts.items()}
    return {fact: values if fact == "" else values.long() for fact, values in joined.items()}


def _is_ends(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray) and value.ndim == 2 and value.shape[0] == 2


_MASK = "_mask"  # suffix of split names in torch_geometric's data sets

Tensors = dict[NodeType | EdgeType, dict[str, Tensor]]
Splits = dict[str, dict[NodeType, Tensor]]


def graph_from_pyg(data: Data | HeteroData) -> Graph:
    """Make a graph in memory from torch_geometric's data.

    * Attributes with a row per node or edge become columns. Node columns share memory with `data`, and so do
      edge columns and sources if edges are sorted by destination. Node columns of layout torch.sparse_csr
      become sparse columns.
    * Boolean node attributes named `<split>_mask` become splits; masks with several columns become "train.0",
      "train.1", and so on.
    * An edge type of `ToUndirected`, such as "rev_to" of "to", is recorded as the reverse.
    * Links (`edge_label_index`) are not converted: use `khop.links_from_pyg`.

    `graph.save(folder)` writes a graph folder.

    Args:
        data: A `Data`, whose types become "node" and ("node", "to", "node"), or a `HeteroData`.
    Returns:
        The graph. A warning names the empty masks and the attributes that are not numeric, which are left
        out.
    Raises:
        ValueError: `data` is not a `Data` or `HeteroData`, or its edges or attributes are invalid.
    Example:
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.randn(100, 8), edge_index=torch.randint(100, (2, 500)))
        >>> graph = khop.graph_from_pyg(data)
        >>> graph.num_edges("node to node")
        500
    """
    instance_of("data", data, DATA_KINDS, "must be a torch_geometric Data or HeteroData")
    data = with_tensors(data)
    source = EdgeSource.of(data, Attributes(is_sorted=_is_sorted(data)))
    schema = source.graph.schema
    columns: Tensors = {}
    specs: dict[NodeType | EdgeType, dict[str, ColumnSpec]] = {}
    splits: Splits = {}
    for node_type in schema.node_types:
        nodes = _of_type(data, node_type)
        columns[node_type], specs[node_type] = {}, {}
        for name, column in _tensors(data, nodes, nodes.is_node_attr):
            if name.endswith(_MASK) and column.dtype == torch.bool:
                _add_splits(splits, node_type, name.removesuffix(_MASK), column)
                continue
            if name.endswith(_MASK):
                warnings.warn(
                    f"attribute {name!r} of {node_type!r} is {column.dtype}, not boolean: it becomes a "
                    "column, not a split; convert it with .bool()",
                    stacklevel=2,
                )
            columns[node_type][name], specs[node_type][name] = _stored(name, column)
    for edge_type in schema.edge_types:
        edges, order = _of_type(data, edge_type), source.permutations[edge_type]
        given = _tensors(data, edges, edges.is_edge_attr)
        columns[edge_type] = {name: column if order is None else column[order] for name, column in given}
        specs[edge_type] = {name: _spec(name, column) for name, column in columns[edge_type].items()}
    schema = replace(schema, columns=specs, reverse_of=_reverses(source.graph))
    topology = replace(source.graph, schema=schema, columns=columns)
    return Graph(topology, FeatureTable(columns), splits=splits)


def _reverses(graph: CscGraph) -> dict[EdgeType, EdgeType]:
    """Return the edge types that have names of torch_geometric's reverse types and are reverses."""
    found: dict[EdgeType, EdgeType] = {}
    for edge_type in graph.schema.edge_types:
        source, relation, destination = edge_type
        turned = (destination, f"rev_{relation}", source)
        if turned in graph.edges and are_reverses(_ends(graph.csc(turned)), _ends(graph.csc(edge_type))):
            found |= {edge_type: turned, turned: edge_type}
    return found


def _ends(csc: Csc) -> tuple[Given, Given]:
    destinations = torch.repeat_interleave(torch.arange(csc.num_rows), csc.indptr.diff())
    return Given.of(csc.indices, "sources"), Given.of(destinations, "destinations")


def graph_to_pyg(graph: Graph) -> Data | HeteroData:
    """Make torch_geometric's data from a graph.

    Columns share memory with the graph, except quantized ones, which become float32. Sparse columns become
    torch.sparse_csr. Edges are sorted by destination. A split becomes a mask, `<split>_mask`. A column with
    the name of another attribute of the data is renamed to `node_<name>` or `edge_<name>`, with a warning.

    Args:
        graph: Graph in memory or in a folder.
    Returns:
        A `Data` for a graph with one node type and one edge type, else a `HeteroData`.
    Raises:
        ValueError: `graph` is not a graph.
    Example:
        >>> data = khop.graph_to_pyg(khop.open_graph("debian"))
        >>> data.x.shape, data.train_mask.dtype
        (torch.Size([63436, 512]), torch.bool)
    """
    graph_of("graph", graph)
    schema = graph.schema
    data = _empty(len(schema.node_types) == len(schema.edge_types) == 1)
    columns = graph.columns
    for node_type in schema.node_types:
        nodes = _of_type(data, node_type)
        nodes.num_nodes = graph.num_nodes(node_type)
    for edge_type in schema.edge_types:
        csc = graph.csc(edge_type)
        edges = _of_type(data, edge_type)
        edges.edge_index = Adjacency(csc.indptr, csc.indices, graph.num_nodes(edge_type[0])).edge_index
    for split in graph.split_names:
        for node_type, ids in graph.split(split).items():
            mask = torch.zeros(graph.num_nodes(node_type), dtype=torch.bool)
            mask[ids_here(ids)] = True
            _of_type(data, node_type)[split + _MASK] = mask
    types: list[NodeType | EdgeType] = [*schema.node_types, *schema.edge_types]
    for type_ in types:
        of_type = columns.get(type_, {})
        given = {name: _given_back(column, schema.column(type_, name)) for name, column in of_type.items()}
        _add_columns(_of_type(data, type_), type_, given)
    return data


def batch_to_pyg(batch: Batch) -> Data | HeteroData:
    """Make torch_geometric's data from a batch of a sampler with the subgraph expansion.

    Columns share memory with the batch; sparse columns are rows for `khop.SparseRows.of`. Seeds come first;
    `batch_size` is their number. Duplicate seeds share a row, given by `seed_index`. Weights of drawn edges
    are `edge_weight`, or `sampled_edge_weight` if a column has that name. Loss weights of seeds are
    `loss_weight`. A column with the name of another attribute of the data is renamed to `node_<name>` or
    `edge_<name>`, with a warning; a column of seeds with the name of one of nodes is `seed_<name>`.

    Args:
        batch: Batch of a `khop.Loader` whose sampler has `expansion=khop.Expansion.SUBGRAPH`.
    Returns:
        A `Data` for one node type and one edge type, else a `HeteroData`.
    Raises:
        ValueError: The batch has a block per layer instead of one subgraph.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> sampler = khop.NeighborSampler(graph, [5, 5], expansion=khop.Expansion.SUBGRAPH)
        >>> loader = khop.Loader(sampler, graph.split("train"), batch_size=16, columns=["x"])
        >>> khop.batch_to_pyg(loader.batch(epoch=0, step=0)).batch_size
        16
    """
    instance_of("batch", batch, Batch, "must be a batch of a khop.Loader")
    sample = batch.sample
    subgraph = sample.subgraph
    if subgraph is None:
        raise ValueError(
            "batch_to_pyg: this batch has a block per layer, but torch_geometric's have one subgraph: sample "
            "with expansion=khop.Expansion.SUBGRAPH"
        )
    data = _empty(len(sample.nodes) == len(subgraph.adjacencies) == 1)
    for node_type, ids in sample.nodes.items():
        nodes = _of_type(data, node_type)
        nodes.n_id = ids
        nodes.num_sampled_nodes = list(subgraph.nodes_per_hop[node_type])
        if sample.trees is not None:
            nodes.batch = sample.trees[node_type]
        if node_type in sample.seed_index:
            nodes.batch_size = subgraph.nodes_per_hop[node_type][0]
            nodes.seed_index = sample.seed_index[node_type]
            if sample.loss_weights is not None and node_type in sample.loss_weights.by_type:
                nodes.loss_weight = sample.loss_weights.by_type[node_type]
    for edge_type, adjacency in subgraph.adjacencies.items():
        edges = _of_type(data, edge_type)
        edges.edge_index = adjacency.edge_index
        if adjacency.edge_ids is not None:
            edges.e_id = adjacency.edge_ids
        if adjacency.reverse is not None:
            edges.reverse = adjacency.reverse
        if subgraph.edges_per_hop is not None:
            edges.num_sampled_edges = list(subgraph.edges_per_hop[edge_type])
    for node_type in sample.nodes:
        nodes = _of_type(data, node_type)
        _add_columns(nodes, node_type, batch.columns.get(node_type, {}))
        for name, column in batch.seed_columns.get(node_type, {}).items():
            nodes[name if name not in nodes else f"seed_{name}"] = column
    for edge_type, adjacency in subgraph.adjacencies.items():
        edges = _of_type(data, edge_type)
        _add_columns(edges, edge_type, adjacency.columns)
        if adjacency.weight is not None:
            edges["sampled_edge_weight" if "edge_weight" in edges else "edge_weight"] = adjacency.weight
    return data


def _add_columns(storage: Any, type_: NodeType | EdgeType, columns: Mapping[str, Tensor]) -> None:
    """Add columns; those with the name of an attribute that is there get another one, with a warning."""
    for name, column in columns.items():
        free = name
        while free in storage:
            free = f"{'edge' if isinstance(type_, tuple) else 'node'}_{free}"
        if free != name:
            warnings.warn(
                f"column {name!r} of {type_!r} is {free!r}: {name!r} is another attribute of the data",
                stacklevel=3,
            )
        storage[free] = column


def _tensors(data: Any, storage: Any, is_wanted: Callable[[str], bool]) -> list[tuple[str, Tensor]]:
    """Return the attributes with a row per node, or per edge: tensors, arrays and lists of numbers.

    Attributes whose rows are not along the first dimension are not columns; in torch_geometric, these have
    "index" or "face" in their names. Lists and arrays of other values, such as names, are left out, with a
    warning.
    """
    links = label_names(storage)
    found = []
    for name, value in storage.items():
        is_array = isinstance(value, Tensor | np.ndarray)
        is_named = name != "edge_index" and name not in links
        if not is_named or not (is_array or isinstance(value, list | tuple)) or not is_wanted(name):
            continue
        if is_array and data.__cat_dim__(name, value, storage) % value.ndim != 0:
            continue
        if isinstance(value, Tensor) and value.layout != torch.strided:
            if value.layout != torch.sparse_csr:
                layout = str(value.layout).removeprefix("torch.")
                raise ValueError(
                    f"attribute {name!r} is a tensor of layout {layout}: give tensor.to_sparse_csr(), or a "
                    "dense tensor"
                )
            found.append((name, value))  # a sparse column
            continue
        try:
            found.append((name, tensor_of(name, value)))
        except ValueError:
            warnings.warn(
                f"attribute {name!r} is left out: columns must be numeric; keep it outside the graph, and "
                "index it with the ids of a batch's nodes or edges",
                stacklevel=3,
            )
    return found


def _is_sorted(data: Data | HeteroData) -> bool:
    """Return true if all edges are sorted by destination, so that their arrays need not be copied."""
    stores = [storage for _, storage in storages(data) if "edge_index" in storage]
    return all(bool((s.edge_index[1, 1:] >= s.edge_index[1, :-1]).all()) for s in stores)


def _add_splits(splits: Splits, node_type: NodeType, name: str, mask: Tensor) -> None:
    masks = {name: mask} if mask.dim() == 1 else {f"{name}.{i}": mask[:, i] for i in range(mask.shape[1])}
    splits_of_masks(masks, node_type, splits)


def _stored(name: str, column: Tensor) -> tuple[Tensor, ColumnSpec]:
    """Return a node column as it is stored, and its spec."""
    if not is_sparse(column):
        refuse_unreadable(column, f"attribute {name!r}")
        return column, _spec(name, column)
    sparse = sparse_column(column, f"attribute {name!r}")
    return sparse.values, replace(_spec(name, sparse.values), sparse_width=sparse.width)


def _given_back(column: Tensor, spec: ColumnSpec) -> Tensor:
    if spec.scales is not None:
        return column.float() * torch.tensor(spec.scales, dtype=torch.float32).view(spec.shape)
    if spec.sparse_width is None:
        return column
    rows = SparseRows.of(column, spec.sparse_width)
    size = (column.shape[0], spec.sparse_width)
    return torch.sparse_csr_tensor(rows.indptr, rows.places.long(), rows.numbers, size, check_invariants=True)


def _spec(name: str, column: Tensor) -> ColumnSpec:
    """Make a spec: an integer vector named y with values from -1 is a column of classes."""
    is_label = name == "y" and column.dtype == torch.int64 and column.dim() == 1 and column.numel() > 0
    num_classes = int(column.max()) + 1 if is_label and int(column.min()) >= -1 else None
    return ColumnSpec(str(column.dtype).removeprefix("torch."), tuple(column.shape[1:]), num_classes or None)


def _empty(is_single: bool) -> Any:
    return Data() if is_single else HeteroData()


def _of_type(data: Any, type_: NodeType | EdgeType) -> Any:
    return data._store if isinstance(data, Data) else data[type_]
