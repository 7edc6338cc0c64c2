"""Base class of the tables of a run, and the tables that name a component: task, sampler, rule, model.

A table has the fields that all components of its family share. `composed` adds the options of one component.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from khop.arguments import as_mapping
from khop.components import (
    LARGEST,
    LINK_LOSSES,
    MODELS,
    OPTIMIZERS,
    RULES,
    SAMPLERS,
    TASKS,
    Allowed,
    Count,
    Default,
    Family,
    Text,
)
from khop.loading.device.device_placement import CacheSize, byte_size
from khop.run.fields import Fanout


@dataclass(frozen=True)
class Alias:
    """An alternative name of a field's option."""

    option: str


@dataclass(frozen=True)
class OptionName:
    """The name of a field's option, if it is not made from the field's path."""

    option: str


@dataclass(frozen=True)
class KindOf:
    """The field names a component of a family: its kinds are the allowed values."""

    family: Family


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
        "two whole numbers [before, after] in the unit of the times, after at most 0: in seconds, [86400, 0] "
        "is a day"
    ),
]
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
    """Return the metadata of `Annotated`, also within an optional type."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        limits = [limit for item in metadata if isinstance(item, FieldInfo) for limit in item.metadata]
        return [*metadata, *limits, *metadata_of(inner)]
    is_union = get_origin(annotation) in (UnionType, Union)
    return [item for member in get_args(annotation) if is_union for item in metadata_of(member)]


class Section(BaseModel):
    """A table of run.toml. Values are never converted: "3" is not a number, and 3.0 is not an integer."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,
    )
    option_prefix: ClassVar[str] = (
        ""  # prefix of the option names, if another table has options of the same names
    )


class TaskTable(Section):
    """The prediction task of the model."""

    kind: Annotated[str, KindOf(TASKS)] = TASKS.default
    """Prediction task: {kinds}, or package.module:Class"""
    target: Annotated[str | None, Field(min_length=1), Default("the graph's only one")] = None
    """Node type to classify, or edge type to predict, such as "user buys item". For link-prediction, several
    edge types are separated by commas"""
    label: Annotated[str | None, Field(min_length=1), Default("its only column that fits the task")] = None
    """Column of the target with the labels"""
    metric: Annotated[str | None, Field(min_length=1), Default("the first one of the task")] = None
    """Metric of evaluation"""
    train_split: Text = "train"
    """Split to train on"""
    val_split: Text = "val"
    """Split whose score selects the best checkpoint"""
    test_split: Text = "test"
    """Split for the final score, which does not influence training"""


class RuleTable(Section):
    """The sampling rule, instead of replacement and weight."""

    option_prefix = "rule-"

    kind: Annotated[
        str, KindOf(RULES), Default("that of the model, else uniform, or weighted if sampler.weight is set")
    ]
    """Sampling rule, which selects the neighbors: {kinds}, or package.module:Class"""


class LossTable(Section):
    """The loss of link prediction."""

    option_prefix = "link-"

    kind: Annotated[str, KindOf(LINK_LOSSES), OptionName("--link-loss")] = LINK_LOSSES.default
    """Loss of link prediction: {kinds}, or package.module:Class"""


class SamplerTable(Section):
    """Sampling of neighborhoods."""

    kind: Annotated[str | None, KindOf(SAMPLERS), Default("neighbor: samples hop by hop")] = None
    """Sampler of training batches: {kinds}, or package.module:Class"""
    fanouts: Annotated[Fanouts, Field(min_length=1)] = (15, 10)
    """Number of neighbors per node, one number per hop. The first number is for the seeds"""
    replacement: bool = False
    """Sample neighbors with replacement. A neighbor can then occur several times"""
    expansion: Literal["layered", "subgraph"] = "layered"
    """Expand all nodes sampled so far in each hop (layered, as in DGL), or only new nodes (subgraph, as in
    PyG). With layered, the output of a node does not depend on the other seeds of its batch"""
    weight: Annotated[str | None, Field(min_length=1), Default("uniform sampling")] = None
    """Edge column with sampling weights. Without replacement, means are biased unless all positive weights of
    a node's edges are equal"""
    time: Annotated[str | None, Field(min_length=1), Default("no time limit")] = None
    """Column with the times of seeds, and of edges or nodes. Neighbors later than their seed are not
    sampled"""
    temporal_strategy: Literal["sample", "latest"] = "sample"
    """Sample random earlier neighbors (sample), or take the latest ones (latest), if sampler.time is set"""
    window: Annotated[Window, Default("all earlier times")] = None
    """Sample only edges with times from limit - BEFORE to limit + AFTER: BEFORE,AFTER. If times are in
    seconds, 86400,0 is the day before the limit. Needs sampler.time"""
    temporal_limit: Literal["seed", "edge"] = "seed"
    """Time up to which a node's edges are sampled: that of its seed (seed), or that of the edge that led to
    it (edge, as in TGAT and TGN)"""
    rule: RuleTable | None = None

    @property
    def layers_are_hops(self) -> bool:
        """True if a batch has a block per entry of `fanouts`; False for groups of nodes."""
        return not hasattr(self, "groups_per_step")

    @model_validator(mode="after")
    def _has_one_rule(self) -> SamplerTable:
        if self.rule is not None and (self.weight is not None or self.replacement):
            raise ValueError(
                f"sampler.rule is {self.rule.kind!r}: it replaces sampler.weight and sampler.replacement; "
                "leave these out"
            )
        return self


class ModelTable(Section):
    """The model."""

    kind: Annotated[str, KindOf(MODELS)] = MODELS.default
    """Model: {kinds}, or package.module:Class"""
    hidden: Count = 256
    """Width of the hidden layers"""
    layers: Annotated[int | None, Field(ge=1, le=LARGEST), Default("one per fanout")] = None
    """Number of layers"""
    column: Text = "x"
    """Node column that the model reads, in all node types that have it"""
    embedding: Annotated[int | None, Field(ge=0, le=LARGEST), Default("an error for such types")] = None
    """Width of trained embeddings for node types without the input column. With 0, these types have no input
    and only pass on messages"""
    embedded_types: Literal["missing", "others", "all"] = "missing"
    """Train embeddings for node types without the input column (missing), for these types except the target
    (others), or for all types in addition to the input column (all)"""
    unknown: Annotated[float, Field(ge=0, lt=1), Default("no shared embedding")] = 0.0
    """Probability with which a training step replaces a node's embedding by the shared embedding `unknown`,
    e.g. 0.05. Nodes that are added after training use this embedding"""
    embedding_update: Literal["dense", "sparse", "sharded"] = "dense"
    """Update all embeddings in each step (dense), or only those of the batch (sparse). sharded also updates
    only those of the batch, and divides the table among processes. For large tables, sparse is faster than
    dense"""


class OptimizerTable(Section):
    """The optimizer of the weights; learning rate, schedule and weight decay are in the table training."""

    kind: Annotated[str, KindOf(OPTIMIZERS)] = OPTIMIZERS.default
    """Optimizer: {kinds}, another class of torch.optim as
    torch.optim:Adamax, or package.module:Class"""
    clip_norm: Annotated[float, Field(ge=0, le=1e30), Default("no limit")] = 0.0
    """Maximum norm of the gradients of all weights and embeddings, over all processes. Gradients with a
    larger norm are scaled down"""
