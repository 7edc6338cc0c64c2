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
    """Function that scores a pair of node embeddings. dot and distmult score a link and its reverse equally.
    All except dot and mlp learn an embedding per relation"""
    relation: Annotated[str | None, Field(min_length=1), Default("one relation per edge type")] = None
    """Edge column with the relation of each link, an integer from 0. Set it if an edge type contains several
    relations, as in a knowledge graph"""
    relations: Annotated[CountOrNone, Default("counted in the graph")] = 0
    """Number of relations in the column links.relation. Set it for a graph on servers, where khop cannot
    count them"""
    loss: LossTable = Field(default_factory=LossTable)
    negatives: Literal["uniform", "degree"] = "uniform"
    """How training negatives are sampled: all nodes with equal probability (uniform), or in proportion to
    in-degree^0.75, which prefers popular nodes (degree)"""
    negatives_per_positive: Annotated[Count, OptionName("--negatives-per-positive")] = 1
    """Number of negatives per training link"""
    negatives_group: Count = 1
    """Number of consecutive training links that share one set of negatives. A larger number gives batches
    with fewer nodes. If shared_negatives is set, only these additional negatives are shared in a group"""
    shared_negatives: Annotated[CountOrNone, Default("none")] = 0
    """Number of additional negatives per training link. A group of negatives_group links shares them"""
    hard_negatives: Annotated[CountOrNone, Default("none")] = 0
    """Number of additional hard negatives per training link. These are the destinations with the highest
    scores for the link's source that are not linked to it"""
    hard_every: Count = 1
    """Number of epochs between updates of the hard negatives"""
    corrupt: Literal["destination", "source", "both"] = "destination"
    """Endpoint of a link that training negatives replace. With both, each endpoint gets
    negatives_per_positive negatives"""
    exact: bool = False
    """Never sample an edge of the training graph as a training negative. By default, some negatives may be
    edges"""
    spot_target: Annotated[CountOrNone, Default("all target links are removed")] = 0
    """Let a target link pass messages in its batch if both of its endpoints have at least this degree
    (SpotTarget). At nodes of high degree, these messages distort training little"""
    split: Literal["auto", "random", "time", "column"] = "auto"
    """How the links are split: at random with the shares val and test (random), by the cut-offs of the graph
    (time), or by the edge column split (column). auto uses the first of column, time and random that the
    graph supports"""
    val: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the links for validation, if links are split at random"""
    test: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the links for test, if links are split at random"""
    eval_negatives: Annotated[int, Field(ge=1, le=10_000), OptionName("--eval-negatives")] = 100
    """Number of negatives among which each validation or test link is ranked. They are drawn once, and are
    never edges of the graph. Scores with different numbers are not comparable"""
    val_negatives: Annotated[str | None, Field(min_length=1), Default("drawn")] = None
    """File of negatives for the validation links, with the ids of the imported tables. It has a list of
    destinations per link in the column negatives (Parquet), or pairs that serve for all links"""
    test_negatives: Annotated[str | None, Field(min_length=1), Default("drawn")] = None
    """File of negatives for the test links, in the format of val_negatives"""

    filtered: bool = False
    """Also compute filtered MRR and hits. They rank both endpoints of each link among all nodes, without
    other known links. Needs the decoder distmult, transe, complex or rotate"""
    ranking: bool = False
    """Also compute NDCG and recall at 10 and 20. They rank all destinations for each source, except itself
    and its links of earlier splits"""

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
    """Table of the training rows: a Parquet or CSV file with the ids of the imported tables"""
    val: Annotated[str | None, Field(min_length=1), Default("none")] = None
    """Table of the rows whose score selects the best checkpoint"""
    test: Annotated[str | None, Field(min_length=1), Default("none")] = None
    """Table of the rows for the final score, which does not influence training"""
    id: Annotated[
        str | None, Field(min_length=1), Default("that of the node table in the import, else id")
    ] = None
    """Column with the node ids"""
    time: Annotated[str | None, Field(min_length=1), Default("rows have no dates")] = None
    """Column with the date of each row; set it together with sampler.time. Neighbors are not later than this
    date. Dates without a time zone are in UTC"""
    weight: Annotated[str | None, Field(min_length=1), Default("equal weights")] = None
    """Column with the weight of each training row in the loss"""
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
    """Divide features among the processes (features), features and edges (all), or nothing (whole). Use all
    if the edges do not fit in the memory of a machine"""
    lanes: Count = 4
    """Number of batches that processes make at the same time. Increase it if the network has a high latency.
    Each lane needs memory for send and receive buffers"""
    wire: Literal["stored", "float16", "int8"] = "stored"
    """Format of features that processes send to each other: as stored (stored), or rounded to fewer bytes
    (float16, int8)"""
    locality: bool = True
    """Assign seeds to the processes that store them, as far as all processes still get equal shares. This
    reduces network traffic"""
    cache_bytes: Annotated[BytesOrNone, Default("no cache")] = 0
    """Host memory of each process for a cache of rows that other processes or the disk store, e.g. 2GiB. Use
    it if training waits for these rows"""
    cache_by: Literal["auto", "visits", "counts"] = "auto"
    """Cache the rows that batches need with the highest probability (visits), or those that the first epoch
    needs most often (counts). auto uses visits if possible, else counts"""


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
    """Addresses of servers that store the graph and make the batches, started with khop serve"""
    token_file: Annotated[str | None, OptionName("--token-file"), Default("no token")] = None
    """File with the token for the servers, written by khop servers token"""
    ca: Annotated[str | None, OptionName("--ca"), Default("the certificates of the system")] = None
    """Certificate of the CA that signed the servers' certificates"""
    client_cert: Annotated[str | None, OptionName("--client-cert"), Default("none")] = None
    """Certificate of this client, for servers that require one"""
    client_key: Annotated[str | None, OptionName("--client-key"), Default("none")] = None
    """Private key of client_cert"""
    insecure: bool = False
    """Connect to servers without encryption. Others on the network can then read the token"""
    deadline: Annotated[float, Field(gt=0, le=LONGEST_S)] = 60.0
    """Seconds without a response from any server, after which the run fails"""
    attempt: Annotated[float, Field(gt=0, le=LONGEST_S)] = 20.0
    """Seconds without a heartbeat from a server, after which a request is sent to another server"""


class Gpu(Section):
    """Storage of the graph for training on a GPU (docs/gpu.md)."""

    topology: Literal["auto", "device", "sharded", "pinned", "host"] = "auto"
    """Where the edges are stored: in GPU memory (device), divided among the GPUs of the machine (sharded), in
    host memory that the GPU reads (pinned), or in host memory for sampling on the CPU (host). auto uses the
    first of these with enough memory"""
    features: Literal["auto", "device", "sharded", "pinned", "host", "mapped", "disk"] = "auto"
    """Where the input column and the label are stored: in GPU memory (device), divided among the GPUs of the
    machine (sharded), in host memory that the GPU reads (pinned) or that the CPU reads (host), in
    memory-mapped files (mapped), or in files that are read row by row (disk). auto uses the first of these
    with enough memory, but never host"""
    cache: Annotated[CacheText, Default("no cache")] = "0"
    """GPU memory for a cache of frequently needed rows of the input column, e.g. 4GB, or a share of the
    column, e.g. 20%. Use it if the column does not fit in GPU memory"""
    launches: Literal["auto", "single", "recorded"] = "auto"
    """How training steps launch GPU kernels: one by one (single), or as CUDA graphs (recorded). auto uses
    CUDA graphs if possible. They need topology and features in device or pinned memory"""
    check: Literal["first", "none"] = "first"
    """Compare batches that the GPU samples with those of the CPU: the first batch of each epoch (first), or
    none"""


class TargetTable(Section):
    """Score at which training stops."""

    option_prefix = "target-"

    metric: Annotated[str | None, Field(min_length=1), Default("the metric of the task")] = None
    """Metric of the score target.value"""
    value: Annotated[float | None, Default("no target")] = None
    """Stop at the first evaluation with this score on the validation split, or a better one"""

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
    """Number of passes over the training seeds"""
    max_steps: Annotated[CountOrNone, Default("no limit")] = 0
    """Stop after this number of optimizer steps"""
    batch_size: Count = 1024
    """Number of training seeds per optimizer step, over all processes"""
    micro_batches: Count = 1
    """Number of parts into which each process splits its share of a step (gradient accumulation). Increase it
    if a step does not fit in memory. With layered expansion and without dropout, the gradient stays the
    same"""
    drop_last: bool = False
    """Leave out the last step of an epoch if it has fewer than batch_size seeds"""
    learning_rate: Annotated[float, Field(gt=0), Alias("--lr")] = 3e-3
    """Learning rate"""
    schedule: Literal["constant", "linear", "cosine", "plateau"] = "constant"
    """Learning rate over time: constant, decay to 0 at the end of the run (linear, cosine), or reduction when
    the validation score stops improving (plateau)"""
    plateau_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor by which the plateau schedule multiplies the learning rate"""
    plateau_patience: Count = 2
    """Number of evaluations without improvement after which the plateau schedule reduces the learning rate"""
    warmup: CountOrNone = 0
    """Number of warm-up steps, in which the learning rate increases from 0"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Strength of the weight decay: an L2 penalty, or decoupled with adamw"""
    seed: Annotated[int, Field(ge=0, lt=2**63), Allowed("a whole number from 0 to 2^63 - 1")] = 0
    """Random seed of the initial weights, the order of training seeds, neighbors, negatives and dropout"""
    patience: Annotated[CountOrNone, Default("never")] = 0
    """Stop after this number of evaluations without a better score on the validation split"""
    target: TargetTable = Field(default_factory=TargetTable)


class EvaluationTable(Section):
    """Evaluation of the model."""

    option_prefix = "evaluation-"

    fanouts: Annotated[Fanouts, Default("exact, over all neighbors")] = ()
    """Number of neighbors per node in evaluation, one number per hop. Required with sampler.time"""
    batch_size: Count = 8192
    """Number of nodes per chunk in evaluation and inference. Lower it to save memory"""
    batch_edges: Count = 1 << 20
    """Maximum number of edges per chunk in exact evaluation and inference. A chunk of one node may have
    more"""
    every: Annotated[float, Field(gt=0, le=LARGEST)] = 1.0
    """Number of epochs between evaluations, e.g. 2. With 0.05, there are 20 evaluations per epoch. The final
    state is always evaluated"""
    every_steps: Annotated[CountOrNone, Default("by epochs")] = 0
    """Number of optimizer steps between evaluations. It replaces evaluation.every"""

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
    """Number of optimizer steps between checkpoints within an epoch"""
    minutes: Annotated[float, Field(ge=0)] = 5.0
    """Minutes between checkpoints within an epoch. 0: no checkpoints by time"""
    keep: Count = 2
    """Number of latest checkpoints to keep: last, last-1 (the one before), ..."""
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
    """Start from the weights of this run folder (its best checkpoint) or of this checkpoint in it. Node
    embeddings are matched by id"""
    start_optimizer: bool = False
    """Also load the state of the optimizer, such as Adam's moments, from start_from"""
    device: Annotated[
        str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$"), Allowed("auto, cpu, cuda or cuda:<number>")
    ] = "auto"
    """Device of the model. auto is a GPU if the machine has one for each process, else the CPU"""
    precision: Literal["float32", "tf32", "float64", "bfloat16"] = "float32"
    """Dtype of weights and activations. bfloat16 computes under autocast with float32 weights. tf32 is
    float32 with TF32 matrix products on a GPU"""
    threads: Annotated[Threads, Default("depends on the number of cores")] = 0
    """Number of threads that make batches. Increase it if khop profile finds that training waits for batches.
    Batches do not depend on it"""
    compute_threads: Annotated[Threads, Default("one per core")] = 0
    """Number of compute threads in torch and in khop's kernels"""
    prefetch: Count = 4
    """Number of batches that are made ahead of training. More batches need more memory"""
    prefetch_bytes: Annotated[Bytes, Default("1 GiB")] = 1 << 30
    """Memory for batches that are made ahead of training, e.g. 500MB. At the limit, sampling pauses. One
    batch is always allowed"""
    gather: Literal["ahead", "deferred"] = "ahead"
    """When input rows are read: when the batch is made (ahead), or in the first layer (deferred). With
    deferred, prefetched batches need less memory"""
    deadline: Annotated[float, Field(gt=0, le=LONGEST_S)] = 300.0
    """Timeout in seconds for waiting for another process. When it expires, all processes end with an error"""
    interface: Annotated[
        str | None, Field(min_length=1), Default("loopback, or on several machines the network to rank 0")
    ] = None
    """Network interface on which processes listen: its name, its address, or a network, e.g. 10.0.0.0/8"""
    allow_public: bool = False
    """Allow processes to listen on a public address. Their traffic is not encrypted: protect the port with a
    firewall"""
    tensorboard: bool = False
    """Write losses and scores for TensorBoard to the run folder. Needs the package tensorboard"""
    logger: Literal["none", "wandb", "mlflow"] = "none"
    """Also log losses and scores to Weights & Biases (wandb) or MLflow (mlflow). Needs the package of this
    name"""
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
