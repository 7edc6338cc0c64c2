"""Settings of a run: the single source of TOML keys, options, help texts and limits.

The string below a field is its help. `tables` has the tables of models, tasks and samplers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from khop.arguments import LONGEST_S
from khop.components import LARGEST, Allowed, Component, Count, CountOrNone, Default, Text
from khop.run.tables import (
    Alias,
    Bytes,
    BytesOrNone,
    CacheText,
    Fanouts,
    LossTable,
    ModelTable,
    OptimizerTable,
    OptionName,
    SamplerTable,
    Section,
    TaskTable,
    Threads,
)


class LinksTable(Section):
    """Links for link prediction: decoder, loss, negatives and splits."""

    option_prefix = "link-"

    decoder: Literal["dot", "mlp", "distmult", "transe", "complex", "rotate"] = "dot"
    """Decoder that scores a pair of node embeddings; dot and distmult are symmetric, and all except dot and
    mlp have an embedding per relation"""
    relation: Annotated[str | None, Field(min_length=1), Default("one relation per edge type")] = None
    """Edge column with the relations of links, integers from 0"""
    relations: Annotated[CountOrNone, Default("counted in the graph")] = 0
    """Number of relations in the column links.relation"""
    loss: LossTable = Field(default_factory=LossTable)
    negatives: Literal["uniform", "degree"] = "uniform"
    """Distribution of training negatives: uniform, or proportional to in-degree^0.75 (degree)"""
    negatives_per_positive: Annotated[Count, OptionName("--negatives-per-positive")] = 1
    """Negatives per training link"""
    negatives_group: Count = 1
    """Consecutive training links that share one set of negatives; with shared_negatives, they share only the
    additional negatives"""
    shared_negatives: Annotated[CountOrNone, Default("none")] = 0
    """Additional negatives per training link, shared by negatives_group links"""
    hard_negatives: Annotated[CountOrNone, Default("none")] = 0
    """Additional hard negatives per training link: the destinations with the highest scores that are not
    linked to its source"""
    hard_every: Count = 1
    """Epochs between updates of the hard negatives"""
    corrupt: Literal["destination", "source", "both"] = "destination"
    """Endpoint that training negatives corrupt; both: negatives_per_positive for each endpoint"""
    exact: bool = False
    """Exclude edges of the training graph from the training negatives"""
    spot_target: Annotated[CountOrNone, Default("all target links are removed")] = 0
    """Minimum degree of both endpoints for a target link to stay in the message graph of its batch
    (SpotTarget)"""
    split: Literal["auto", "random", "time", "column"] = "auto"
    """Split of the links: at random with the shares val and test (random), by the cut-offs of the graph
    (time), by the edge column split (column), or the first of column, time and random that the graph supports
    (auto)"""
    val: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the links for validation"""
    test: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the links for test"""
    eval_negatives: Annotated[int, Field(ge=1, le=10_000), OptionName("--eval-negatives")] = 100
    """Negatives per validation or test link; drawn once, and never edges of the graph"""
    val_negatives: Annotated[str | None, Field(min_length=1), Default("drawn")] = None
    """File of negatives of the validation links, with your ids: Parquet with a list of destinations per link
    in the column negatives, or pairs for all links"""
    test_negatives: Annotated[str | None, Field(min_length=1), Default("drawn")] = None
    """File of negatives of the test links, like val_negatives"""

    filtered: bool = False
    """Also compute filtered MRR and hits: rank both endpoints of each link among all nodes, without other
    known links; needs distmult, transe, complex or rotate"""
    ranking: bool = False
    """Also compute NDCG and recall at 10 and 20: rank all destinations for each source, except itself and its
    links of earlier splits"""

    @property
    def drawn_eval_negatives(self) -> int:
        """Negatives drawn per held-out link: none if both splits have a file of them."""
        return 0 if self.val_negatives and self.test_negatives else self.eval_negatives

    @model_validator(mode="after")
    def _ranks_one_relation(self) -> LinksTable:
        if self.ranking and self.relation is not None:
            raise ValueError(
                f"links.ranking is true and links.relation is {self.relation!r}: it ranks the destinations "
                "of each source, regardless of relations; give links.filtered instead"
            )
        return self

    @model_validator(mode="after")
    def _filters_by_relation(self) -> LinksTable:
        if self.filtered and self.decoder in ("dot", "mlp"):
            raise ValueError(
                f"links.filtered is true and links.decoder is {self.decoder!r}: filtered ranking needs a "
                "relational decoder; give distmult, transe, complex or rotate, or use links.ranking"
            )
        return self

    @model_validator(mode="after")
    def _counts_what_it_names(self) -> LinksTable:
        if self.relations and self.relation is None:
            raise ValueError(
                f"links.relations is {self.relations}, links.relation is not set: name the edge column, or "
                "leave the number out"
            )
        return self

    @model_validator(mode="after")
    def _shares_what_can_be_shared(self) -> LinksTable:
        if self.shared_negatives and self.negatives_group == 1:
            raise ValueError(
                f"links.shared_negatives is {self.shared_negatives} and links.negatives_group 1: give the "
                "number of links that share them, such as 64"
            )
        if self.exact and self.negatives_group > 1 and not self.shared_negatives:
            raise ValueError(
                f"links.negatives_group is {self.negatives_group} and links.exact true: exact negatives "
                "differ by source; leave one of them out"
            )
        return self


class SeedFiles(Section):
    """Tables of labeled rows for training and evaluation, instead of splits of the graph.

    A node may have several rows with different dates. The label is the column `task.label`.
    """

    option_prefix = "seeds-"

    train: Annotated[str | None, Field(min_length=1), Default("the training split of the graph")] = None
    """Table of the training rows with your ids: a Parquet or CSV file"""
    val: Annotated[str | None, Field(min_length=1), Default("none")] = None
    """Table of the rows that select the best checkpoint"""
    test: Annotated[str | None, Field(min_length=1), Default("none")] = None
    """Table of the rows for the final score; they do not influence training"""
    id: Annotated[
        str | None, Field(min_length=1), Default("that of the node table in the import, else id")
    ] = None
    """Column of the ids"""
    time: Annotated[str | None, Field(min_length=1), Default("rows have no dates")] = None
    """Column with the date of each row; with sampler.time, neighbors are not later than this date. Dates
    without a time zone are in UTC"""
    weight: Annotated[str | None, Field(min_length=1), Default("equal weights")] = None
    """Column of weights of the training rows in the loss"""
    classes: Annotated[
        tuple[str, ...], Field(strict=False), Default("those of the training table, in ascending order")
    ] = ()
    """Names of the classes, in the order of their numbers"""

    @property
    def paths(self) -> dict[str, str]:
        """The tables by split."""
        given = {"train": self.train, "val": self.val, "test": self.test}
        return {split: path for split, path in given.items() if path is not None}

    @model_validator(mode="after")
    def _has_rows_to_train_and_to_select(self) -> SeedFiles:
        if self.paths and not {"train", "val"} <= self.paths.keys():
            missing = "train" if self.train is None else "val"
            raise ValueError(
                f"seeds.{missing} is missing: there are tables of {', '.join(self.paths)}; training needs "
                "seeds.train, and seeds.val selects the best checkpoint"
            )
        if not self.paths and (self.id or self.time or self.weight or self.classes):
            raise ValueError("seeds.train is missing: other settings of seeds need tables; name them")
        return self


class Parts(Section):
    """Placement and caching of a partitioned graph on several processes."""

    placement: Literal["features", "all", "whole"] = "features"
    """Partitioning across processes: features, all (features and edges), or whole (replicated)"""
    lanes: Count = 4
    """Number of batches in flight between processes"""
    wire: Literal["stored", "float16", "int8"] = "stored"
    """Format of features sent between processes; float16 and int8 round them"""
    locality: bool = True
    """Prefer to assign seeds to the process that stores them; all processes still get equal shares"""
    cache_bytes: Annotated[BytesOrNone, Default("no cache")] = 0
    """Host memory to cache rows that are on other processes or on disk, e.g. 2GiB"""
    cache_by: Literal["auto", "visits", "counts"] = "auto"
    """Selection of the cached rows: by visit probabilities (visits), by counts in the first epoch (counts),
    or by visits if possible, else counts (auto)"""


class Servers(Section):
    """Servers that store the graph and make the batches."""

    option_prefix = "servers-"

    addresses: Annotated[
        tuple[str, ...],
        Field(strict=False),
        OptionName("--servers"),
        Default("none: the graph is on this machine"),
        Allowed('a list of addresses "host:port", on the command line separated by commas'),
    ] = ()
    """Addresses of servers that make the batches, started with khop serve"""
    token_file: Annotated[str | None, OptionName("--token-file"), Default("no token")] = None
    """File with the token for the servers"""
    ca: Annotated[str | None, OptionName("--ca"), Default("the certificates of the system")] = None
    """CA certificate that verifies the servers"""
    client_cert: Annotated[str | None, OptionName("--client-cert"), Default("none")] = None
    """Client certificate, for servers that require one"""
    client_key: Annotated[str | None, OptionName("--client-key"), Default("none")] = None
    """Private key of the client certificate"""
    insecure: bool = False
    """Send the token to servers without encryption"""
    deadline: Annotated[float, Field(gt=0, le=LONGEST_S)] = 60.0
    """Seconds without a response from any server before the run fails"""
    attempt: Annotated[float, Field(gt=0, le=LONGEST_S)] = 20.0
    """Seconds without a heartbeat before a request is retried on another server"""


class Gpu(Section):
    """Storage of the graph for training on a GPU (docs/gpu.md)."""

    topology: Literal["auto", "device", "sharded", "pinned", "host"] = "auto"
    """Memory for the edges: GPU memory (device), the memory of all GPUs of the machine (sharded), host memory
    read by the GPU (pinned), host memory with sampling on the CPU (host), or the first of these with enough
    room (auto)"""
    features: Literal["auto", "device", "sharded", "pinned", "host", "mapped", "disk"] = "auto"
    """Memory for the columns: GPU memory (device), the memory of all GPUs of the machine (sharded), host
    memory read by the GPU (pinned) or by the CPU (host), memory-mapped files (mapped), files read row by row
    (disk), or the first of these with enough room, except host (auto)"""
    cache: Annotated[CacheText, Default("no cache")] = "0"
    """GPU memory for the cache of frequent rows, e.g. 4GB, or a share of the input columns, e.g. 20%"""
    launches: Literal["auto", "single", "recorded"] = "auto"
    """Kernel launches in training steps: one by one (single), as CUDA graphs (recorded), or as CUDA graphs if
    possible (auto). CUDA graphs need topology and features in device or pinned memory"""
    check: Literal["first", "none"] = "first"
    """Batches sampled on the GPU that are compared with the CPU: the first of each epoch (first), or none"""


class TargetTable(Section):
    """Score at which training stops."""

    option_prefix = "target-"

    metric: Annotated[str | None, Field(min_length=1), Default("the metric of the task")] = None
    """Metric that target.value refers to"""
    value: Annotated[float | None, Default("no target")] = None
    """Score on the validation split at which training stops"""

    @model_validator(mode="after")
    def _has_a_value(self) -> TargetTable:
        if self.metric is not None and self.value is None:
            raise ValueError(
                f"training.target.metric is {self.metric!r}, but training.target.value is not set: set the "
                "score that stops training, or leave the metric out"
            )
        return self


class Training(Section):
    """Training of the model."""

    epochs: Count = 10
    """Passes over the training seeds"""
    max_steps: Annotated[CountOrNone, Default("no limit")] = 0
    """Maximum number of optimizer steps"""
    batch_size: Count = 1024
    """Training seeds per optimizer step, over all processes"""
    micro_batches: Count = 1
    """Micro-batches per step on each process, to save memory (gradient accumulation); with layered expansion,
    the gradient stays the same"""
    drop_last: bool = False
    """Drop the last step of an epoch if it has fewer than batch_size seeds"""
    learning_rate: Annotated[float, Field(gt=0), Alias("--lr")] = 3e-3
    """Learning rate"""
    schedule: Literal["constant", "linear", "cosine", "plateau"] = "constant"
    """Learning rate schedule: constant, linear or cosine decay to 0 at the end of the run, or reduction when
    the validation score stops improving (plateau)"""
    plateau_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor by which the plateau schedule reduces the learning rate"""
    plateau_patience: Count = 2
    """Evaluations without improvement before the plateau schedule reduces the learning rate"""
    warmup: CountOrNone = 0
    """Warm-up steps, in which the learning rate increases from 0"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay: an L2 penalty, or decoupled for adamw"""
    seed: Annotated[int, Field(ge=0, lt=2**63), Allowed("a whole number from 0 to 2^63 - 1")] = 0
    """Random seed for initial weights, the order of training seeds, neighbors, negatives and dropout"""
    patience: Annotated[CountOrNone, Default("never")] = 0
    """Evaluations without improvement before training stops early"""
    target: TargetTable = Field(default_factory=TargetTable)


class EvaluationTable(Section):
    """Evaluation of the model."""

    option_prefix = "evaluation-"

    fanouts: Annotated[Fanouts, Default("exact, over all neighbors")] = ()
    """Neighbors per node in evaluation, one number per hop"""
    batch_size: Count = 8192
    """Nodes per chunk of evaluation and inference"""
    batch_edges: Count = 1 << 20
    """Edges per chunk of exact evaluation and inference; a chunk of one node may have more"""
    every: Annotated[float, Field(gt=0, le=LARGEST)] = 1.0
    """Epochs between evaluations, e.g. 2, or 0.05 for 20 evaluations per epoch; the final state is always
    evaluated"""
    every_steps: Annotated[CountOrNone, Default("by epochs")] = 0
    """Optimizer steps between evaluations, instead of epochs"""

    @model_validator(mode="after")
    def _has_one_distance(self) -> EvaluationTable:
        if self.every_steps and self.every != 1:
            raise ValueError(
                f"evaluation.every is {self.every:g} and evaluation.every_steps {self.every_steps}: leave "
                "one of them out"
            )
        return self


class CheckpointTable(Section):
    """Checkpoints within an epoch. A checkpoint is always written at the end of an epoch."""

    option_prefix = "checkpoint-"

    steps: Annotated[CountOrNone, Default("no checkpoints by steps")] = 0
    """Optimizer steps between checkpoints within an epoch"""
    minutes: Annotated[float, Field(ge=0)] = 5.0
    """Minutes between checkpoints within an epoch; 0: no checkpoints by time"""
    keep: Count = 2
    """Number of most recent checkpoints to keep"""
    best: Count = 1
    """Number of best checkpoints to keep: best, best-1 (the second best), ..."""


class RunConfig(Section):
    """All settings of a run. `run_type` makes the class with the options of the named components."""

    components: ClassVar[Mapping[str, Component]] = MappingProxyType({})  # by the path of their table

    graph: Text
    """Graph folder, or name of a built-in graph"""
    out: Annotated[str | None, Field(min_length=1), Default("the first free runs/<graph>-<n>")] = None
    """Run folder, new or empty"""
    start_from: Annotated[str | None, Field(min_length=1), Default("new weights")] = None
    """Run folder, or a checkpoint in it, with weights to start from; node embeddings are matched by id"""
    start_optimizer: bool = False
    """Also load the optimizer state from start_from"""
    device: Annotated[
        str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$"), Allowed("auto, cpu, cuda or cuda:<number>")
    ] = "auto"
    """Device of the model; auto: a GPU if torch finds one, else the CPU"""
    precision: Literal["float32", "tf32", "float64", "bfloat16"] = "float32"
    """Dtype of weights and activations; bfloat16 uses autocast, and tf32 is float32 with TF32 matrix products
    on a GPU"""
    threads: Annotated[Threads, Default("depends on the number of cores")] = 0
    """Sampler threads; batches do not depend on their number"""
    compute_threads: Annotated[Threads, Default("one per core")] = 0
    """Threads of torch and of khop's kernels"""
    prefetch: Count = 4
    """Number of prefetched batches"""
    prefetch_bytes: Annotated[Bytes, Default("1 GiB")] = 1 << 30
    """Memory limit for prefetched batches, e.g. 500MB; one batch is always allowed"""
    gather: Literal["ahead", "deferred"] = "ahead"
    """Gather input rows when the batch is made (ahead), or in the first layer (deferred)"""
    deadline: Annotated[float, Field(gt=0, le=LONGEST_S)] = 300.0
    """Seconds that a process waits for another one before all processes end with an error"""
    interface: Annotated[
        str | None, Field(min_length=1), Default("loopback, or on several machines the network to rank 0")
    ] = None
    """Network interface to listen on: its name, its address, or a network, e.g. 10.0.0.0/8"""
    allow_public: bool = False
    """Allow processes to listen on a public address; protect it by a firewall"""
    tensorboard: bool = False
    """Log to TensorBoard in the run folder; needs the package tensorboard"""
    logger: Literal["none", "wandb", "mlflow"] = "none"
    """Additional logger of losses and scores: Weights & Biases (wandb) or MLflow (mlflow), if installed"""
    task: TaskTable = Field(default_factory=TaskTable)
    links: LinksTable = Field(default_factory=LinksTable)
    seeds: SeedFiles = Field(default_factory=SeedFiles)
    sampler: SamplerTable = Field(default_factory=SamplerTable)
    model: ModelTable = Field(default_factory=ModelTable)
    servers: Servers = Field(default_factory=Servers)
    gpu: Gpu = Field(default_factory=Gpu)
    parts: Parts = Field(default_factory=Parts)
    training: Training = Field(default_factory=Training)
    optimizer: OptimizerTable = Field(default_factory=OptimizerTable)
    evaluation: EvaluationTable = Field(default_factory=EvaluationTable)
    checkpoint: CheckpointTable = Field(default_factory=CheckpointTable)

    @model_validator(mode="after")
    def _has_embeddings_to_update(self) -> RunConfig:
        if self.model.embedding_update != "dense" and not self.model.embedding:
            raise ValueError(
                f"model.embedding_update is {self.model.embedding_update!r}, but the model has no "
                "embeddings: set model.embedding to their width, such as 64, or leave embedding_update out"
            )
        if self.model.embedded_types == "all" and not self.model.embedding:
            raise ValueError(
                "model.embedded_types is 'all', but model.embedding is not set: set it to a width, such as 64"
            )
        if self.model.unknown and not self.model.embedding:
            raise ValueError(
                f"model.unknown is {self.model.unknown}, but the model has no embeddings: set "
                "model.embedding to their width, such as 64, or leave unknown out"
            )
        return self

    @model_validator(mode="after")
    def _starts_from_a_run(self) -> RunConfig:
        if self.start_optimizer and self.start_from is None:
            raise ValueError(
                "start_optimizer is true, but start_from is not set: name the run to start from, or leave "
                "start_optimizer out"
            )
        return self

    @model_validator(mode="after")
    def _times_are_kept_to(self) -> RunConfig:
        sampler = self.sampler
        timed = sampler.temporal_strategy != "sample" or sampler.window is not None
        if sampler.time is None and (timed or sampler.temporal_limit != "seed"):
            raise ValueError(
                "sampler.temporal_strategy, sampler.temporal_limit and sampler.window need times: set "
                "sampler.time to the column of times"
            )
        if sampler.time is None and getattr(self.model, "edge_times", None) is not None:
            raise ValueError(
                "model.edge_times needs times: set sampler.time to the column of times, or leave it out"
            )
        if sampler.time is not None and not self.evaluation.fanouts:
            raise ValueError(
                f"sampler.time is {sampler.time!r}: evaluation over all neighbors would use "
                "later edges; set evaluation.fanouts"
            )
        if self.seeds.train is not None and (sampler.time is None) != (self.seeds.time is None):
            raise ValueError(
                f"sampler.time is {sampler.time!r} and seeds.time is {self.seeds.time!r}: the dates of rows "
                "limit the times of edges; give both, or none"
            )
        everywhere = {name: getattr(self.links, name) for name in ("hard_negatives", "filtered", "ranking")}
        for name, value in everywhere.items():
            if sampler.time is not None and value:
                raise ValueError(
                    f"sampler.time is {sampler.time!r} and links.{name} {value}: scores over all neighbors "
                    "would use later edges; leave one of them out"
                )
        return self

    @model_validator(mode="after")
    def _fanouts_match_layers(self) -> RunConfig:
        layers = self.model.layers or len(self.sampler.fanouts)
        named = f"model.layers is {layers}" if self.model.layers else f"sampler.fanouts make {layers} layers"
        drawn = self.sampler.fanouts if self.sampler.layers_are_hops else ()
        for section, fanouts in (("sampler", drawn), ("evaluation", self.evaluation.fanouts)):
            if fanouts and len(fanouts) != layers:
                entries = "1 entry" if len(fanouts) == 1 else f"{len(fanouts)} entries"
                raise ValueError(f"{section}.fanouts has {entries}, {named}: give one fanout per layer")
        return self
