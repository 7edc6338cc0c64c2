"""Graph neural networks over the blocks of a batch, and decoders of links.

Each public name imports its module on first use. The public names are in `khop.models.__all__`. The modules
of this package are internal: their names may change in any version.

Example:
    >>> graph = khop.open_graph("debian")
    >>> model = khop.models.SAGE.for_graph(graph, hidden=64, layers=2)
    >>> model.num_layers
    2
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from khop.models.decoders import MLP as MLP
    from khop.models.decoders import ComplEx as ComplEx
    from khop.models.decoders import DistMult as DistMult
    from khop.models.decoders import Dot as Dot
    from khop.models.decoders import RotatE as RotatE
    from khop.models.decoders import TransE as TransE
    from khop.models.encoder import ModelSizes as ModelSizes
    from khop.models.gat import GAT as GAT
    from khop.models.gcn import GCN as GCN
    from khop.models.gin import GIN as GIN
    from khop.models.hgt import HGT as HGT
    from khop.models.light_gcn import LightGCN as LightGCN
    from khop.models.link_predictor import EdgeHead as EdgeHead
    from khop.models.link_predictor import EdgePredictor as EdgePredictor
    from khop.models.link_predictor import LinkPredictor as LinkPredictor
    from khop.models.link_predictor import SharedDecoder as SharedDecoder
    from khop.models.mlp import ColumnMLP as ColumnMLP
    from khop.models.node_embedding import NodeEmbedding as NodeEmbedding
    from khop.models.node_embedding import gathered as gathered
    from khop.models.rgat import RGAT as RGAT
    from khop.models.rgcn import RGCN as RGCN
    from khop.models.rgcn import RelationColumn as RelationColumn
    from khop.models.sage import SAGE as SAGE
    from khop.models.stack import Layered as Layered
    from khop.models.stack import Sequential as Sequential
    from khop.models.time2vec import Time2Vec as Time2Vec

_PUBLIC = {
    "GAT": "khop.models.gat",
    "Time2Vec": "khop.models.time2vec",
    "GCN": "khop.models.gcn",
    "GIN": "khop.models.gin",
    "HGT": "khop.models.hgt",
    "LightGCN": "khop.models.light_gcn",
    "RGAT": "khop.models.rgat",
    "RGCN": "khop.models.rgcn",
    "ColumnMLP": "khop.models.mlp",
    "ComplEx": "khop.models.decoders",
    "DistMult": "khop.models.decoders",
    "Dot": "khop.models.decoders",
    "MLP": "khop.models.decoders",
    "RelationColumn": "khop.models.rgcn",
    "RotatE": "khop.models.decoders",
    "SharedDecoder": "khop.models.link_predictor",
    "TransE": "khop.models.decoders",
    "EdgeHead": "khop.models.link_predictor",
    "EdgePredictor": "khop.models.link_predictor",
    "SAGE": "khop.models.sage",
    "Sequential": "khop.models.stack",
    "NodeEmbedding": "khop.models.node_embedding",
    "gathered": "khop.models.node_embedding",
    "Layered": "khop.models.stack",
    "LinkPredictor": "khop.models.link_predictor",
    "ModelSizes": "khop.models.encoder",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> object:
    """Import the object called `name` and make it an ordinary attribute."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'khop.models' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, for tab completion."""
    return sorted(__all__)
