"""Seed nodes as rows of a table, each with a time, a label and a weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import as_mapping
from khop.batch import LossWeights
from khop.graph.features.store import FeatureStore
from khop.graph.inputs import described, tensor_of
from khop.graph.store import GraphStore
from khop.kernels.moments import Moments
from khop.sampling.seeds import (
    SOLE,
    NodeSeeds,
    Seeds,
    SeedTimes,
    StepShare,
    array_bytes,
    check_ids,
    of_type,
    seed_values,
    whole_times,
)
from khop.schema import NodeType, sole_type

ByType = Mapping[NodeType, Tensor]
GivenByType = npt.ArrayLike | Tensor | Mapping[NodeType, Any]


@dataclass(frozen=True, eq=False, init=False)
class SeedTable(NodeSeeds):
    """Seed nodes as rows of a table: a node may have several rows, each with a time, a label and a weight.

    A row is one seed, used once per epoch. Batches have the columns of their rows: labels as
    `batch.seed_column("label")`, where tasks read them, `batch.seed_times`, `batch.seed_weights`, and
    `batch.seed_positions`. `khop.Temporal` limits the neighborhood of each row by the time of the row.

    Weights multiply the losses of rows. They are relative: the loss of a step is the sum of weight times
    loss over the rows of all ranks, divided by their number and by the mean weight of the table. The loss
    of an epoch is thus the weighted mean over the table, for any batch size and number of ranks.

    Each argument is a tensor, an array, a list or a Series, or a mapping of these by node type. A column
    given for one node type must be given for all.

    Args:
        nodes: Global ids (rows), duplicates allowed.
        times: Time of each row, whole numbers (rows), in the unit of the graph's times. Default None.
        labels: Label of each row (rows, ...). Default None.
        weights: Weight of each row (rows), 0 or more and finite. Default None: all rows count the same.
    Raises:
        ValueError: A column has another shape or dtype than stated, or lacks a node type.
    Example:
        >>> table = khop.SeedTable([7, 7, 9], labels=[0, 1, 1], weights=[1.0, 2.0, 3.0])
        >>> loader = khop.Loader(khop.NeighborSampler(khop.open_graph("debian"), [5]), table, batch_size=2)
        >>> batch = loader.batch(epoch=0, step=0)
        >>> batch.seeds, batch.seed_column("label"), batch.seed_weights
        (tensor([7, 7]), tensor([0, 1]), tensor([1., 2.]))
    """

    labels: ByType | None = None
    weights: ByType | None = None

    def __init__(
        self,
        nodes: GivenByType,
        times: GivenByType | None = None,
        labels: GivenByType | None = None,
        weights: GivenByType | None = None,
    ) -> None:
        by_type = as_mapping(nodes, lambda ids: {SOLE: ids})
        ids = {t: _ids(t, of) for t, of in by_type.items()}
        object.__setattr__(self, "nodes", ids)
        object.__setattr__(self, "times", _column("times", times, ids, whole_times))
        object.__setattr__(self, "labels", _column("labels", labels, ids, _rows))
        object.__setattr__(self, "weights", _column("weights", weights, ids, _checked_weights))
        if self.weights is not None and self.num_rows and not self._mean_weight > 0:
            raise ValueError("weights: all are 0; give one row or more a weight above 0")

    @property
    def num_rows(self) -> int:
        """Number of rows of all node types."""
        return sum(self.counts.values())

    def of_graph(
        self, graph: GraphStore, times: SeedTimes | None = None, features: FeatureStore | None = None
    ) -> SeedTable:
        """Return the same table by node type; ValueError for ids that are not nodes of the graph.

        Args:
            graph: The graph.
            times: Must be None: times belong to the rows.
            features: Columns of the graph; not read.
        """
        if times is not None:
            raise ValueError(
                "seed_times with a khop.SeedTable: times belong to its rows, give "
                "khop.SeedTable(..., times=...)"
            )
        types, found = graph.schema.node_types, self
        if SOLE in self.nodes:
            sole = sole_type(types, "a khop.SeedTable without a node type")
            named = {name: None if of is None else {sole: of[SOLE]} for name, of in self._columns.items()}
            found = SeedTable({sole: self.nodes[SOLE]}, **named)
        for node_type, ids in found.nodes.items():
            if node_type not in types:
                raise ValueError(f"rows of {node_type!r}: not a node type; there are {types}")
            check_ids(f"rows of {node_type!r}", ids, graph.num_nodes(node_type))
        return found

    def _with_columns(self, seeds: Seeds, numbers: ByType, share: StepShare) -> Seeds:
        labels = None if self.labels is None else {t: self.labels[t][of] for t, of in numbers.items()}
        if self.weights is None:
            return replace(seeds, labels=labels)
        weights: dict[Any, Tensor] = {t: self.weights[t][of] for t, of in numbers.items()}
        total = share.order.numel() * self._mean_weight
        return replace(seeds, labels=labels, loss_weights=LossWeights(weights, total))

    @property
    def _columns(self) -> dict[str, ByType | None]:
        return {"times": self.times, "labels": self.labels, "weights": self.weights}

    @cached_property
    def _mean_weight(self) -> float:
        assert self.weights is not None
        moments = Moments()
        for of in self.weights.values():
            moments = moments.merged(Moments.of(of.double().numpy()))
        return moments.mean()

    def _hash_into(self, update: Callable[[bytes | memoryview], None]) -> None:
        super()._hash_into(update)
        for name, column in (("labels", self.labels), ("weights", self.weights)):
            for node_type, values in (column or {}).items():
                update(f"{name}:{node_type}:{values.dtype}:{tuple(values.shape)}:".encode())
                update(array_bytes(values))


def _ids(node_type: NodeType, given: Any) -> Tensor:  # noqa: ANN401
    name = f"nodes{of_type(node_type)}"
    ids = seed_values(name, given, None)
    if ids.dtype == torch.bool:
        raise ValueError(f"{name}: a mask of shape {tuple(ids.shape)}; give an id for each row")
    return ids


def _column(
    name: str, given: object, nodes: ByType, read: Callable[[str, object, Tensor], Tensor]
) -> ByType | None:
    """Return a column by node type; ValueError unless it has a value for each row."""
    if given is None:
        return None
    by_type = as_mapping(given, lambda values: dict.fromkeys(nodes, values))
    if set(by_type) != set(nodes):
        raise ValueError(f"{name} of {list(by_type)}, and rows of {list(nodes)}: give each row one")
    return {t: read(f"{name}{of_type(t)}", by_type[t], ids) for t, ids in nodes.items()}


def _rows(name: str, given: object, nodes: Tensor) -> Tensor:
    values = tensor_of(name, given)
    if values.dim() == 0 or len(values) != nodes.numel():
        raise ValueError(f"{name}: {described(values)} for {nodes.numel()} rows; give one for each")
    return values


def _checked_weights(name: str, given: object, nodes: Tensor) -> Tensor:
    values = _rows(name, given, nodes)
    if values.dim() != 1 or values.dtype == torch.bool or values.is_complex():
        raise ValueError(f"{name}: {described(values)} for {nodes.numel()} rows; give one number for each")
    weights = values if values.is_floating_point() else values.double()
    wrong = ~(weights >= 0) | weights.isinf()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(f"{name}: row {row} has {float(weights[row])}; must be 0 or more, and finite")
    return weights
