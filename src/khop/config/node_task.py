"""Node-classification runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.config.parts import (
    dtype_of,
    expansion_of,
    in_flight_of,
    input_columns,
    known_metric,
    rule_of,
    seeds_loader,
    stack_of,
)
from khop.config.values import Fanout, RunConfig
from khop.inference.chunks import Progress
from khop.inference.evaluation import scores
from khop.inference.node_outputs import layerwise_inference, sampled_inference
from khop.loading.columns import ColumnChoice
from khop.loading.seed_times import seed_times
from khop.models.sizes import ModelSizes
from khop.models.stack import Stack
from khop.runtime.group import this_group
from khop.sampling.fanouts import followed_types
from khop.sampling.neighbor import NeighborSampler
from khop.schema import NodeType
from khop.training.initial import seeded
from khop.training.metrics import METRICS
from khop.training.tasks import NodeClassification

SPLITS = ("train", "val", "test")  # names in results; the graph may use other names


@dataclass(frozen=True, eq=False)
class NodeTask:
    """The task of a node-classification run: nodes of one type, their labels, and a model to predict them."""

    config: RunConfig  # resolved
    graph: Graph
    model: Stack
    task: NodeClassification
    splits: tuple[str, ...] = SPLITS

    @classmethod
    def of(cls, config: RunConfig, graph: Graph) -> NodeTask:
        """Make the task with a new model; equal runs get equal models."""
        task = config.task
        assert task.target is not None
        assert task.label is not None
        sizes = ModelSizes.of(
            graph,
            task.target,
            config.model.column,
            task.label,
            embedding=config.model.embedding,
            embedding_update=config.model.embedding_update,
        )
        # Exact evaluation follows the edge types that the model has learned: only the ones of a training hop.
        sizes = replace(sizes, edge_types=followed_types(graph.schema, config.sampler.fanouts))
        model = seeded(config.training.seed, lambda: stack_of(config, sizes))
        model = model.to(config.device, dtype_of(config))
        return cls(
            config,
            graph,
            model,
            NodeClassification(task.target, task.label, known_metric(task.metric, METRICS)),
        )

    @property
    def whole(self) -> Graph:
        """The graph for inference: the entire graph."""
        return self.graph

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The classified node type."""
        return (self.task.node_type,)

    def loader(self) -> Loader:
        """Make the loader of training batches."""
        target = self.task.node_type
        return seeds_loader(
            self.config,
            self._sampler(self.config.sampler.fanouts),
            {target: self._nodes("train")},
            input_columns(self.config, self.graph),
            {target: [self.task.label]},
            self.config.sampler.time,
        )

    def scores(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the task's metric and the metrics in `beside` on each split, in one evaluation pass."""
        metrics = [known_metric(name, METRICS) for name in beside]
        nodes = {split: self._nodes(split) for split in splits}
        return scores(
            self.task, self.graph.features, nodes, lambda ids: self._outputs(ids, progress), metrics
        )

    def _outputs(self, nodes: Tensor, progress: Progress) -> Tensor:
        config, target = self.config, self.task.node_type
        evaluation = config.evaluation
        if not evaluation.fanouts:
            return layerwise_inference(
                self.model,
                self.graph,
                self.graph.features,
                target,
                nodes=nodes,
                chunk_size=evaluation.batch_size,
                progress=progress,
                in_flight=in_flight_of(config),
                group=this_group(),
                lanes=self.graph.lanes,
            )
        return sampled_inference(
            self.model,
            self._sampler(evaluation.fanouts),
            self.graph.features,
            target,
            nodes=nodes,
            times=self._times(nodes),
            columns=ColumnChoice.of(self.graph.schema, input_columns(config, self.graph), (), ()),
            seed=config.training.seed,
            chunk_size=evaluation.batch_size,
            progress=progress,
            in_flight=in_flight_of(config),
            group=this_group(),
            lanes=self.graph.lanes,
        )

    def _times(self, nodes: Tensor) -> Tensor | None:
        column, target = self.config.sampler.time, self.task.node_type
        if column is None:
            return None
        return seed_times(column, {target: nodes}, self.graph.schema, self.graph.features)[target]

    def _nodes(self, split: str) -> Tensor:
        return self.graph.split(getattr(self.config.task, f"{split}_split"))[self.task.node_type]

    def _sampler(self, fanouts: tuple[Fanout, ...]) -> NeighborSampler:
        rule, expansion = rule_of(self.config.sampler), expansion_of(self.config)
        return NeighborSampler(self.graph, fanouts, rule=rule, expansion=expansion)
