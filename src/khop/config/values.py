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

from khop.arguments import as_mapping
from khop.loading.byte_size import byte_size
from khop.loading.device_placement import CacheSize


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
    Allowed('bytes, as "4GB", or a share of each column, as "20%"; 0 for none'),
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
    """Prediction task"""
    target: Annotated[str | None, Field(min_length=1), Default("the only one of the graph")] = None
    """Node type to classify, or edge type to predict, such as "user buys item" (three words)"""
    label: Annotated[str | None, Field(min_length=1), Default("its only column with classes")] = None
    """Label column of the node type to classify"""
    metric: Annotated[
        (
            Literal["accuracy", "f1-macro", "f1-micro", "roc-auc", "average-precision", "mrr", "hits@10"]
            | None
        ),
        Default("accuracy for nodes, mrr for links"),
    ] = None
    """Metric of evaluation; for nodes accuracy, f1-macro, f1-micro, roc-auc or average-precision, for links
    roc-auc, average-precision, mrr or hits@10"""
    train_split: Text = "train"
    """Split with the nodes to train on"""
    val_split: Text = "val"
    """Split that selects the best checkpoint"""
    test_split: Text = "test"
    """Split that is evaluated, but selects nothing"""


class Links(Section):
    """Links for link prediction: decoder, loss, negatives and held-out shares."""

    option_prefix: ClassVar[str] = "link-"

    decoder: Literal["dot", "mlp", "distmult"] = "dot"
    """Function that scores a pair of nodes from their embeddings; only mlp is direction-aware"""
    loss: Literal["bce", "bpr"] = "bce"
    """Loss of link prediction: cross-entropy of each pair (bce), or ranking of links above negatives (bpr)"""
    negatives: Literal["uniform", "degree"] = "uniform"
    """Distribution of training negatives: uniform, or proportional to in-degree^0.75 (degree)"""
    negatives_per_positive: Annotated[Count, OptionName("--negatives-per-positive")] = 1
    """Negatives per training link"""
    exact: bool = False
    """Exclude edges of the training graph from the training negatives"""
    val: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the links held out for validation"""
    test: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the links held out for test"""
    eval_negatives: Annotated[int, Field(ge=1, le=10_000), OptionName("--eval-negatives")] = 100
    """Negatives per held-out link; drawn once, and never edges of the graph"""


class Sampler(Section):
    """Sampling of neighborhoods."""

    fanouts: Annotated[Fanouts, Field(min_length=1)] = (15, 10)
    """Neighbors drawn per node, one number per hop; the first is the hop at the seeds"""
    replacement: bool = False
    """Draw neighbors with replacement"""
    expansion: Literal["layered", "subgraph"] = "layered"
    """Nodes that a hop expands: all nodes so far (layered, as DGL), or only new nodes (subgraph, as PyG)"""
    weight: Annotated[str | None, Field(min_length=1), Default("uniform draws")] = None
    """Edge column of weights; neighbors are drawn in proportion to them"""
    time: Annotated[str | None, Field(min_length=1), Default("no time limit")] = None
    """Column of times of seeds and of edges or nodes; neighbors later than the seed are not drawn"""
    temporal_strategy: Literal["sample", "latest"] = "sample"
    """Neighbors drawn if a time column is set: a sample of the allowed ones, or the latest of them"""
    window: Annotated[Window, Default("all earlier times")] = None
    """Range of times before the seed, if a time column is set: BEFORE,AFTER, such as 86400,0 for a day"""


class Model(Section):
    """The network."""

    kind: Literal["sage", "rgcn"] = "sage"
    """Network: GraphSAGE with mean aggregation (sage), or relational GCN (rgcn)"""
    hidden: Count = 256
    """Width of the hidden layers"""
    layers: Annotated[int | None, Field(ge=1, le=LARGEST), Default("one per fanout")] = None
    """Number of layers"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout probability of hidden values"""
    norm: Literal["none", "layer"] = "none"
    """Normalization after each layer"""
    residual: bool = False
    """Add the input of each layer to its output"""
    column: Text = "x"
    """Input column, of all node types that have it"""
    embedding: Annotated[int | None, Field(ge=0, le=LARGEST), Default("an error for these types")] = None
    """Width of trained embeddings for node types without the input column; 0: no input for these types"""
    embedding_update: Literal["dense", "sparse", "sharded"] = "dense"
    """Update of embeddings: all rows (dense), only the rows of the batch (sparse), or the same with each row
    stored on one process (sharded)"""
    encoder: Literal["none", "linear"] = "none"
    """Layer before the first layer: none, or linear for each node type; rgcn always has linear"""
    bases: Annotated[CountOrNone, Default("one matrix per edge type")] = 0
    """Basis matrices that the edge types of rgcn share"""


class Parts(Section):
    """Placement and caching of a partitioned graph on several processes."""

    placement: Literal["features", "all", "whole"] = "features"
    """Data partitioned across processes: features; features and edges (all); nothing (whole)"""
    lanes: Count = 4
    """Batches for which processes exchange rows at the same time"""
    wire: Literal["stored", "float16", "int8"] = "stored"
    """Format of features sent between processes; float16 and int8 round them"""
    locality: bool = True
    """Prefer seeds that are stored on the process; all processes still get equal shares"""
    cache_bytes: Annotated[BytesOrNone, Default("no cache")] = 0
    """Host memory for cached remote rows, e.g. 2GiB"""
    cache_by: Literal["auto", "visits", "counts"] = "auto"
    """Estimate that selects the cached rows: probability of a visit (visits), counts of the first epoch
    (counts), or visits where possible (auto)"""


class Gpu(Section):
    """Memory of the graph if the device is a GPU (docs/gpu.md)."""

    topology: Literal["auto", "device", "pinned", "host"] = "auto"
    """Memory of the edges: the GPU's (device), host memory read by the GPU (pinned) or by the CPU, which then
    samples (host), or planned (auto)"""
    features: Literal["auto", "device", "pinned", "host", "mapped"] = "auto"
    """Memory of the columns: the GPU's (device), host memory read by the GPU (pinned) or by the CPU (host),
    the graph's files (mapped), or planned (auto)"""
    cache: Annotated[CacheText, Default("no cache")] = "0"
    """GPU memory for rows that batches need often, e.g. 4GB, or a share of each column, e.g. 20%"""


class Training(Section):
    """Training of the model."""

    epochs: Count = 10
    """Passes over the training seeds"""
    batch_size: Count = 1024
    """Training seeds per optimizer step, over all processes"""
    drop_last: bool = False
    """Omit the last step of an epoch if it has fewer than batch_size seeds"""
    learning_rate: Annotated[float, Field(gt=0), Alias("--lr")] = 3e-3
    """Learning rate of Adam"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate schedule: constant, or linear or cosine decay to 0 at the end of the run"""
    warmup: CountOrNone = 0
    """Warm-up steps, in which the learning rate rises from 0"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """L2 penalty of Adam"""
    seed: Annotated[int, Field(ge=0, lt=2**63), Allowed("a whole number from 0 to 2^63 - 1")] = 0
    """Seed of initial weights, seed order, neighbors, negatives and dropout"""
    patience: Annotated[CountOrNone, Default("never")] = 0
    """Evaluations without improvement before training stops"""


class Evaluation(Section):
    """Evaluation of the model."""

    option_prefix: ClassVar[str] = "evaluation-"

    fanouts: Annotated[Fanouts, Default("exact, over all neighbors")] = ()
    """Neighbors drawn per node in evaluation, one number per hop"""
    batch_size: Count = 4096
    """Nodes per chunk of evaluation and inference"""
    every: Count = 1
    """Epochs between evaluations; the last epoch is always evaluated"""


class Checkpoint(Section):
    """Checkpoints within an epoch. A checkpoint is always written at the end of an epoch."""

    option_prefix: ClassVar[str] = "checkpoint-"

    steps: Annotated[CountOrNone, Default("no checkpoints by steps")] = 0
    """Optimizer steps between checkpoints within an epoch"""
    minutes: Annotated[float, Field(ge=0)] = 5.0
    """Minutes between checkpoints within an epoch; 0: no checkpoints by time"""
    keep: Count = 2
    """Number of last checkpoints to keep"""


class RunConfig(Section):
    """All settings of a run."""

    graph: Text
    """Graph folder, or name of a built-in graph"""
    out: Annotated[str | None, Field(min_length=1), Default("the first free runs/<graph>-<n>")] = None
    """Run folder, new or empty"""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$"), Allowed("cpu, cuda or cuda:<number>")] = (
        "cpu"
    )
    """Device of the model"""
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    """Dtype of weights and activations; bfloat16 is autocast"""
    threads: Annotated[Threads, Default("chosen from the cores")] = 0
    """Sampler threads; batches do not depend on their number"""
    compute_threads: Annotated[Threads, Default("one per core")] = 0
    """Threads of torch and of khop's kernels"""
    prefetch: Count = 4
    """Batches prepared ahead of the model"""
    prefetch_bytes: Annotated[Bytes, Default("1 GiB")] = 1 << 30
    """Memory for prepared batches, e.g. 500MB; one batch may always be prepared"""
    deadline: Annotated[float, Field(gt=0, le=1e8)] = 300.0
    """Seconds that a process waits for another one before all processes end"""
    interface: Annotated[
        str | None, Field(min_length=1), Default("loopback, or on several machines the network to rank 0")
    ] = None
    """Network interface to listen on: its name, its address, or a network, e.g. 10.0.0.0/8"""
    allow_public: bool = False
    """Allow processes to listen on a public address; a firewall has to protect it"""
    tensorboard: bool = False
    """Write TensorBoard curves to the run folder; needs the package tensorboard"""
    task: Task = Field(default_factory=Task)
    links: Links = Field(default_factory=Links)
    sampler: Sampler = Field(default_factory=Sampler)
    model: Model = Field(default_factory=Model)
    gpu: Gpu = Field(default_factory=Gpu)
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
    def _has_embeddings_to_update(self) -> RunConfig:
        if self.model.embedding_update != "dense" and not self.model.embedding:
            raise ValueError(
                f"model.embedding_update is {self.model.embedding_update!r}, but the model has no "
                "embeddings: set model.embedding to their width, such as 64, or leave embedding_update out"
            )
        return self

    @model_validator(mode="after")
    def _times_are_kept_to(self) -> RunConfig:
        sampler = self.sampler
        if sampler.time is None and (sampler.temporal_strategy != "sample" or sampler.window is not None):
            raise ValueError(
                "sampler.temporal_strategy and sampler.window need times: set sampler.time to the column of "
                "times"
            )
        if sampler.time is not None and not self.evaluation.fanouts:
            raise ValueError(
                f"sampler.time is {sampler.time!r}: evaluation over all neighbors would use "
                "later edges; set evaluation.fanouts"
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
