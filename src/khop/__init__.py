"""Train graph neural networks on sampled neighborhoods: exact, reproducible, fast.

`import khop` alone loads no other library: a public name imports its module on first use. The public API is
`khop.__all__` with `khop.models`, `khop.pyg` and `khop.testing`, and the names that pages of docs/ import
from other modules. All other names are internal. tests/public_api.txt lists the public ones.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from khop.forks import watch_forks

if TYPE_CHECKING:
    from khop.api.cluster_graph import cluster_graph as cluster_graph
    from khop.api.cluster_graph import clusters_of as clusters_of
    from khop.api.connect import connect as connect
    from khop.api.evaluate import evaluate as evaluate
    from khop.api.evaluate import evaluate_edges as evaluate_edges
    from khop.api.evaluate import evaluate_links as evaluate_links
    from khop.api.graph_from_dgl import graph_from_dgl as graph_from_dgl
    from khop.api.graph_from_networkx import graph_from_networkx as graph_from_networkx
    from khop.api.graph_from_scipy import graph_from_scipy as graph_from_scipy
    from khop.api.infer import infer as infer
    from khop.api.initialize import initialize as initialize
    from khop.api.launch import launch as launch
    from khop.api.loader import Loader as Loader
    from khop.api.open_graph import Graph as Graph
    from khop.api.open_graph import open_graph as open_graph
    from khop.api.open_ids import open_ids as open_ids
    from khop.api.partition import partition_graph as partition_graph
    from khop.api.recommend import Recommendations as Recommendations
    from khop.api.recommend import recommend as recommend
    from khop.api.relation_count import relation_count as relation_count
    from khop.api.split_links import LinkSplit as LinkSplit
    from khop.api.split_links import split_links as split_links
    from khop.batch import Adjacency as Adjacency
    from khop.batch import Batch as Batch
    from khop.batch import Block as Block
    from khop.batch import LinkRows as LinkRows
    from khop.batch import LossWeights as LossWeights
    from khop.batch import Sample as Sample
    from khop.batch import Subgraph as Subgraph
    from khop.config.load_run import load_run as load_run
    from khop.datasets.builtin import builtin_folder as builtin_folder
    from khop.datasets.builtin import builtin_names as builtin_names
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
    from khop.features.store import FeatureStoreBase as FeatureStoreBase
    from khop.graph.build import write_graph as write_graph
    from khop.graph.compact import compact as compact
    from khop.graph.cooccurrence import cooccurrence as cooccurrence
    from khop.graph.folder import open_folder as open_folder
    from khop.graph.node_ids import OwnIds as OwnIds
    from khop.graph.quantize import Quantized as Quantized
    from khop.graph.quantize import quantize as quantize
    from khop.graph.sparse_column import SparseColumn as SparseColumn
    from khop.graph.store import GraphStoreBase as GraphStoreBase
    from khop.graph.tables import EdgeChunks as EdgeChunks
    from khop.graph.tables import EdgeTable as EdgeTable
    from khop.graph.tables import NodeTable as NodeTable
    from khop.importing.append import append as append
    from khop.importing.import_tables import import_tables as import_tables
    from khop.inference.full_ranking import full_ranking as full_ranking
    from khop.inference.link_evaluation import node_rows as node_rows
    from khop.inference.link_evaluation import with_negatives as with_negatives
    from khop.inference.node_outputs import layerwise_inference as layerwise_inference
    from khop.inference.node_outputs import sampled_inference as sampled_inference
    from khop.inference.triple_ranking import TripleRanking as TripleRanking
    from khop.inference.triple_ranking import triple_ranking as triple_ranking
    from khop.kernels.sparse_column import SparseRows as SparseRows
    from khop.pyg.convert import batch_to_pyg as batch_to_pyg
    from khop.pyg.convert import graph_from_pyg as graph_from_pyg
    from khop.pyg.convert import graph_to_pyg as graph_to_pyg
    from khop.pyg.label_links import links_from_pyg as links_from_pyg
    from khop.rules.labor import Labor as Labor
    from khop.rules.relation_mean import RelationMean as RelationMean
    from khop.rules.rule import Rule as Rule
    from khop.rules.rule import RuleBase as RuleBase
    from khop.rules.sum import Sum as Sum
    from khop.rules.symmetric_sum import SymmetricSum as SymmetricSum
    from khop.rules.temporal import Temporal as Temporal
    from khop.rules.temporal import TemporalStrategy as TemporalStrategy
    from khop.rules.top_k import TopK as TopK
    from khop.rules.uniform import Uniform as Uniform
    from khop.rules.weighted import Weighted as Weighted
    from khop.sampling.cluster import ClusterSampler as ClusterSampler
    from khop.sampling.exclusion import Exclude as Exclude
    from khop.sampling.frontier import Edges as Edges
    from khop.sampling.frontier import FrontierSampler as FrontierSampler
    from khop.sampling.frontier import FrontierView as FrontierView
    from khop.sampling.hard_negatives import hard_negatives as hard_negatives
    from khop.sampling.link_seeds import Links as Links
    from khop.sampling.links import LinkSampler as LinkSampler
    from khop.sampling.neighbor import Expansion as Expansion
    from khop.sampling.neighbor import NeighborSampler as NeighborSampler
    from khop.sampling.node2vec import Node2Vec as Node2Vec
    from khop.sampling.node_tuples import NodeTuples as NodeTuples
    from khop.sampling.outputs import Output as Output
    from khop.sampling.random_walks import random_walks as random_walks
    from khop.sampling.saint import SaintSampler as SaintSampler
    from khop.sampling.saint_draws import SaintEdges as SaintEdges
    from khop.sampling.saint_draws import SaintNodes as SaintNodes
    from khop.sampling.saint_draws import SaintWalks as SaintWalks
    from khop.sampling.sampler import Sampler as Sampler
    from khop.sampling.sampler import SamplerBase as SamplerBase
    from khop.sampling.sampler import Seeds as Seeds
    from khop.sampling.shadow import ShadowSampler as ShadowSampler
    from khop.sampling.spot_target import SpotTarget as SpotTarget
    from khop.sampling.walk_neighbors import WalkCounts as WalkCounts
    from khop.sampling.walk_neighbors import walk_neighbors as walk_neighbors
    from khop.schema import ColumnSpec as ColumnSpec
    from khop.schema import Schema as Schema
    from khop.training.baselines import Constant as Constant
    from khop.training.checkpoint import load_checkpoint as load_checkpoint
    from khop.training.checkpoint import restore_model as restore_model
    from khop.training.class_loss import ClassLoss as ClassLoss
    from khop.training.class_loss import class_weights as class_weights
    from khop.training.edge_tasks import EdgeClassification as EdgeClassification
    from khop.training.edge_tasks import EdgeRegression as EdgeRegression
    from khop.training.link_prediction import LinkPrediction as LinkPrediction
    from khop.training.multi_label import MultiLabelClassification as MultiLabelClassification
    from khop.training.observer import Observer as Observer
    from khop.training.observer import Several as Several
    from khop.training.observer import Unwatched as Unwatched
    from khop.training.optimizer_settings import OptimizerSettings as OptimizerSettings
    from khop.training.regression import LabelScale as LabelScale
    from khop.training.regression import NodeRegression as NodeRegression
    from khop.training.row_adam import RowAdam as RowAdam
    from khop.training.run_loggers import MlflowLog as MlflowLog
    from khop.training.run_loggers import WandbLog as WandbLog
    from khop.training.schedule import Plateau as Plateau
    from khop.training.schedule import Schedule as Schedule
    from khop.training.settings import CheckpointPolicy as CheckpointPolicy
    from khop.training.settings import TrainerSettings as TrainerSettings
    from khop.training.tasks import NodeClassification as NodeClassification
    from khop.training.tensorboard import TensorBoard as TensorBoard
    from khop.training.trainer import Trainer as Trainer

__version__ = "0.1.0"

# Public name -> the module that defines it; the name of a module maps to the module itself.
# Editors and mypy read the same list above; tests/test_architecture.py compares the two.
_PUBLIC = {
    "Adjacency": "khop.batch",
    "Batch": "khop.batch",
    "Block": "khop.batch",
    "ColumnSpec": "khop.schema",
    "Constant": "khop.training.baselines",
    "ClassLoss": "khop.training.class_loss",
    "DegreeNegatives": "khop.draw",
    "DrawKey": "khop.draw",
    "EdgeChunks": "khop.graph.tables",
    "EdgeTable": "khop.graph.tables",
    "Edges": "khop.sampling.frontier",
    "Exclude": "khop.sampling.exclusion",
    "Expansion": "khop.sampling.neighbor",
    "FeatureStoreBase": "khop.features.store",
    "FrontierSampler": "khop.sampling.frontier",
    "FrontierView": "khop.sampling.frontier",
    "GivenNegatives": "khop.draw",
    "Graph": "khop.api.open_graph",
    "GraphStoreBase": "khop.graph.store",
    "CheckpointPolicy": "khop.training.settings",
    "Labor": "khop.rules.labor",
    "LabelScale": "khop.training.regression",
    "LinkRows": "khop.batch",
    "LinkSampler": "khop.sampling.links",
    "EdgeClassification": "khop.training.edge_tasks",
    "EdgeRegression": "khop.training.edge_tasks",
    "LinkPrediction": "khop.training.link_prediction",
    "LinkSplit": "khop.api.split_links",
    "Links": "khop.sampling.link_seeds",
    "LossWeights": "khop.batch",
    "Loader": "khop.api.loader",
    "MixedNegatives": "khop.draw",
    "MultiLabelClassification": "khop.training.multi_label",
    "NegativeMode": "khop.draw",
    "NeighborSampler": "khop.sampling.neighbor",
    "NodeClassification": "khop.training.tasks",
    "NodeRegression": "khop.training.regression",
    "NodeTuples": "khop.sampling.node_tuples",
    "NodeTable": "khop.graph.tables",
    "MlflowLog": "khop.training.run_loggers",
    "Observer": "khop.training.observer",
    "Several": "khop.training.observer",
    "TensorBoard": "khop.training.tensorboard",
    "Unwatched": "khop.training.observer",
    "WandbLog": "khop.training.run_loggers",
    "Output": "khop.sampling.outputs",
    "OptimizerSettings": "khop.training.optimizer_settings",
    "OwnIds": "khop.graph.node_ids",
    "PeerLost": "khop.errors",
    "Plateau": "khop.training.schedule",
    "Quantized": "khop.graph.quantize",
    "Recommendations": "khop.api.recommend",
    "RowAdam": "khop.training.row_adam",
    "RelationMean": "khop.rules.relation_mean",
    "Rule": "khop.rules.rule",
    "RuleBase": "khop.rules.rule",
    "Sample": "khop.batch",
    "walk_neighbors": "khop.sampling.walk_neighbors",
    "WalkCounts": "khop.sampling.walk_neighbors",
    "random_walks": "khop.sampling.random_walks",
    "Node2Vec": "khop.sampling.node2vec",
    "ShadowSampler": "khop.sampling.shadow",
    "SaintWalks": "khop.sampling.saint_draws",
    "SaintEdges": "khop.sampling.saint_draws",
    "SaintNodes": "khop.sampling.saint_draws",
    "SaintSampler": "khop.sampling.saint",
    "ClusterSampler": "khop.sampling.cluster",
    "Sampler": "khop.sampling.sampler",
    "SamplerBase": "khop.sampling.sampler",
    "Schedule": "khop.training.schedule",
    "Schema": "khop.schema",
    "Seeds": "khop.sampling.sampler",
    "Subgraph": "khop.batch",
    "SparseColumn": "khop.graph.sparse_column",
    "SparseRows": "khop.kernels.sparse_column",
    "SpotTarget": "khop.sampling.spot_target",
    "Sum": "khop.rules.sum",
    "SymmetricSum": "khop.rules.symmetric_sum",
    "TableNegatives": "khop.draw",
    "Temporal": "khop.rules.temporal",
    "TemporalStrategy": "khop.rules.temporal",
    "Terminated": "khop.errors",
    "TopK": "khop.rules.top_k",
    "Trainer": "khop.training.trainer",
    "TrainerSettings": "khop.training.settings",
    "Uniform": "khop.rules.uniform",
    "UniformNegatives": "khop.draw",
    "Weighted": "khop.rules.weighted",
    "WeightedNegatives": "khop.draw",
    "append": "khop.importing.append",
    "class_weights": "khop.training.class_loss",
    "cooccurrence": "khop.graph.cooccurrence",
    "cluster_graph": "khop.api.cluster_graph",
    "clusters_of": "khop.api.cluster_graph",
    "compact": "khop.graph.compact",
    "connect": "khop.api.connect",
    "evaluate": "khop.api.evaluate",
    "evaluate_edges": "khop.api.evaluate",
    "evaluate_links": "khop.api.evaluate",
    "import_tables": "khop.importing.import_tables",
    "infer": "khop.api.infer",
    "full_ranking": "khop.inference.full_ranking",
    "TripleRanking": "khop.inference.triple_ranking",
    "triple_ranking": "khop.inference.triple_ranking",
    "hard_negatives": "khop.sampling.hard_negatives",
    "graph_from_dgl": "khop.api.graph_from_dgl",
    "graph_from_networkx": "khop.api.graph_from_networkx",
    "graph_from_pyg": "khop.pyg.convert",
    "graph_from_scipy": "khop.api.graph_from_scipy",
    "graph_to_pyg": "khop.pyg.convert",
    "initialize": "khop.api.initialize",
    "launch": "khop.api.launch",
    "layerwise_inference": "khop.inference.node_outputs",
    "links_from_pyg": "khop.pyg.label_links",
    "load_checkpoint": "khop.training.checkpoint",
    "load_run": "khop.config.load_run",
    "partition_graph": "khop.api.partition",
    "node_rows": "khop.inference.link_evaluation",
    "batch_to_pyg": "khop.pyg.convert",
    "builtin_folder": "khop.datasets.builtin",
    "builtin_names": "khop.datasets.builtin",
    "open_folder": "khop.graph.folder",
    "open_ids": "khop.api.open_ids",
    "open_graph": "khop.api.open_graph",
    "quantize": "khop.graph.quantize",
    "recommend": "khop.api.recommend",
    "restore_model": "khop.training.checkpoint",
    "sampled_inference": "khop.inference.node_outputs",
    "with_negatives": "khop.inference.link_evaluation",
    "relation_count": "khop.api.relation_count",
    "split_links": "khop.api.split_links",
    "write_graph": "khop.graph.build",
}
_MODULES = ("models", "testing")
_NEED_EXTRA = ("khop.pyg", "khop.importing", "khop.config.load_run")

watch_forks()

# `from khop import *` needs only khop's required packages: names that need an extra are not in it.
__all__ = [*(name for name, module in _PUBLIC.items() if not module.startswith(_NEED_EXTRA)), *_MODULES]


def __getattr__(name: str) -> object:
    """Import the object for `name`; afterwards it is an ordinary attribute."""
    if name in _MODULES:
        return import_module(f"khop.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'khop' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names for tab completion."""
    return sorted([*_PUBLIC, *_MODULES, "__version__"])
