"""Inputs of components of a run for `build(options, context)`, and the protocol of tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from khop.api.edges import relation_count
from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.partition import clusters_of
from khop.components import SAMPLERS
from khop.distributed.processes.group import this_group
from khop.graph.node_ids import LABEL_TIME
from khop.graph.rule import Rule
from khop.inference.chunks import Progress
from khop.inference.node_outputs import ExactDraws, all_neighbors, layerwise_inference, sampled_inference
from khop.inference.predictions import Predictions
from khop.loading.columns import ColumnChoice, NamesByType
from khop.models.encoder import ModelInputs, ModelSizes
from khop.models.stack import Layered
from khop.run.memory import LaterPlacement
from khop.run.parts import SplitNodes, columns_of, dtype_of, in_flight_of, seeds_loader
from khop.run.run_type import built
from khop.run.tables import SamplerTable
from khop.run.values import RunConfig
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.links.links import LinkSettings as LinkSettings
from khop.sampling.links.links import SamplerInputs
from khop.sampling.rules.temporal import Temporal, TemporalStrategy
from khop.sampling.rules.weighted import drawn_by
from khop.sampling.sampler import Expansion, Fanout, Sampler, followed_types
from khop.sampling.seed_table import SeedTable
from khop.sampling.seeds import NodeTuples
from khop.schema import EdgeType, NodeType
from khop.training.steps import seeded
from khop.training.tasks import Task


@dataclass(frozen=True, eq=False)
class ModelContext(ModelInputs):
    """Inputs of a model's `build`, which returns a module over batches (`torch.nn.Module`).

    `build` is called with torch's generator seeded by the run's seed.
    """

    graph: Graph

    def relation_count(self, edge_type: EdgeType, column: str) -> int:
        """Return the number of relations in an edge column, counted in the graph. Collective."""
        return relation_count(self.graph, edge_type, column)


@dataclass(frozen=True, eq=False)
class RuleContext:
    """Inputs of a rule's `build`, which returns a `khop.Rule`."""

    graph: Graph


@dataclass(frozen=True, eq=False)
class SamplerContext(SamplerInputs):
    """Inputs of a sampler's `build`, which returns a `khop.Sampler` of training batches."""

    graph: Graph

    def clusters(self, column: str) -> Mapping[NodeType, Tensor]:
        """Return the cluster of every node, from a column of the graph. Collective."""
        return clusters_of(self.graph, column)


@dataclass(frozen=True, eq=False)
class _WatchedContext(SamplerContext):
    """The context of a custom sampler, which records the inputs that its `build` reads."""

    read: set[str] = field(default_factory=set)

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        object.__getattribute__(self, "read").add(name)
        return object.__getattribute__(self, name)


_OF_EDGES = ("relation", "edge_column")  # settings of models that name a column of edges
# The settings in each input. A sampler gets the times of seeds with the seeds.
_CARRIED = {
    "fanouts": ("fanouts",),
    "rule": ("replacement", "weight", "temporal_strategy", "window", "temporal_limit", "rule"),
    "expansion": ("expansion",),
}


def _unread(table: SamplerTable, read: Collection[str]) -> list[str]:
    """Return the settings that differ from their defaults and are in none of the inputs `read`."""
    names = [name for carrier, carried in _CARRIED.items() if carrier not in read for name in carried]
    fields = type(table).model_fields
    return [f"sampler.{name}" for name in names if getattr(table, name) != fields[name].default]


@dataclass(frozen=True, eq=False)
class TaskContext:
    """Inputs of a task's `build`, which returns a `RunTask`. Its functions make the parts of the run.

    `dataclasses.replace(context, graph=...)` is the context for a part of the graph, such as the training
    edges; the graph of its sampler is then placed as the run requests.
    """

    config: RunConfig  # resolved
    graph: Graph
    later: LaterPlacement | None = None  # of the training edges; None: nothing remains to be placed

    def sizes(self, node_type: NodeType, outputs: int | None = None, label: str | None = None) -> ModelSizes:
        """Return the sizes of a model with `outputs` values per node, or with the classes of a label."""
        model = self.config.model
        target = node_type if outputs is None else [node_type]
        embeddings = (model.embedding, model.embedding_update, model.embedded_types, model.unknown)
        sizes = ModelSizes.of(self.graph, target, model.column, label, outputs, *embeddings)
        # Exact evaluation only follows the edge types of the training hops, because the model has weights for
        # these.
        followed = followed_types(self.graph.schema, self.config.sampler.fanouts)
        return replace(sizes, targets=node_type, edge_types=followed)

    def model(
        self, sizes: ModelSizes, around: Callable[[nn.Module], nn.Module] = lambda model: model
    ) -> nn.Module:
        """Build the model of the run on its device; equal runs get equal weights.

        `around` may wrap the model in a module with further weights.
        """
        table = self.config.model
        assert table.layers is not None
        context = ModelContext(self.graph, sizes, table.hidden, table.layers)
        made = seeded(self.config.training.seed, lambda: around(built(self.config, "model", context)))
        return made.to(self.config.device, dtype_of(self.config))

    def sampler(self, fanouts: Sequence[Fanout] | None = None, links: LinkSettings | None = None) -> Sampler:
        """Build the sampler of training batches, by default with the run's fanouts.

        Its graph is `placed`, so that sampling runs on the requested device.
        """
        fanouts = self.config.sampler.fanouts if fanouts is None else fanouts
        context = replace(self, graph=self.placed(self.graph))._sampling(fanouts, links)
        if self.config.sampler.kind in (None, *SAMPLERS.builtin):
            made: Sampler = built(self.config, "sampler", context)
            return made
        watched = _WatchedContext(**vars(context))
        made = built(self.config, "sampler", watched)
        unread = _unread(self.config.sampler, watched.read)
        if unread and this_group().rank == 0:
            warnings.warn(
                f"{', '.join(unread)}: {self.config.sampler.kind} does not read this when it is built, so "
                "training batches do not depend on it; leave it out (of fanouts, only their number counts)",
                stacklevel=1,
            )
        return made

    def placed(self, graph: Graph) -> Graph:
        """Return a graph of training edges with its stores placed as the table `gpu` of the run requests.

        A graph that is already placed is returned unchanged, and so is any graph if the run requests nothing.
        """
        return graph if self.later is None else self.later.placed(graph)

    def neighbor_sampler(self, fanouts: Sequence[Fanout], links: LinkSettings | None = None) -> Sampler:
        """Make a sampler of neighborhoods by the run's rule, for evaluation."""
        made: Sampler = SAMPLERS.load(SAMPLERS.default).build(None, self._sampling(fanouts, links))
        return made

    def loader(
        self,
        sampler: Sampler,
        nodes: SplitNodes | NodeTuples | SeedTable,
        model: nn.Module,
        seed_columns: NamesByType,
    ) -> Loader:
        """Make the loader of training batches: shuffled seeds, with the columns of the model."""
        columns = columns_of(self.config, self.graph, model)
        time = None if isinstance(nodes, SeedTable) else self.config.sampler.time
        if time is not None and isinstance(nodes, Mapping):
            time = self.time_of_seeds(next(iter(nodes)))
        return seeds_loader(self.config, sampler, nodes, columns, seed_columns, time)

    def time_of_seeds(self, node_type: NodeType) -> str | None:
        """Return the column with the times of seeds: the dates of their labels, if the graph has them."""
        time, there = self.config.sampler.time, self.graph.schema.columns.get(node_type, {})
        return LABEL_TIME if time is not None and LABEL_TIME in there else time

    def links_loader(self, sampler: Sampler, links: LinkList, model: nn.Module) -> Loader:
        """Make the loader of training batches of links, which may have times."""
        return seeds_loader(self.config, sampler, links, columns_of(self.config, self.graph, model), {})

    def columns(self, model: nn.Module) -> ColumnChoice:
        """Return the columns that batches for evaluation gather."""
        return ColumnChoice.of(self.graph.schema, columns_of(self.config, self.graph, model), (), ())

    def outputs(
        self,
        model: nn.Module,
        node_type: NodeType,
        nodes: Tensor,
        progress: Progress,
        times: Tensor | None = None,
    ) -> Tensor:
        """Compute the outputs of nodes as `evaluation` says: exact, or over drawn neighbors. Collective.

        Each rank gets (nodes, outputs). `times` are the times of the rows of a table; by default, times are
        read from the graph. If the model does not expose its layers, exact outputs are computed from batches
        with all neighbors.
        """
        config, group, fanouts = self.config, this_group(), self.config.evaluation.fanouts
        if not fanouts and isinstance(model, Layered):
            draws = exact_draws_of(config, self.graph)
            return layerwise_inference(
                model,
                self.graph,
                self.graph.features,
                node_type,
                nodes=nodes,
                rule=draws.rule,
                fanouts=draws.fanouts,
                chunk_size=config.evaluation.batch_size,
                chunk_edges=config.evaluation.batch_edges,
                progress=progress,
                in_flight=in_flight_of(config),
                group=group,
                lanes=self.graph.lanes,
            )
        sampler = self.neighbor_sampler(fanouts or self.all_neighbors(model, config.sampler.fanouts))
        return sampled_inference(
            model,
            sampler,
            self.graph.features,
            node_type,
            nodes=nodes,
            times=self.time_of_seeds(node_type) if times is None else times,
            columns=self.columns(model),
            seed=config.training.seed,
            chunk_size=config.evaluation.batch_size,
            progress=progress,
            in_flight=in_flight_of(config),
            group=group,
            lanes=self.graph.lanes,
        )

    def all_neighbors(self, model: nn.Module, fanouts: Sequence[Fanout]) -> Sequence[Fanout]:
        """Return fanouts of -1 (all neighbors) for the edge types that `fanouts` follow; rank 0 warns.

        They are for a model that does not expose its layers. For `TopK`, `fanouts` are returned.
        """
        like = self.neighbor_sampler(fanouts if self.config.sampler.layers_are_hops else _all(self.config))
        return all_neighbors(model, like, warn=this_group().rank == 0)

    def _sampling(self, fanouts: Sequence[Fanout], links: LinkSettings | None) -> SamplerContext:
        expansion = Expansion(self.config.sampler.expansion)
        layers = self.config.model.layers or len(fanouts)
        rule, seed = rule_of(self.config, self.graph), self.config.training.seed
        named = [getattr(self.config.model, name, None) for name in _OF_EDGES]
        columns = tuple(name for name in named if name is not None)
        return SamplerContext(self.graph, fanouts, rule, expansion, links, layers, seed, columns)


def exact_draws_of(config: RunConfig, graph: Graph) -> ExactDraws:
    """Return the rule and the fanouts of exact inference.

    Samplers of groups of nodes use all edges among these nodes. With `sampler.time`, outputs are computed at
    the end of the data, when all edges are in the past. Raises ValueError if the run would still draw from
    only a part of the edges.
    """
    sampler = config.sampler
    if not draws_all_edges(config):
        usual = {"window": None, "temporal_strategy": "sample", "temporal_limit": "seed"}
        named = [(f"sampler.{name}", getattr(sampler, name)) for name in usual]
        named = [pair for pair, of in zip(named, usual.values(), strict=True) if pair[1] != of]
        name, value = [*named, ("model.edge_times", edge_times(config))][0]
        raise ValueError(
            f"{name} is {value!r}: inference over all neighbors would use "
            "edges that training leaves out; khop evaluate RUN_FOLDER --predictions FILE draws as training "
            "does"
        )
    return ExactDraws(
        untimed_rule_of(config, graph), sampler.fanouts if sampler.layers_are_hops else _all(config)
    )


def _all(config: RunConfig) -> list[int]:
    assert config.model.layers is not None
    return [-1] * config.model.layers


def draws_all_edges(config: RunConfig) -> bool:
    """Return True if a seed at the end of the data may draw any edge, at any distance, and any time fits."""
    sampler = config.sampler
    is_any = sampler.window is None and sampler.temporal_strategy == "sample"
    return is_any and sampler.temporal_limit == "seed" and edge_times(config) is None


def edge_times(config: RunConfig) -> int | None:
    """Return the width of the features of elapsed times, if the model reads them."""
    return getattr(config.model, "edge_times", None)


def untimed_rule_of(config: RunConfig, graph: Graph) -> Rule:
    """Return the rule that draws among the neighbors that the run's time limit allows."""
    table = config.sampler
    if table.rule is not None:
        made: Rule = built(config, "sampler.rule", RuleContext(graph))
        return made
    return drawn_by(table.weight, table.replacement)


def rule_of(config: RunConfig, graph: Graph) -> Rule:
    """Return the rule that draws neighbors for a run."""
    table, inner = config.sampler, untimed_rule_of(config, graph)
    if table.time is None:
        return inner
    strategy, window = TemporalStrategy(table.temporal_strategy), table.window
    bounds = None if window is None else (window[0], window[1])
    elapsed = edge_times(config) is not None
    return Temporal(table.time, strategy, bounds, inner, table.temporal_limit, elapsed)


class RunTask(Protocol):
    """Model, batches and scores of a run, for example of node classification or of a custom task.

    A task with work before an epoch of training, such as a table of hard negatives, also has a method
    `before_epoch(epoch)`: it is called on all ranks before the first batch of the epoch is made. A task whose
    scores depend on more than the settings and the graph, such as on files of negatives, has `facts`: texts
    by name that a resumed run compares.
    """

    @property
    def model(self) -> nn.Module:
        """The model of the run."""
        ...

    @property
    def task(self) -> Task:
        """The training task."""
        ...

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits to evaluate, by their names in results. "val" selects the best checkpoint."""
        ...

    @property
    def whole(self) -> Graph:
        """The graph for inference, with every edge that the model follows."""
        ...

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The node types with output rows of the model."""
        ...

    def loader(self) -> Loader:
        """Make the loader of training batches."""
        ...

    def scores(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the task's metric on each split. Other metrics have keys like "val/roc-auc".

        Collective: the ranks share the work, and each rank gets all scores. The scores do not depend on the
        number of ranks.
        """
        ...


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores of some splits, and the predictions that they are computed from."""

    scores: dict[str, float]  # as RunTask.scores returns them
    predictions: Predictions
    baselines: Mapping[str, float] = field(default_factory=dict)  # such as "val/majority/accuracy"


@runtime_checkable
class PredictingTask(RunTask, Protocol):
    """A task whose predictions can be written: those of khop, and `khop.run.tasks.node_task.NodeTask.of`."""

    def evaluated(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> Evaluation:
        """Compute scores as `scores` does, and keep the outputs. Collective."""
        ...
