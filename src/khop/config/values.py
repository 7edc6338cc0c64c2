"""The settings of a run: the single source of TOML keys, options, help texts and limits.

The string below a field is its help text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from khop.loading.byte_size import byte_size


@dataclass(frozen=True)
class Allowed:
    """The allowed values of a field in words, if its type and limits do not say it."""

    words: str


@dataclass(frozen=True)
class Alias:
    """An alternative name of a field's option."""

    option: str


Fanout = int | dict[str, int]  # for all edge types, or by edge type name or pattern


LARGEST = 2**31 - 1  # largest count: the product of any two counts fits the integers of the native core
LARGEST_BYTES = 2**63 - 1


def _fanouts_in_range(fanouts: tuple[Fanout, ...]) -> tuple[Fanout, ...]:
    for fanout in fanouts:
        numbers = fanout.values() if isinstance(fanout, dict) else (fanout,)
        if not all(-1 <= number <= LARGEST for number in numbers):
            raise ValueError("a fanout out of range")
    return fanouts


def _bytes(value: object) -> object:
    return byte_size(value, "bytes") if isinstance(value, str) else value


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


class Task(Section):
    """The prediction task of the model."""

    kind: Literal["node-classification", "link-prediction"] = "node-classification"
    """what is learnt"""
    target: Annotated[str | None, Field(min_length=1)] = None
    """node type to classify, or edge type to predict, as "user buys item"; default: the only one there is"""
    label: Annotated[str | None, Field(min_length=1)] = None
    """its label column; default: the one column with classes"""
    metric: (
        Literal["accuracy", "f1-macro", "f1-micro", "roc-auc", "average-precision", "mrr", "hits@10"] | None
    ) = None
    """what evaluation measures: of nodes not mrr and hits@10, by default accuracy; of links none of the first
    three, by default mrr"""
    train_split: Text = "train"
    """split whose nodes are learnt from"""
    val_split: Text = "val"
    """split that chooses the best checkpoint"""
    test_split: Text = "test"
    """split that is only measured"""


class Links(Section):
    """Links for link prediction: decoder, loss, negatives and held-out shares."""

    option_prefix: ClassVar[str] = "link-"

    decoder: Literal["dot", "mlp", "distmult"] = "dot"
    """what makes a score of two nodes' rows; mlp and no other tells a link from its reverse"""
    loss: Literal["bce", "bpr"] = "bce"
    """cross-entropy of each pair, or the ranking of a link before its negatives"""
    negatives: Literal["uniform", "degree"] = "uniform"
    """how pairs that are no links are drawn in training: evenly, or by in-degree^0.75"""
    per_link: Count = 1
    """such pairs per link"""
    exact: bool = False
    """draw none that is an edge of the training graph"""
    val: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """share of the links that is held out to choose the best checkpoint"""
    test: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """share of the links that is held out and only measured"""
    rivals: Annotated[int, Field(ge=1, le=10_000)] = 100
    """pairs that no edge joins, per held-out link, that evaluation tells it from; the same ones each time"""


class Sampler(Section):
    """Sampling of neighborhoods."""

    fanouts: Annotated[Fanouts, Field(min_length=1)] = (15, 10)
    """neighbors drawn per node; the first is the hop at the seeds"""
    replacement: bool = False
    """draw neighbors with replacement"""
    expansion: Literal["layered", "subgraph"] = "layered"
    """expand all nodes so far at every hop (DGL's blocks), or each where it is first seen (PyG)"""
    weight: Annotated[str | None, Field(min_length=1)] = None
    """edge column of weights that neighbors are drawn in proportion to; default: all are alike"""
    time: Annotated[str | None, Field(min_length=1)] = None
    """column of times, of the target and of edges or nodes: nothing later than a seed is drawn"""
    keep: Literal["any", "latest"] = "any"
    """with time: draw among the edges that it leaves, or take the latest of them"""
    window: Window = None
    """with time: how long before a seed its edges begin, and end"""


class Model(Section):
    """The network."""

    kind: Literal["sage", "rgcn"] = "sage"
    """the network; sage is GraphSAGE with the mean of neighbors, rgcn shares own weights among node types"""
    hidden: Count = 256
    """width of the hidden layers"""
    layers: Annotated[int | None, Field(ge=1, le=LARGEST)] = None
    """layers; default: one per fanout"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """share of hidden values that training drops"""
    norm: Literal["none", "layer"] = "none"
    """normalization after each layer"""
    residual: bool = False
    """add a layer's input to its output"""
    column: Text = "x"
    """the input column, of every node type that has it"""
    embedding: Annotated[int | None, Field(ge=0, le=LARGEST)] = None
    """width of learned rows for node types without the column; 0 = they go without; default: an error"""
    learned_rows: Literal["dense", "sparse", "sharded"] = "dense"
    """how learned rows train: as all else, only those that a batch reads, or those, each on one process"""
    encoder: Literal["none", "linear"] = "none"
    """what stands before the first layer: nothing, or a linear layer per node type, which rgcn always has"""
    bases: CountOrNone = 0
    """of rgcn: matrices that edge types mix; 0 = one for each edge type"""


class Parts(Section):
    """Placement and caching of a partitioned graph on several processes."""

    placement: Literal["features", "all", "whole"] = "features"
    """what a process has of its own parts alone: columns, columns and edges, or nothing: it has all parts"""
    lanes: Count = 4
    """batches that processes exchange rows for at once"""
    wire: Literal["stored", "float16", "int8"] = "stored"
    """how features travel between processes; float16 and int8 round them"""
    locality: bool = True
    """give seeds to processes that have them, as far as shares stay equal"""
    cache_bytes: BytesOrNone = 0
    """as 2GiB: for rows of other processes that a process's batches need often, which it keeps; 0 = none"""
    device_bytes: BytesOrNone = 0
    """the same on the device, for rows needed most often: they do not travel there either; 0 = none"""
    cache_by: Literal["auto", "visits", "counts"] = "auto"
    """how it is known which: by the chance that a batch has a node, or by drawing the first epoch ahead"""


class Training(Section):
    """Training of the model."""

    epochs: Count = 10
    """passes over the training nodes"""
    batch_size: Count = 1024
    """training nodes per optimizer step"""
    drop_last: bool = False
    """leave out the last step of an epoch where it has fewer nodes than batch_size"""
    learning_rate: Annotated[float, Field(gt=0), Alias("--lr")] = 3e-3
    """Adam's step size"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """how it goes: constant, or down to 0 over the run's epochs"""
    warmup: CountOrNone = 0
    """updates over which it rises first"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Adam's L2 penalty"""
    seed: Annotated[int, Field(ge=0, lt=2**63), Allowed("a whole number from 0 to 2^63 - 1")] = 0
    """decides weights, order, neighbors and dropout"""
    patience: CountOrNone = 0
    """stop after so many evaluations that were no better than the best; 0 = never"""


class Evaluation(Section):
    """Evaluation of the model."""

    option_prefix: ClassVar[str] = "evaluation-"

    fanouts: Fanouts = ()
    """neighbors drawn per node; empty = exact, layer by layer over all neighbors"""
    batch_size: Count = 4096
    """nodes at a time"""
    every: Count = 1
    """epochs between evaluations; the last epoch is always evaluated"""


class Checkpoint(Section):
    """Checkpoints within an epoch. A checkpoint is always written at the end of an epoch."""

    option_prefix: ClassVar[str] = "checkpoint-"

    steps: CountOrNone = 0
    """updates between checkpoints; 0 = not by their number"""
    minutes: Annotated[float, Field(ge=0)] = 5.0
    """minutes between checkpoints; 0 = not by the clock"""
    keep: Count = 2
    """checkpoints that are kept; a damaged one leaves those before"""


class RunConfig(Section):
    """All settings of a run."""

    graph: Text
    """graph folder, or the name of a built-in graph"""
    out: Annotated[str | None, Field(min_length=1)] = None
    """run folder; default: runs/<graph>-<n>, always a new one"""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$"), Allowed("cpu, cuda or cuda:<number>")] = (
        "cpu"
    )
    """where the model computes"""
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    """dtype of weights and activations"""
    threads: Threads = 0
    """sampler threads, any number gives the same batches; 0 = chosen from the cores of this machine"""
    compute_threads: Threads = 0
    """threads of torch and of khop's kernels; 0 = one per core of this machine"""
    prefetch: Count = 4
    """batches made ahead of the model"""
    prefetch_bytes: Bytes = 1 << 30
    """bytes that batches made ahead may take, as 500MB; one batch always may"""
    deadline: Annotated[float, Field(gt=0, le=1e8)] = 300.0
    """seconds that processes wait for one another before all end"""
    interface: Annotated[str | None, Field(min_length=1)] = None
    """network that processes listen on: an interface's name or address, or as 10.0.0.0/8; default: loopback,
    and of several machines the network that leads to rank 0's"""
    allow_public: bool = False
    """let processes listen on a public address, which a firewall has to protect"""
    tensorboard: bool = False
    """write curves for TensorBoard into the run folder; needs the package tensorboard"""
    task: Task = Field(default_factory=Task)
    links: Links = Field(default_factory=Links)
    sampler: Sampler = Field(default_factory=Sampler)
    model: Model = Field(default_factory=Model)
    parts: Parts = Field(default_factory=Parts)
    training: Training = Field(default_factory=Training)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)

    @model_validator(mode="after")
    def _bases_are_of_rgcn(self) -> RunConfig:
        if self.model.bases and self.model.kind != "rgcn":
            raise ValueError(
                f"model.bases is {self.model.bases}, model.kind is {self.model.kind!r}: only rgcn has bases; "
                "leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _there_are_learned_rows(self) -> RunConfig:
        if self.model.learned_rows != "dense" and not self.model.embedding:
            raise ValueError(
                f"model.learned_rows is {self.model.learned_rows!r}, but no rows are learned: give "
                "model.embedding their width, as 64, or leave learned_rows out"
            )
        return self

    @model_validator(mode="after")
    def _times_are_kept_to(self) -> RunConfig:
        sampler = self.sampler
        if sampler.time is None and (sampler.keep != "any" or sampler.window is not None):
            raise ValueError(
                "sampler.keep and sampler.window say which times are drawn: give sampler.time too"
            )
        if sampler.time is not None and not self.evaluation.fanouts:
            raise ValueError(
                f"sampler.time is {sampler.time!r}: evaluation over all neighbors would show the future, "
                "give evaluation.fanouts"
            )
        return self

    @model_validator(mode="after")
    def _fanouts_match_layers(self) -> RunConfig:
        layers = self.model.layers or len(self.sampler.fanouts)
        named = f"model.layers is {layers}" if self.model.layers else f"sampler.fanouts make {layers} layers"
        for section, fanouts in (("sampler", self.sampler.fanouts), ("evaluation", self.evaluation.fanouts)):
            if fanouts and len(fanouts) != layers:
                entries = "1 entry" if len(fanouts) == 1 else f"{len(fanouts)} entries"
                raise ValueError(f"{section}.fanouts has {entries}, {named}: give one fanout per layer")
        return self
