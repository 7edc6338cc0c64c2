"""The tables of a run that name a component: task, sampler, rule and model.

A table has the fields that all components of its family share. The options of a component are further
fields: `composed` makes the table of one component. khop's own components declare whole tables.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from khop.config.kinds import MODELS, OPTIMIZERS, RULES, SAMPLERS, TASKS
from khop.config.section import (
    LARGEST,
    Allowed,
    Count,
    CountOrNone,
    Default,
    Fanouts,
    KindOf,
    Section,
    Text,
    Window,
)


class TaskTable(Section):
    """The prediction task of the model."""

    kind: Annotated[str, KindOf(TASKS)] = "node-classification"
    """Prediction task: node-classification, node-regression, multi-label, edge-classification,
    edge-regression, link-prediction, or package.module:Class"""
    target: Annotated[str | None, Field(min_length=1), Default("the only one of the graph")] = None
    """Node type to classify, or edge type to predict, such as "user buys item" (three words); link-prediction
    takes several, separated by commas"""
    label: Annotated[str | None, Field(min_length=1), Default("its only column that fits the task")] = None
    """Label column of the target node type or edge type"""
    metric: Annotated[str | None, Field(min_length=1), Default("the first one of the task")] = None
    """Metric of evaluation"""
    train_split: Text = "train"
    """Split with the nodes to train on"""
    val_split: Text = "val"
    """Split that selects the best checkpoint"""
    test_split: Text = "test"
    """Split that is evaluated, but selects nothing"""


class BuiltinTask(TaskTable):
    """The prediction task of the model."""

    metric: Annotated[
        str | None,
        Field(
            pattern=r"^(accuracy|f1-macro|f1-micro|roc-auc|average-precision|mrr|"
            r"(hits|recall|ndcg)@[1-9][0-9]{0,17})$"
        ),
        Allowed(
            "one of accuracy, f1-macro, f1-micro, roc-auc, average-precision, mrr, and hits@K, recall@K and "
            "ndcg@K for a whole number K"
        ),
        Default("accuracy for nodes, mrr for links"),
    ] = None
    """Metric of evaluation; for nodes accuracy, f1-macro, f1-micro, roc-auc or average-precision, for links
    roc-auc, average-precision, mrr, or hits, recall or ndcg among the first K, such as hits@50"""


class ClassificationTable(BuiltinTask):
    """The prediction task of the model."""

    loss: Literal["cross-entropy", "focal"] = "cross-entropy"
    """Loss of a node or edge: cross-entropy, or focal loss, which weighs those with a certain class less"""
    gamma: Annotated[float, Field(ge=0, lt=1000)] = 2.0
    """Exponent of focal loss"""
    class_weights: Annotated[Literal["none", "balanced"], Default("none")] = "none"
    """Weights of the classes in the loss: none, or inverse to their counts in training (balanced)"""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target that is spread over all classes"""


class EdgeClassificationTable(ClassificationTable):
    """The prediction task of the model."""

    classes: Annotated[Count | None, Default("one more than the largest label")] = None
    """Number of classes of the edges' labels"""


class RegressionTable(TaskTable):
    """The prediction task of the model."""

    metric: Annotated[Literal["rmse", "mae", "r2"] | None, Default("rmse")] = None
    """Metric of evaluation"""
    loss: Literal["mse", "mae"] = "mse"
    """Error that training minimizes: squared (mse) or absolute (mae)"""
    standardize: Literal["train", "none"] = "train"
    """Train on labels with mean 0 and deviation 1 over the training split; outputs keep the label's unit"""


class MultiLabelTable(TaskTable):
    """The prediction task of the model."""

    metric: Annotated[
        Literal["f1-micro", "f1-macro", "roc-auc", "average-precision"] | None, Default("f1-micro")
    ] = None
    """Metric of evaluation"""


class RuleTable(Section):
    """The rule that draws neighbors, in place of replacement and weight."""

    option_prefix = "rule-"

    kind: Annotated[
        str, KindOf(RULES), Default("that of the model, else uniform, or weighted if sampler.weight is set")
    ]
    """Rule that draws neighbors: uniform, weighted, sum, symmetric-sum, relation-mean, labor, top-k, or
    package.module:Class"""


class SamplerTable(Section):
    """Sampling of neighborhoods."""

    kind: Annotated[str | None, KindOf(SAMPLERS), Default("neighbor: draws per hop")] = None
    """Sampler of training batches: neighbor, saint-node, saint-edge, saint-walk, cluster, shadow, or
    package.module:Class"""
    fanouts: Annotated[Fanouts, Field(min_length=1)] = (15, 10)
    """Neighbors drawn per node, one number per hop; the first is the hop at the seeds"""
    replacement: bool = False
    """Draw neighbors with replacement"""
    expansion: Literal["layered", "subgraph"] = "layered"
    """Nodes that a hop expands: all nodes so far (layered, as DGL), or only new nodes (subgraph, as PyG)"""
    weight: Annotated[str | None, Field(min_length=1), Default("uniform draws")] = None
    """Edge column of weights; neighbors are drawn in proportion to them; without replacement, means are
    biased unless all weights of a row are equal or 0"""
    time: Annotated[str | None, Field(min_length=1), Default("no time limit")] = None
    """Column of times of seeds and of edges or nodes; neighbors later than the seed are not drawn"""
    temporal_strategy: Literal["sample", "latest"] = "sample"
    """Neighbors drawn if a time column is set: a sample of the allowed ones, or the latest of them"""
    window: Annotated[Window, Default("all earlier times")] = None
    """Range of times before the seed, if a time column is set: BEFORE,AFTER, such as 86400,0 for a day"""
    rule: RuleTable | None = None

    layers_are_hops: ClassVar[bool] = True  # a batch has a block per entry of `fanouts`

    @model_validator(mode="after")
    def _has_one_rule(self) -> SamplerTable:
        if self.rule is not None and (self.weight is not None or self.replacement):
            raise ValueError(
                f"sampler.rule is {self.rule.kind!r}: it draws in place of sampler.weight and "
                "sampler.replacement; leave these out"
            )
        return self


class GroupsTable(SamplerTable):
    """Sampling of groups of nodes, each with all edges among them."""

    layers_are_hops: ClassVar[bool] = False

    groups_per_step: Count = 1
    """Groups per optimizer step, over all processes, in place of training.batch_size"""


class SaintTable(GroupsTable):
    """GraphSAINT's sampling of subgraphs."""

    groups_per_epoch: Annotated[CountOrNone, Default("nodes of the graph over nodes of a subgraph")] = 0
    """Subgraphs per epoch"""
    coverage: Count = 50
    """Presampled nodes that normalize edges and losses, over the nodes of the graph"""


class SaintSizeTable(SaintTable):
    """GraphSAINT's sampling of subgraphs by nodes or by edges."""

    subgraph_draws: Count = 2000
    """Nodes (saint-node) or edges (saint-edge) drawn for a subgraph"""


class SaintWalkTable(SaintTable):
    """GraphSAINT's sampling of subgraphs by random walks."""

    walk_roots: Count = 1000
    """Random walks of a subgraph"""
    walk_length: Count = 2
    """Steps of a walk"""


class ClusterTable(GroupsTable):
    """Cluster-GCN's sampling of clusters."""

    cluster_column: Text = "cluster"
    """Node column of clusters, as `khop graph cluster` writes it"""
    clusters_per_group: Count = 1
    """Clusters whose nodes form a subgraph"""


class ShadowTable(GroupsTable):
    """ShaDow's sampling of subgraphs around seeds."""

    seeds_per_group: Count = 1
    """Seeds that share a subgraph; 1: each seed has its own"""


class _Widths(Section):
    kind: Annotated[str, KindOf(MODELS)] = "sage"
    """Network: GraphSAGE with mean aggregation (sage), graph convolutions (gcn), relational GCN (rgcn), graph
    attention (gat), graph isomorphism (gin), heterogeneous graph transformer (hgt), LightGCN (lightgcn), or
    package.module:Class"""
    hidden: Count = 256
    """Width of the hidden layers"""
    layers: Annotated[int | None, Field(ge=1, le=LARGEST), Default("one per fanout")] = None
    """Number of layers"""


class _Norm(_Widths):
    dropout: Annotated[float, Field(ge=0, lt=1), Default("0 for link-prediction")] = 0.5
    """Dropout probability of hidden values"""
    norm: Literal["none", "layer"] = "none"
    """Normalization after each layer"""


class _Regularization(_Norm):
    residual: bool = False
    """Add the input of each layer to its output"""


class ModelTable(_Widths):
    """The network."""

    column: Text = "x"
    """Input column, of all node types that have it"""
    embedding: Annotated[int | None, Field(ge=0, le=LARGEST), Default("an error for these types")] = None
    """Width of trained embeddings for node types without the input column; 0: no input for these types"""
    embedded_types: Literal["missing", "others", "all"] = "missing"
    """Node types with embeddings: those without the input column (missing), those of them that are not the
    target (others), or all, beside the column"""
    unknown: Annotated[float, Field(ge=0, lt=1), Default("no such row")] = 0.0
    """Probability that a training step reads the row `unknown` in place of a node's embedding; new nodes then
    have this row, e.g. 0.05"""
    embedding_update: Literal["dense", "sparse", "sharded"] = "dense"
    """Update of embeddings: all rows (dense), only the rows of the batch (sparse), or the same with each row
    stored on one process (sharded)"""


class StackTable(ModelTable, _Regularization):
    """The network."""

    encoder: Literal["none", "linear"] = "none"
    """Layer before the first layer: none, or linear for each node type. No effect for gin, which always has
    it, and for rgcn, which has it unless model.inputs is columns"""
    bases: Annotated[CountOrNone, Default("one matrix per edge type")] = 0
    """Basis matrices that the edge types of rgcn share"""


class RgcnTable(StackTable):
    """The network."""

    relation: Annotated[str | None, Field(min_length=1), Default("each edge type is one relation")] = None
    """Edge column with relations, whole numbers from 0 on, of all edge types that have it"""
    inputs: Literal["encoded", "columns"] = "encoded"
    """Input of the first layer of rgcn: a linear layer of the column for each node type (encoded), or the
    column itself, of one width for all node types (columns)"""


class SageTable(StackTable):
    """The network."""

    @model_validator(mode="after")
    def _has_no_bases(self) -> SageTable:
        if self.bases:
            raise ValueError(
                f"model.bases is {self.bases}, model.kind is {self.kind!r}: only rgcn has bases; "
                "leave one of them out"
            )
        return self


class GatTable(SageTable):
    """The network."""

    heads: Count = 4
    """Attention heads of gat and hgt, which share the hidden width"""
    attention: Literal["gat", "gatv2"] = "gat"
    """Scores of gat: of its paper, or of GATv2, which may rank neighbors differently for each node"""
    edge_column: Annotated[str | None, Field(min_length=1), Default("scores of nodes alone")] = None
    """Edge column of numbers that the scores also depend on, of all edge types that have it"""


class HgtTable(ModelTable, _Norm):
    """The network."""

    heads: Count = 4
    """Attention heads of gat and hgt, which share the hidden width"""


class OptimizerTable(Section):
    """The optimizer of the weights; learning rate, schedule and weight decay are in the table training."""

    kind: Annotated[str, KindOf(OPTIMIZERS)] = "adam"
    """Optimizer: adam, adamw, nadam, radam, sgd, rmsprop, adagrad, another class of torch.optim as
    torch.optim:Adamax, or package.module:Class"""
    clip_norm: Annotated[float, Field(ge=0, le=1e30), Default("no limit")] = 0.0
    """Largest norm of the gradients of a step, over all weights, embeddings and processes; 0: no limit"""
