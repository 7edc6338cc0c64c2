"""The tables of a run that name a component: task, sampler, rule and model.

A table has the fields that all components of its family share. The options of a component are further
fields: `composed` makes the table of one component. khop's own components declare whole tables.

The base of the tables of a run, and the types of their fields.

The families of components that a run names. Loads none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from khop.arguments import as_mapping
from khop.components import Family
from khop.loading.device.device_placement import CacheSize, byte_size


@dataclass(frozen=True)
class Allowed:
    """The allowed values of a field in words, if its type and limits do not say it."""

    words: str


@dataclass(frozen=True)
class Alias:
    """An alternative name of a field's option."""

    option: str


@dataclass(frozen=True)
class OptionName:
    """The name of a field's option, if it is not made from the field's path."""

    option: str


@dataclass(frozen=True)
class Default:
    """The meaning of a field's default in words, if its value does not say it."""

    words: str


@dataclass(frozen=True)
class KindOf:
    """The field names a component of a family: its kinds are the allowed values."""

    family: Family


Fanout = int | dict[str, int]  # for all edge types, or by edge type name or pattern


LARGEST = 2**31 - 1  # largest count: the product of any two counts fits the integers of the native core
LARGEST_BYTES = 2**63 - 1


def _fanouts_in_range(fanouts: tuple[Fanout, ...]) -> tuple[Fanout, ...]:
    for fanout in fanouts:
        by_type = as_mapping(fanout, lambda number: {"*": number})
        if not all(-1 <= number <= LARGEST for number in by_type.values()):
            raise ValueError("a fanout out of range")
    return fanouts


def _bytes(value: object) -> object:
    return byte_size(value, "bytes") if isinstance(value, str) else value


def _cache(value: object) -> object:
    return str(CacheSize.of(value)) if isinstance(value, str | int) and not isinstance(value, bool) else value


# TOML and options give a list, so the tuple is not strict; the numbers in it are.
Fanouts = Annotated[
    tuple[Fanout, ...],
    Field(strict=False),
    AfterValidator(_fanouts_in_range),
    Allowed(
        "a list of whole numbers, one per hop: neighbors per node, -1 for all, 0 for none, at most "
        '2147483647; or, for a hop, a table of them by edge type, as {"user buys item" = 5, "*" = 2}'
    ),
]
Window = Annotated[
    tuple[Annotated[int, Field(ge=-(2**63), lt=2**63)], ...] | None,
    Field(strict=False, min_length=2, max_length=2),
    Allowed(
        "two whole numbers [before, after], in the unit of the times, after 0 or less: [86400, 0] is a day"
    ),
]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
CountOrNone = Annotated[int, Field(ge=0, le=LARGEST)]
Threads = Annotated[int, Field(ge=0, le=1024)]
Bytes = Annotated[
    int,
    Field(ge=1, le=LARGEST_BYTES),
    BeforeValidator(_bytes),
    Allowed('bytes, as 500000000, "500MB" or "2GiB", at least 1'),
]
BytesOrNone = Annotated[
    int,
    Field(ge=0, le=LARGEST_BYTES),
    BeforeValidator(_bytes),
    Allowed('bytes, as 500000000, "500MB" or "2GiB", 0 for none'),
]

CacheText = Annotated[
    str,
    BeforeValidator(_cache),
    Allowed('bytes, as "4GB", or a share of the input columns, as "20%"; 0 for none'),
]


def plain_type(annotation: Any) -> Any:  # noqa: ANN401
    """Return a field's type without None and without the limits of `Annotated`; a union of types as it is."""
    while True:
        members = [each for each in get_args(annotation) if each is not NoneType]
        if get_origin(annotation) is Annotated:
            annotation = members[0]
        elif get_origin(annotation) in (UnionType, Union) and len(members) == 1:
            (annotation,) = members
        else:
            return annotation


def metadata_of(annotation: Any) -> list[object]:  # noqa: ANN401
    """Return the limits in `Annotated`, also those of a type that may be None."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        limits = [limit for item in metadata if isinstance(item, FieldInfo) for limit in item.metadata]
        return [*metadata, *limits, *metadata_of(inner)]
    is_union = get_origin(annotation) in (UnionType, Union)
    return [item for member in get_args(annotation) if is_union for item in metadata_of(member)]


class Section(BaseModel):
    """A table of run.toml. Values are never converted: "3" is not a number, and 3.0 is not a whole number."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,
    )
    option_prefix: ClassVar[str] = ""  # prefix of the option names, if another table uses the plain names


MODELS = Family(
    "khop.models",
    {
        "sage": "khop.run.builtin:Sage",
        "rgcn": "khop.run.builtin:Rgcn",
        "gat": "khop.run.builtin:Gat",
        "gin": "khop.run.builtin:Gin",
        "gcn": "khop.run.builtin:Gcn",
        "hgt": "khop.run.builtin:Hgt",
        "lightgcn": "khop.run.builtin:LightGcn",
    },
)
LINK_PREDICTION = "link-prediction"
TASKS = Family(
    "khop.tasks",
    {
        "node-classification": "khop.run.builtin:NodeClassification",
        "node-regression": "khop.run.builtin:NodeRegression",
        "multi-label": "khop.run.builtin:MultiLabel",
        "edge-classification": "khop.run.builtin:EdgeClassification",
        "edge-regression": "khop.run.builtin:EdgeRegression",
        LINK_PREDICTION: "khop.run.builtin:LinkPrediction",
    },
)
SAMPLERS = Family(
    "khop.samplers",
    {
        "neighbor": "khop.run.builtin:Neighbor",
        "saint-node": "khop.run.builtin:SaintNode",
        "saint-edge": "khop.run.builtin:SaintEdge",
        "saint-walk": "khop.run.builtin:SaintWalk",
        "cluster": "khop.run.builtin:Cluster",
        "shadow": "khop.run.builtin:Shadow",
    },
)
RULES = Family(
    "khop.rules",
    {
        "uniform": "khop.run.builtin:Uniform",
        "weighted": "khop.run.builtin:Weighted",
        "sum": "khop.run.builtin:Sum",
        "symmetric-sum": "khop.run.builtin:SymmetricSum",
        "relation-mean": "khop.run.builtin:RelationMean",
        "labor": "khop.run.builtin:Labor",
        "top-k": "khop.run.builtin:TopK",
    },
)
OPTIMIZERS = Family(
    "khop.optimizers",
    {
        "adam": "khop.run.builtin:Adam",
        "adamw": "khop.run.builtin:AdamW",
        "nadam": "khop.run.builtin:NAdam",
        "radam": "khop.run.builtin:RAdam",
        "sgd": "khop.run.builtin:Sgd",
        "rmsprop": "khop.run.builtin:Rmsprop",
        "adagrad": "khop.run.builtin:Adagrad",
    },
    "khop.run.build_components:component_of_class",
)
# By the path of its table: the family, and the kind of a table that names none.
FAMILIES = {
    "task": (TASKS, "node-classification"),
    "sampler": (SAMPLERS, "neighbor"),
    "sampler.rule": (RULES, None),
    "model": (MODELS, "sage"),
    "optimizer": (OPTIMIZERS, "adam"),
}
# By the path of its table: the object that a component builds, and methods by which it is known.
MADE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "task": ("khop.run.contexts.RunTask", ("loader", "scores")),
    "sampler": ("khop.Sampler", ("sample", "needs", "with_threads")),
    "sampler.rule": ("khop.Rule", ("plan", "check", "needs", "most")),
    "model": ("torch.nn.Module", ("forward", "state_dict")),
    "optimizer": ("khop.OptimizerSettings", ()),  # its type is checked
}


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
