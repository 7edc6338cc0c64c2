"""The declarations of khop's own models, tasks, samplers and rules. Imports no torch.

The declarations of torch's optimizers for runs. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from khop.components import ImportedLater
from khop.run.tables import (
    BuiltinTask,
    ClassificationTable,
    ClusterTable,
    Default,
    EdgeClassificationTable,
    GatTable,
    HgtTable,
    ModelTable,
    MultiLabelTable,
    RegressionTable,
    RgcnTable,
    SageTable,
    SaintSizeTable,
    SaintWalkTable,
    SamplerTable,
    ShadowTable,
)


class Sage:
    """GraphSAGE."""

    Options = SageTable
    build = ImportedLater("khop.run.build_components:sage")


class Rgcn:
    """Relational GCN."""

    Options = RgcnTable
    build = ImportedLater("khop.run.build_components:rgcn")


class Gat:
    """Graph attention network."""

    Options = GatTable
    build = ImportedLater("khop.run.build_components:gat")


class Gin:
    """Graph isomorphism network."""

    Options = SageTable
    build = ImportedLater("khop.run.build_components:gin")
    rule = "sum"


class Gcn:
    """Graph convolutional network."""

    Options = SageTable
    build = ImportedLater("khop.run.build_components:gcn")
    rule = "symmetric-sum"


class Hgt:
    """Heterogeneous graph transformer."""

    Options = HgtTable
    build = ImportedLater("khop.run.build_components:hgt")


class LightGcn:
    """LightGCN."""

    Options = ModelTable
    build = ImportedLater("khop.run.build_components:light_gcn")
    rule = "symmetric-sum"


class NodeClassification:
    """One class per node of a type."""

    Options = ClassificationTable
    build = ImportedLater("khop.run.tasks.node_task:node_classification")
    resolve = ImportedLater("khop.run.tasks.resolve_task:resolved_node_task")


class NodeRegression:
    """Numbers per node of a type."""

    Options = RegressionTable
    build = ImportedLater("khop.run.tasks.node_task:node_regression")
    resolve = ImportedLater("khop.run.tasks.resolve_task:resolved_regression")


class MultiLabel:
    """Any number of labels per node of a type."""

    Options = MultiLabelTable
    build = ImportedLater("khop.run.tasks.node_task:multi_label")
    resolve = ImportedLater("khop.run.tasks.resolve_task:resolved_multi_label")


class EdgeClassification:
    """One class per edge of a type."""

    Options = EdgeClassificationTable
    build = ImportedLater("khop.run.tasks.edge_run_task:edge_classification")
    resolve = ImportedLater("khop.run.tasks.resolve_task:resolved_edge_classification")


class EdgeRegression:
    """Numbers per edge of a type."""

    Options = RegressionTable
    build = ImportedLater("khop.run.tasks.edge_run_task:edge_regression")
    resolve = ImportedLater("khop.run.tasks.resolve_task:resolved_edge_regression")


class LinkPrediction:
    """Scores of the links of an edge type."""

    Options = BuiltinTask
    build = ImportedLater("khop.run.tasks.link_run_task:link_prediction")
    resolve = ImportedLater("khop.run.tasks.resolve_task:resolved_link_task")


class Neighbor:
    """Draws of neighbors per hop."""

    Options = SamplerTable
    build = ImportedLater("khop.run.build_components:neighbor")


class SaintNode:
    """GraphSAINT's subgraphs of drawn nodes."""

    Options = SaintSizeTable
    build = ImportedLater("khop.run.build_components:saint_node")


class SaintEdge:
    """GraphSAINT's subgraphs of drawn edges."""

    Options = SaintSizeTable
    build = ImportedLater("khop.run.build_components:saint_edge")


class SaintWalk:
    """GraphSAINT's subgraphs of random walks."""

    Options = SaintWalkTable
    build = ImportedLater("khop.run.build_components:saint_walk")


class Cluster:
    """Cluster-GCN's subgraphs of clusters."""

    Options = ClusterTable
    build = ImportedLater("khop.run.build_components:cluster")


class Shadow:
    """ShaDow's subgraphs around seeds."""

    Options = ShadowTable
    build = ImportedLater("khop.run.build_components:shadow")


@dataclass(frozen=True)
class UniformOptions:
    """Options of uniform draws."""

    replacement: bool = False
    """Draw neighbors with replacement"""


class Uniform:
    """Uniform draws."""

    Options = UniformOptions
    build = ImportedLater("khop.run.build_components:uniform")


@dataclass(frozen=True)
class WeightedOptions:
    """Options of draws by weight."""

    column: Annotated[str, Field(min_length=1)]
    """Edge column of weights"""
    replacement: bool = False
    """Draw neighbors with replacement; without it, means are biased unless all weights of a row are equal or
    0"""


@dataclass(frozen=True)
class SumOptions:
    """Options of draws that estimate sums."""

    column: str = ""
    """Edge column to draw by: weights, or values for top-k (default: uniform draws)"""
    replacement: bool = False
    """Draw neighbors with replacement; draws by weight without it are biased"""
    inner: Annotated[
        Literal["uniform", "weighted", "labor", "top-k"] | None,
        Default("uniform, or weighted if column is set"),
    ] = None
    """Rule that draws the neighbors of a sum: uniform, weighted, labor or top-k"""
    layer_dependent: bool = False
    """Use the same numbers of labor in all hops: fewer nodes, but biased over several layers"""
    kappa: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] = 1
    """Steps for which a node keeps its number of labor"""

    def __post_init__(self) -> None:
        by_column = self.inner in ("weighted", "top-k")
        if by_column and not self.column:
            raise ValueError(f"inner is {self.inner!r} and column is not set: give the column to draw by")
        given = {
            "column": bool(self.column) and not (by_column or self.inner is None),
            "replacement": self.replacement and self.inner in ("labor", "top-k"),
            "layer_dependent": self.layer_dependent and self.inner != "labor",
            "kappa": self.kappa > 1 and self.inner != "labor",
        }
        for name in (name for name, is_unread in given.items() if is_unread):
            inner = self.inner or "not set"
            raise ValueError(
                f"{name} is {getattr(self, name)!r} and inner is {inner}: it does not read {name}"
            )


class Sum:
    """Draws weighted so that layers sum over all neighbors."""

    Options = SumOptions
    build = ImportedLater("khop.run.build_components:summing")


class SymmetricSum:
    """Draws weighted so that layers sum over all neighbors, normalized by degrees."""

    Options = SumOptions
    build = ImportedLater("khop.run.build_components:symmetric_sum")


@dataclass(frozen=True)
class RelationMeanOptions:
    """Options of draws that estimate means by relation."""

    column: Annotated[str, Field(min_length=1)]
    """Edge column of relations"""
    inner: Literal["uniform", "labor"] = "uniform"
    """Rule that draws the neighbors"""


class RelationMean:
    """Draws weighted so that layers average all neighbors of each relation."""

    Options = RelationMeanOptions
    build = ImportedLater("khop.run.build_components:relation_mean")


@dataclass(frozen=True)
class LaborOptions:
    """Options of draws by numbers that all rows of a batch share."""

    layer_dependent: bool = False
    """Use the same numbers in all hops: fewer nodes, but biased over several layers"""
    kappa: Annotated[int, Field(ge=1, le=(1 << 31) - 1)] = 1
    """Steps for which a node keeps its number; above 1, successive batches share nodes"""


class Labor:
    """Uniform draws by numbers that all rows of a batch share."""

    Options = LaborOptions
    build = ImportedLater("khop.run.build_components:labor")


@dataclass(frozen=True)
class TopKOptions:
    """Options of the neighbors with the largest values."""

    column: Annotated[str, Field(min_length=1)]
    """Edge column of values"""


class TopK:
    """The neighbors with the largest values of a column."""

    Options = TopKOptions
    build = ImportedLater("khop.run.build_components:top_k")


class Weighted:
    """Draws in proportion to a column of weights."""

    Options = WeightedOptions
    build = ImportedLater("khop.run.build_components:weighted")


Share = Annotated[float, Field(ge=0, lt=1)]
Least = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class AdamOptions:
    """Options of optimizers with two moments."""

    beta1: Share = 0.9
    """Decay of the mean of gradients"""
    beta2: Share = 0.999
    """Decay of the mean of squared gradients"""
    eps: Least = 1e-8
    """Number added to the divisor"""


@dataclass(frozen=True)
class AmsgradOptions(AdamOptions):
    """Options of Adam."""

    amsgrad: bool = False
    """Divide by the largest mean of squared gradients so far"""


@dataclass(frozen=True)
class SgdOptions:
    """Options of gradient descent."""

    momentum: Share = 0.0
    """Momentum"""
    dampening: Least = 0.0
    """Dampening of the momentum"""
    nesterov: bool = False
    """Momentum of Nesterov"""


@dataclass(frozen=True)
class RmspropOptions:
    """Options of RMSprop."""

    alpha: Share = 0.99
    """Decay of the mean of squared gradients"""
    eps: Least = 1e-8
    """Number added to the divisor"""
    momentum: Share = 0.0
    """Momentum"""
    centered: bool = False
    """Divide by the deviation of gradients"""


@dataclass(frozen=True)
class AdagradOptions:
    """Options of Adagrad."""

    lr_decay: Least = 0.0
    """Decay of the learning rate"""
    initial_accumulator_value: Least = 0.0
    """First sum of squared gradients"""
    eps: Least = 1e-10
    """Number added to the divisor"""


class Adam:
    """Adam."""

    Options = AmsgradOptions
    build = ImportedLater("khop.run.build_components:adam")


class AdamW:
    """Adam with decoupled weight decay."""

    Options = AmsgradOptions
    build = ImportedLater("khop.run.build_components:adamw")


class NAdam:
    """Adam with momentum of Nesterov."""

    Options = AdamOptions
    build = ImportedLater("khop.run.build_components:nadam")


class RAdam:
    """Rectified Adam."""

    Options = AdamOptions
    build = ImportedLater("khop.run.build_components:radam")


class Sgd:
    """Stochastic gradient descent."""

    Options = SgdOptions
    build = ImportedLater("khop.run.build_components:sgd")


class Rmsprop:
    """RMSprop."""

    Options = RmspropOptions
    build = ImportedLater("khop.run.build_components:rmsprop")


class Adagrad:
    """Adagrad."""

    Options = AdagradOptions
    build = ImportedLater("khop.run.build_components:adagrad")
