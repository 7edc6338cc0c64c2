"""Train graph neural networks on sampled neighborhoods: exact, reproducible, fast.

`import khop` alone imports no other library: a public name imports its module on first use. The public API is
`khop.__all__` with `khop.models`, `khop.pyg` and `khop.testing`, and the names that pages of docs/ import
from other modules. All other names are internal. tests/public_api.txt lists the public ones.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not from typing: until the command can handle Ctrl-C, it imports little

if TYPE_CHECKING:
    from typing import Any

    from khop.api.edges import relation_count as relation_count
    from khop.api.graph_from import graph_from_dgl as graph_from_dgl
    from khop.api.graph_from import graph_from_networkx as graph_from_networkx
    from khop.api.graph_from import graph_from_scipy as graph_from_scipy
    from khop.api.inference import evaluate as evaluate
    from khop.api.inference import evaluate_edges as evaluate_edges
    from khop.api.inference import evaluate_links as evaluate_links
    from khop.api.inference import infer as infer
    from khop.api.launch import launch as launch
    from khop.api.loader import Loader as Loader
    from khop.api.loader import initialize as initialize
    from khop.api.open_graph import Graph as Graph
    from khop.api.open_graph import open_graph as open_graph
    from khop.api.open_graph import open_ids as open_ids
    from khop.api.partition import cluster_graph as cluster_graph
    from khop.api.partition import clusters_of as clusters_of
    from khop.api.partition import partition_graph as partition_graph
    from khop.api.recommend import Recommendations as Recommendations
    from khop.api.recommend import recommend as recommend
    from khop.api.serve import connect as connect
    from khop.api.split_links import LinkSplit as LinkSplit
    from khop.api.split_links import split_links as split_links
    from khop.batch import Adjacency as Adjacency
    from khop.batch import Batch as Batch
    from khop.batch import Block as Block
    from khop.batch import LinkRows as LinkRows
    from khop.batch import LossWeights as LossWeights
    from khop.batch import Sample as Sample
    from khop.batch import Subgraph as Subgraph
    from khop.data.builtin import builtin_folder as builtin_folder
    from khop.data.builtin import builtin_names as builtin_names
    from khop.data.tables.append import append as append
    from khop.data.tables.pipeline import import_tables as import_tables
    from khop.draw import DegreeNegatives as DegreeNegatives
    from khop.draw import DrawKey as DrawKey
    from khop.draw import GivenNegatives as GivenNegatives
    from khop.draw import MixedNegatives as MixedNegatives
    from khop.draw import NegativeMode as NegativeMode
    from khop.draw import TableNegatives as TableNegatives
    from khop.draw import UniformNegatives as UniformNegatives
    from khop.draw import WeightedNegatives as WeightedNegatives
    from khop.errors import PeerLost as PeerLost
    from khop.errors import Terminated as Terminated
    from khop.graph.added_edges import cooccurrence as cooccurrence
    from khop.graph.build import write_graph as write_graph
    from khop.graph.features.store import FeatureStoreBase as FeatureStoreBase
    from khop.graph.folder import open_folder as open_folder
    from khop.graph.inputs import Quantized as Quantized
    from khop.graph.inputs import SparseColumn as SparseColumn
    from khop.graph.inputs import quantize as quantize
    from khop.graph.node_ids import OwnIds as OwnIds
    from khop.graph.rule import Rule as Rule
    from khop.graph.rule import RuleBase as RuleBase
    from khop.graph.snapshots import compact as compact
    from khop.graph.store import GraphStoreBase as GraphStoreBase
    from khop.graph.tables import EdgeChunks as EdgeChunks
    from khop.graph.tables import EdgeTable as EdgeTable
    from khop.graph.tables import NodeTable as NodeTable
    from khop.inference.full_ranking import TripleRanking as TripleRanking
    from khop.inference.full_ranking import full_ranking as full_ranking
    from khop.inference.full_ranking import triple_ranking as triple_ranking
    from khop.inference.link_evaluation import node_rows as node_rows
    from khop.inference.link_evaluation import with_negatives as with_negatives
    from khop.inference.node_outputs import layerwise_inference as layerwise_inference
    from khop.inference.node_outputs import sampled_inference as sampled_inference
    from khop.kernels.lazy_rows import SparseRows as SparseRows
    from khop.pyg.convert import batch_to_pyg as batch_to_pyg
    from khop.pyg.convert import graph_from_pyg as graph_from_pyg
    from khop.pyg.convert import graph_to_pyg as graph_to_pyg
    from khop.pyg.convert import links_from_pyg as links_from_pyg
    from khop.run.load_run import load_run as load_run
    from khop.sampling.frontier import Edges as Edges
    from khop.sampling.frontier import FrontierSampler as FrontierSampler
    from khop.sampling.frontier import FrontierView as FrontierView
    from khop.sampling.group_samplers import ClusterSampler as ClusterSampler
    from khop.sampling.group_samplers import SaintEdges as SaintEdges
    from khop.sampling.group_samplers import SaintNodes as SaintNodes
    from khop.sampling.group_samplers import SaintSampler as SaintSampler
    from khop.sampling.group_samplers import SaintWalks as SaintWalks
    from khop.sampling.group_samplers import ShadowSampler as ShadowSampler
    from khop.sampling.links.exclusion import Exclude as Exclude
    from khop.sampling.links.exclusion import SpotTarget as SpotTarget
    from khop.sampling.links.link_negatives import hard_negatives as hard_negatives
    from khop.sampling.links.link_seeds import Links as Links
    from khop.sampling.links.links import LinkSampler as LinkSampler
    from khop.sampling.outputs import Output as Output
    from khop.sampling.random_walks import Node2Vec as Node2Vec
    from khop.sampling.random_walks import WalkCounts as WalkCounts
    from khop.sampling.random_walks import random_walks as random_walks
    from khop.sampling.random_walks import walk_neighbors as walk_neighbors
    from khop.sampling.rules.labor import Labor as Labor
    from khop.sampling.rules.sum import RelationMean as RelationMean
    from khop.sampling.rules.sum import Sum as Sum
    from khop.sampling.rules.sum import SymmetricSum as SymmetricSum
    from khop.sampling.rules.temporal import Temporal as Temporal
    from khop.sampling.rules.temporal import TemporalStrategy as TemporalStrategy
    from khop.sampling.rules.top_k import TopK as TopK
    from khop.sampling.rules.uniform import Uniform as Uniform
    from khop.sampling.rules.weighted import Weighted as Weighted
    from khop.sampling.sampler import Expansion as Expansion
    from khop.sampling.sampler import NeighborSampler as NeighborSampler
    from khop.sampling.sampler import Sampler as Sampler
    from khop.sampling.sampler import SamplerBase as SamplerBase
    from khop.sampling.seed_table import SeedTable as SeedTable
    from khop.sampling.seeds import NodeTuples as NodeTuples
    from khop.sampling.seeds import Seeds as Seeds
    from khop.schema import ColumnSpec as ColumnSpec
    from khop.schema import Schema as Schema
    from khop.training.checkpoint import load_checkpoint as load_checkpoint
    from khop.training.checkpoint import restore_model as restore_model
    from khop.training.edge_tasks import EdgeClassification as EdgeClassification
    from khop.training.edge_tasks import EdgeRegression as EdgeRegression
    from khop.training.edge_tasks import LinkPrediction as LinkPrediction
    from khop.training.link_losses import InfoNce as InfoNce
    from khop.training.link_losses import LinkLoss as LinkLoss
    from khop.training.link_losses import MarginRanking as MarginRanking
    from khop.training.optimizer_settings import OptimizerSettings as OptimizerSettings
    from khop.training.optimizer_settings import Plateau as Plateau
    from khop.training.optimizer_settings import RowAdam as RowAdam
    from khop.training.optimizer_settings import Schedule as Schedule
    from khop.training.run_loggers import MlflowLog as MlflowLog
    from khop.training.run_loggers import TensorBoard as TensorBoard
    from khop.training.run_loggers import WandbLog as WandbLog
    from khop.training.settings import CheckpointPolicy as CheckpointPolicy
    from khop.training.settings import TrainerSettings as TrainerSettings
    from khop.training.step_clock import Observer as Observer
    from khop.training.step_clock import Several as Several
    from khop.training.step_clock import Unwatched as Unwatched
    from khop.training.tasks import ClassLoss as ClassLoss
    from khop.training.tasks import Constant as Constant
    from khop.training.tasks import LabelScale as LabelScale
    from khop.training.tasks import MultiLabelClassification as MultiLabelClassification
    from khop.training.tasks import NodeClassification as NodeClassification
    from khop.training.tasks import NodeRegression as NodeRegression
    from khop.training.tasks import class_weights as class_weights
    from khop.training.trainer import Trainer as Trainer

__version__ = "0.1.0"

# Public name -> the module that defines it; the name of a module maps to the module itself.
# Editors and mypy read the same list above; tests/test_architecture.py compares the two.
_PUBLIC = {
    "Adjacency": "khop.batch",
    "Batch": "khop.batch",
    "Block": "khop.batch",
    "ColumnSpec": "khop.schema",
    "Constant": "khop.training.tasks",
    "ClassLoss": "khop.training.tasks",
    "DegreeNegatives": "khop.draw",
    "DrawKey": "khop.draw",
    "EdgeChunks": "khop.graph.tables",
    "EdgeTable": "khop.graph.tables",
    "Edges": "khop.sampling.frontier",
    "Exclude": "khop.sampling.links.exclusion",
    "Expansion": "khop.sampling.sampler",
    "FeatureStoreBase": "khop.graph.features.store",
    "FrontierSampler": "khop.sampling.frontier",
    "FrontierView": "khop.sampling.frontier",
    "GivenNegatives": "khop.draw",
    "Graph": "khop.api.open_graph",
    "GraphStoreBase": "khop.graph.store",
    "CheckpointPolicy": "khop.training.settings",
    "Labor": "khop.sampling.rules.labor",
    "LabelScale": "khop.training.tasks",
    "LinkRows": "khop.batch",
    "LinkSampler": "khop.sampling.links.links",
    "EdgeClassification": "khop.training.edge_tasks",
    "EdgeRegression": "khop.training.edge_tasks",
    "InfoNce": "khop.training.link_losses",
    "LinkLoss": "khop.training.link_losses",
    "MarginRanking": "khop.training.link_losses",
    "LinkPrediction": "khop.training.edge_tasks",
    "LinkSplit": "khop.api.split_links",
    "Links": "khop.sampling.links.link_seeds",
    "LossWeights": "khop.batch",
    "Loader": "khop.api.loader",
    "MixedNegatives": "khop.draw",
    "MultiLabelClassification": "khop.training.tasks",
    "NegativeMode": "khop.draw",
    "NeighborSampler": "khop.sampling.sampler",
    "NodeClassification": "khop.training.tasks",
    "NodeRegression": "khop.training.tasks",
    "NodeTuples": "khop.sampling.seeds",
    "NodeTable": "khop.graph.tables",
    "MlflowLog": "khop.training.run_loggers",
    "Observer": "khop.training.step_clock",
    "Several": "khop.training.step_clock",
    "TensorBoard": "khop.training.run_loggers",
    "Unwatched": "khop.training.step_clock",
    "WandbLog": "khop.training.run_loggers",
    "Output": "khop.sampling.outputs",
    "OptimizerSettings": "khop.training.optimizer_settings",
    "OwnIds": "khop.graph.node_ids",
    "PeerLost": "khop.errors",
    "Plateau": "khop.training.optimizer_settings",
    "Quantized": "khop.graph.inputs",
    "Recommendations": "khop.api.recommend",
    "RowAdam": "khop.training.optimizer_settings",
    "RelationMean": "khop.sampling.rules.sum",
    "Rule": "khop.graph.rule",
    "RuleBase": "khop.graph.rule",
    "Sample": "khop.batch",
    "walk_neighbors": "khop.sampling.random_walks",
    "WalkCounts": "khop.sampling.random_walks",
    "random_walks": "khop.sampling.random_walks",
    "Node2Vec": "khop.sampling.random_walks",
    "ShadowSampler": "khop.sampling.group_samplers",
    "SaintWalks": "khop.sampling.group_samplers",
    "SaintEdges": "khop.sampling.group_samplers",
    "SaintNodes": "khop.sampling.group_samplers",
    "SaintSampler": "khop.sampling.group_samplers",
    "ClusterSampler": "khop.sampling.group_samplers",
    "Sampler": "khop.sampling.sampler",
    "SamplerBase": "khop.sampling.sampler",
    "Schedule": "khop.training.optimizer_settings",
    "Schema": "khop.schema",
    "SeedTable": "khop.sampling.seed_table",
    "Seeds": "khop.sampling.seeds",
    "Subgraph": "khop.batch",
    "SparseColumn": "khop.graph.inputs",
    "SparseRows": "khop.kernels.lazy_rows",
    "SpotTarget": "khop.sampling.links.exclusion",
    "Sum": "khop.sampling.rules.sum",
    "SymmetricSum": "khop.sampling.rules.sum",
    "TableNegatives": "khop.draw",
    "Temporal": "khop.sampling.rules.temporal",
    "TemporalStrategy": "khop.sampling.rules.temporal",
    "Terminated": "khop.errors",
    "TopK": "khop.sampling.rules.top_k",
    "Trainer": "khop.training.trainer",
    "TrainerSettings": "khop.training.settings",
    "Uniform": "khop.sampling.rules.uniform",
    "UniformNegatives": "khop.draw",
    "Weighted": "khop.sampling.rules.weighted",
    "WeightedNegatives": "khop.draw",
    "append": "khop.data.tables.append",
    "class_weights": "khop.training.tasks",
    "cooccurrence": "khop.graph.added_edges",
    "cluster_graph": "khop.api.partition",
    "clusters_of": "khop.api.partition",
    "compact": "khop.graph.snapshots",
    "connect": "khop.api.serve",
    "evaluate": "khop.api.inference",
    "evaluate_edges": "khop.api.inference",
    "evaluate_links": "khop.api.inference",
    "import_tables": "khop.data.tables.pipeline",
    "infer": "khop.api.inference",
    "full_ranking": "khop.inference.full_ranking",
    "TripleRanking": "khop.inference.full_ranking",
    "triple_ranking": "khop.inference.full_ranking",
    "hard_negatives": "khop.sampling.links.link_negatives",
    "graph_from_dgl": "khop.api.graph_from",
    "graph_from_networkx": "khop.api.graph_from",
    "graph_from_pyg": "khop.pyg.convert",
    "graph_from_scipy": "khop.api.graph_from",
    "graph_to_pyg": "khop.pyg.convert",
    "initialize": "khop.api.loader",
    "launch": "khop.api.launch",
    "layerwise_inference": "khop.inference.node_outputs",
    "links_from_pyg": "khop.pyg.convert",
    "load_checkpoint": "khop.training.checkpoint",
    "load_run": "khop.run.load_run",
    "partition_graph": "khop.api.partition",
    "node_rows": "khop.inference.link_evaluation",
    "batch_to_pyg": "khop.pyg.convert",
    "builtin_folder": "khop.data.builtin",
    "builtin_names": "khop.data.builtin",
    "open_folder": "khop.graph.folder",
    "open_ids": "khop.api.open_graph",
    "open_graph": "khop.api.open_graph",
    "quantize": "khop.graph.inputs",
    "recommend": "khop.api.recommend",
    "restore_model": "khop.training.checkpoint",
    "sampled_inference": "khop.inference.node_outputs",
    "with_negatives": "khop.inference.link_evaluation",
    "relation_count": "khop.api.edges",
    "split_links": "khop.api.split_links",
    "write_graph": "khop.graph.build",
}
_MODULES = ("models", "testing")
_NEED_EXTRA = ("khop.pyg", "khop.data.tables", "khop.run.load_run")


def _before_fork() -> None:  # of this process: khop records what the child will lack
    if "torch" in sys.modules:
        _module("khop.process_tuning").before_fork()


def _after_fork() -> None:
    if "khop.process_tuning" in sys.modules:
        _module("khop.process_tuning").after_fork()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)

# `from khop import *` needs only khop's required packages, so names that need an extra are left out.
__all__ = [*(name for name, module in _PUBLIC.items() if not module.startswith(_NEED_EXTRA)), *_MODULES]


def __getattr__(name: str) -> object:
    """Import the object `name`; afterwards it is an ordinary attribute."""
    if name in _MODULES:
        return _module(f"khop.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'khop' has no attribute {name!r}")
    value = getattr(_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def _module(name: str) -> Any:  # noqa: ANN401
    from importlib import import_module

    return import_module(name)


def __dir__() -> list[str]:
    """Return the names for tab completion."""
    return sorted([*_PUBLIC, *_MODULES, "__version__"])
