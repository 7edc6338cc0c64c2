"""Layers of khop's models: a sum of destination rows and aggregated neighbors, norm, ReLU and dropout.

`parameter_name` names node types and edge types in parameters and state dicts.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.nn.functional import pad

from khop.arguments import LARGEST_WIDTH, check_word, real_number, whole_number
from khop.batch import Adjacency, Block
from khop.components import RULES, CountOrNone, Default
from khop.graph.rule import Rule
from khop.kernels.activations import dropout, relu_
from khop.kernels.choice import Engine, engine
from khop.kernels.lazy_rows import SparseRows
from khop.kernels.linear import linear, linear_sum
from khop.kernels.linear_blocks import Activation
from khop.kernels.segment import prefix_and_mean, segment_mean
from khop.kernels.segment_weighted import segment_weighted_sum
from khop.sampling.rules.sum import SymmetricSum
from khop.schema import EdgeType, NodeType, edge_type_of

NORMALIZED: Rule = SymmetricSum()  # for models that normalize sums by the degrees of both ends
# Cost of aggregating one number of one edge, in multiply-adds of a matrix product (measured: 3 to 10).
AGGREGATION_COST = 6
MOSTLY_REACHED = 0.7  # above this fraction of destinations with edges, skipping the others is not faster


class LayerSum:
    """Collects the terms, then multiplies and adds them in one operation.

    Every weight takes part in the gradient; a weight without edges has a zero gradient.
    """

    def __init__(self, count: int, bias: Tensor) -> None:
        self._count = count
        self._bias = bias
        self._inputs: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._addend: Tensor | None = None  # sum of terms that need no further product
        self._own: tuple[Tensor, Tensor] | None = (
            None  # source rows, which begin with the destinations, and weight
        )

    def add_own(self, h: Tensor, weight: Tensor) -> None:
        """Add the weight times the destinations' rows, the first of h. Call it before `add_neighbors`."""
        self._own = (h, weight)

    def add_neighbors(self, h: Tensor, adjacency: Adjacency | None, weight: Tensor) -> None:
        """Add the weight times `aggregated` rows of h; 0 for destinations without neighbors."""
        if adjacency is None or not adjacency.indices.numel():
            self._bias = self._bias + linear(h[:0], weight).sum()
            return
        reached = _few_reached(adjacency)
        if reached is not None:
            # Rows without edges end where the previous row ends.
            few = replace(adjacency, indptr=pad(adjacency.indptr[reached + 1], (1, 0)))
            self._add_to(reached, product_of_neighbors(h, few, weight))
        elif weight_comes_first(h, adjacency, weight):
            self._add(product_of_neighbors(h, adjacency, weight))
        elif adjacency.weight is None and self._own is not None and self._own[0] is h:
            own, mean = prefix_and_mean(h, adjacency.indptr, adjacency.indices)
            self._product(own, self._own[1])
            self._product(mean, weight)
            self._own = None
        else:
            self._product(aggregated(h, adjacency), weight)

    def add_product(self, x: Tensor, weight: Tensor) -> None:
        """Add the weight times rows x, one for each destination."""
        self._product(x, weight)

    def add_rows(self, rows: Tensor) -> None:
        """Add rows that earlier operations do not need for their gradients, one for each destination."""
        self._add(rows)

    def total(self, activation: Activation) -> Tensor:
        """Compute the sum: (destinations, out)."""
        if self._own is not None:
            h, weight = self._own
            self._product(h[: self._count], weight)
        if not self._inputs and self._addend is None:
            self._addend = self._bias.new_zeros(self._count, self._bias.numel())
        return linear_sum(self._inputs, self._weights, self._bias, self._addend, activation)

    def _product(self, x: Tensor, weight: Tensor) -> None:
        if isinstance(x, SparseRows):
            self._add(linear(x, weight))
            return
        self._inputs.append(x)
        self._weights.append(weight)

    def _add(self, rows: Tensor) -> None:
        # In place, because new memory costs more than the sum, and earlier operations do not need the value
        # for their gradients.
        self._addend = rows if self._addend is None else self._addend.add_(rows)

    def _add_to(self, reached: Tensor, rows: Tensor) -> None:
        if self._addend is None:
            self._addend = rows.new_zeros(self._count, rows.shape[1])
        self._addend = self._addend.index_add_(0, reached, rows)


def _few_reached(adjacency: Adjacency) -> Tensor | None:
    """Return the destinations with edges if computing only these is faster, as with many edge types.

    None on a device, where counting them would synchronize, and shapes would depend on the batch.
    """
    if engine(adjacency.indptr.device) is not Engine.NATIVE:
        return None
    reached = adjacency.indptr.diff().nonzero().squeeze(1)
    return reached if reached.numel() <= adjacency.num_dst * MOSTLY_REACHED else None


def weighted(edge_type: EdgeType, adjacency: Adjacency, model: str, rule: Rule) -> Adjacency:
    """Return the adjacency; ValueError that names the needed rule if it has no weights."""
    if adjacency.weight is None:
        kind = RULES.kind_of(type(rule))
        raise ValueError(
            f"neighbors of {edge_type} have no weights, which {model} needs; draw them with "
            f'rule=khop.{type(rule).__name__}(), in a run file sampler.rule.kind = "{kind}"'
        )
    return adjacency


def aggregated(h: Tensor, adjacency: Adjacency) -> Tensor:
    """Return (destinations, width): the sum of the in-neighbors' rows of h times `Adjacency.weight`.

    Without weights, it is their mean. It is 0 for destinations without neighbors.
    """
    if adjacency.weight is None:
        return segment_mean(h, adjacency.indptr, adjacency.indices)
    return segment_weighted_sum(h, adjacency.weight, adjacency.indptr, adjacency.indices)


def product_of_neighbors(h: Tensor, adjacency: Adjacency, weight: Tensor) -> Tensor:
    """Return (destinations, out): weight times `aggregated` rows of h."""
    if weight_comes_first(h, adjacency, weight):
        return aggregated(linear(h, weight), adjacency)
    return linear(aggregated(h, adjacency), weight)


def weight_comes_first(h: Tensor, adjacency: Adjacency, weight: Tensor) -> bool:
    """Return True if it is cheaper to multiply all sources' rows than to multiply the aggregated rows.

    Aggregation is linear, so both give the same result. The choice only depends on shapes; sparse rows are
    always multiplied first, because their aggregates would be dense.
    """
    if isinstance(h, SparseRows):
        return True
    outputs, inputs = weight.shape
    edges = adjacency.indices.numel() * AGGREGATION_COST
    cost_first = adjacency.num_src * inputs * outputs + edges * outputs
    cost_last = adjacency.num_dst * inputs * outputs + edges * inputs
    return cost_first < cost_last


_STATE = "row_names._extra_state"


def parameter_name(*names: str) -> str:
    """Return a valid name for torch's containers: without dots, and not one of their attributes ("items")."""
    for character in "%.:":
        names = tuple(name.replace(character, f"%{ord(character):02X}") for name in names)
    return ":".join(names if len(names) > 1 else ("node", *names))


def plain_name(name: str) -> str:
    """Return the name of a compiled module's entry in the original module."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


class RowNames(nn.Module):
    """The edge types of the rows of a parameter: consecutive rows for each, in the order of `counts`.

    A module with such a parameter has this module as its attribute `row_names`. The state dict then contains
    the edge types as JSON in a uint8 tensor. Loading a state dict reorders its rows to the order of the
    model, and rejects rows of other edge types.

    Args:
        owner: The module that gets this module as an attribute.
        parameter: Path of the parameter from `owner`, such as "shares".
        counts: Number of rows of each edge type.
    """

    def __init__(self, owner: nn.Module, parameter: str, counts: Mapping[EdgeType, int]) -> None:
        super().__init__()
        self.parameter = parameter
        self.counts = dict(counts)
        owner.register_load_state_dict_pre_hook(_order_rows)

    def get_extra_state(self) -> Tensor:
        """Return the edge types and their numbers of rows, encoded as uint8."""
        text = json.dumps([[*edge_type, count] for edge_type, count in self.counts.items()])
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Do nothing: the rows are already in the order of this model."""

    def order(self, state: Tensor) -> Tensor | None:
        """Return the position of each row in the stored parameter, int64; None if the orders are equal.

        ValueError if `state` is damaged, or names other edge types or other numbers of rows.
        """
        stored = self._decoded(state)
        if stored != self.counts:
            raise ValueError(
                f"the checkpoint has rows of {self.parameter} for {_words(stored)}; the model has "
                f"{_words(self.counts)}; build the model with the same edge types and relations"
            )
        if [*stored] == [*self.counts]:
            return None
        first = dict(zip(stored, accumulate(stored.values(), initial=0), strict=False))
        return torch.cat([torch.arange(count) + first[t] for t, count in self.counts.items()])

    def _decoded(self, state: Tensor) -> dict[EdgeType, int]:
        """Return the number of rows of each stored edge type. The bytes may have been cast or averaged."""
        try:
            text = bytes(state.double().round().to(torch.uint8).tolist())
            return {edge_type_of(names): count for *names, count in json.loads(text)}
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"names of the rows of {self.parameter} are damaged; save the state dict again, and only "
                "average state dicts of models with the same order of edge types"
            ) from error


def row_orders(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the order of the rows of each parameter that has another order in a state dict, by plain name.

    `state` has plain names. ValueError if the rows are of other edge types.
    """
    orders = {prefix + names.parameter: _order_in(names, state, prefix) for prefix, names in _named(model)}
    return {name: order for name, order in orders.items() if order is not None}


def in_order(rows: Tensor, order: Tensor) -> Tensor:
    """Return the rows in another order; unchanged if their number differs."""
    return rows.index_select(0, order.to(rows.device)) if rows.shape[:1] == order.shape else rows


def _named(model: nn.Module) -> Iterator[tuple[str, RowNames]]:
    for name, module in model.named_modules():
        if isinstance(module, RowNames):
            yield plain_name(name).removesuffix("row_names"), module


def _order_in(names: RowNames, state: Mapping[str, Tensor], prefix: str) -> Tensor | None:
    entry = f"{prefix}{_STATE}"
    return names.order(state[entry]) if entry in state else None


def _order_rows(
    owner: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: Mapping[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Reorder stored rows to the order of the model; a load hook of the module with the parameter."""
    names = owner.row_names
    assert isinstance(names, RowNames)
    name = prefix + names.parameter
    if name not in state_dict:
        return  # reported by torch
    if f"{prefix}{_STATE}" not in state_dict:
        error_msgs.append(
            f"{name} has no names of its rows, so their order is unknown; load all entries of "
            f"model.state_dict(), including {prefix}{_STATE}"
        )
        return
    try:
        order = _order_in(names, state_dict, prefix)
    except ValueError as error:
        error_msgs.append(str(error))
        return
    state_dict[f"{prefix}{_STATE}"] = names.get_extra_state()
    if order is not None:
        state_dict[name] = in_order(state_dict[name], order)


def _words(counts: Mapping[EdgeType, int]) -> list[str]:
    return [" ".join(t) if count == 1 else f"{' '.join(t)} ({count} rows)" for t, count in counts.items()]


Norm = Literal["none", "layer"]
Residual = Literal["none", "add"]


@dataclass(frozen=True)
class LayerOptions:
    """Options shared by all layers of a model, validated on creation."""

    hidden: int = 256  # width of a layer's output
    dropout: float = 0.0
    norm: Norm = "none"
    residual: Residual = "none"  # "add": add the layer's input, if the widths are equal

    def __post_init__(self) -> None:
        if whole_number("hidden", self.hidden, most=LARGEST_WIDTH) < 1:
            raise ValueError(f"hidden {self.hidden}: must be at least 1")
        if not 0.0 <= real_number("dropout", self.dropout) < 1.0:
            raise ValueError(f"dropout {self.dropout}: must be at least 0 and below 1")
        check_word("norm", self.norm, Norm)
        check_word("residual", self.residual, Residual)


@dataclass(frozen=True)
class NormOptions:
    """Options of a model with dropout and norms, as set by a run."""

    # 0.2: labels of 4 sets score within 0.012 of the best of 0, 0.2 and 0.5 (benchmarks/link_defaults.py).
    dropout: Annotated[float, Ge(0), Lt(1), Default("0 for link-prediction")] = 0.2
    """Dropout probability of hidden layers"""
    norm: Norm = "none"
    """Normalization after each layer: none, or layer normalization (layer)"""


@dataclass(frozen=True)
class StackOptions(NormOptions):
    """Options of a model with residual connections, as set by a run."""

    unread: ClassVar[tuple[str, ...]] = ("bases",)

    residual: bool = False
    """Add the input of each layer to its output"""
    encoder: Literal["none", "linear"] = "none"
    """Layer between the input and the model's first layer: none, or a linear layer per node type (linear).
    gin always has a linear layer, and rgcn has one unless model.inputs is columns"""
    bases: Annotated[CountOrNone, Default("one matrix per edge type")] = 0
    """Number of basis matrices, of which the weights of rgcn's edge types are combinations. Set it, e.g. to
    8, for many edge types with few edges each"""

    def __post_init__(self) -> None:
        if self.bases and "bases" in self.unread:
            raise ValueError(f"bases is {self.bases}: only rgcn has bases; leave it out")

    @property
    def added(self) -> Residual:
        """The residual connections, in the form of the model's argument."""
        return "add" if self.residual else "none"


class LayerWeights(Protocol):
    """Parameters of one layer; models differ only in the types that share parameters."""

    def own_of(self, node_type: NodeType) -> Tensor | None:
        """Weight (out, in) for the destinations' rows; None if they have no rows."""
        ...

    def bias_of(self, node_type: NodeType) -> Tensor:
        """Bias (out)."""
        ...

    def by_edge_type(self) -> Mapping[EdgeType, Tensor]:
        """Weights (out, in) for the mean of in-neighbors, for every edge type that the layer follows."""
        ...

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """Normalization of the rows, or None."""
        ...


Total = Callable[[NodeType, Activation], Tensor]  # rows of a destination type, after the activation


class BlockLayer(nn.Module, ABC):
    """Layer norm(sum), then ReLU and dropout, over the destinations of a block; models differ in the sum.

    A subclass may set `activation` to "none" instead of ReLU.

    With the residual "add", the destinations' input rows are added if the widths are equal.
    """

    norm: nn.ModuleDict  # normalizations by parameter name of the destination type
    activation: Activation = "relu"

    def __init__(self, destinations: tuple[NodeType, ...], options: LayerOptions) -> None:
        super().__init__()
        self.destinations = destinations
        self.options = options

    @abstractmethod
    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that computes the sum of a destination type: (destinations, hidden)."""

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """Return the normalization of a destination type's sum, or None: by default from `norm`."""
        name = parameter_name(node_type)
        if name not in self.norm:
            return None
        return self.norm[name]

    def forward(self, h: Mapping[NodeType, Tensor], block: Block) -> dict[NodeType, Tensor]:
        """Return (destinations, hidden) per destination type."""
        total = self.totals(h, block)
        present = (node_type for node_type in self.destinations if node_type in block.dst_counts)
        return {node_type: self._finished(node_type, total, h.get(node_type)) for node_type in present}

    def _finished(self, node_type: NodeType, total: Total, rows: Tensor | None) -> Tensor:
        norm = self.norm_of(node_type)
        out = total(node_type, self.activation if norm is None else "none")
        if norm is not None:
            out = relu_(norm(out)) if self.activation == "relu" else norm(out)
        if self.training:
            out = dropout(out, self.options.dropout)
        if self.options.residual == "add" and rows is not None and rows.shape[1] == out.shape[1]:
            return out + rows[: out.shape[0]]
        return out


class Layer(BlockLayer):
    """Layer norm(W h + b + sum over edge types of W_e mean(h of the in-neighbors)), then ReLU and dropout.

    With the residual "add" and equal widths, h itself is added. Every parameter takes part in every batch:
    types without nodes, edge types without edges and edge types that a hop skipped have zero gradients.
    """

    weights: LayerWeights  # a module

    def __init__(
        self, weights: LayerWeights, destinations: tuple[NodeType, ...], options: LayerOptions
    ) -> None:
        super().__init__(destinations, options)
        self.weights = weights

    def norm_of(self, node_type: NodeType) -> nn.Module | None:
        """Return the normalization of the weights."""
        return self.weights.norm_of(node_type)

    def totals(self, h: Mapping[NodeType, Tensor], block: Block) -> Total:
        """Return a function that adds destination rows and aggregated in-neighbors, each times a weight."""
        weights, neighbors = self.weights, self.weights.by_edge_type()

        def total(node_type: NodeType, activation: Activation) -> Tensor:
            sums = LayerSum(block.dst_counts[node_type], weights.bias_of(node_type))
            own = weights.own_of(node_type)
            if own is not None:
                sums.add_own(h[node_type], own)
            for edge_type, weight in neighbors.items():
                if edge_type[2] == node_type:
                    sums.add_neighbors(h[edge_type[0]], block.adjacencies.get(edge_type), weight)
            return sums.total(activation)

        return total


def layer_norms(destinations: Iterable[NodeType], options: LayerOptions) -> nn.ModuleDict:
    """Make a normalization for each destination type, or none if the options say so."""
    normed = destinations if options.norm == "layer" else ()
    return nn.ModuleDict({parameter_name(t): nn.LayerNorm(options.hidden) for t in normed})


def linear_weight(outputs: int, inputs: int) -> nn.Parameter:
    """Make a weight with the initialization of torch's linear layer."""
    return nn.Parameter(nn.Linear(inputs, outputs, bias=False).weight)
