"""khop's own models, built from their options."""

from __future__ import annotations

from khop.config.contexts import ModelContext
from khop.config.tables import GatTable, HgtTable, ModelTable, SageTable, StackTable
from khop.models.gat import GAT
from khop.models.gcn import GCN
from khop.models.gin import GIN
from khop.models.hgt import HGT
from khop.models.layer import Residual
from khop.models.light_gcn import LightGCN
from khop.models.rgcn import RGCN
from khop.models.sage import SAGE


def sage(options: SageTable, context: ModelContext) -> SAGE:
    """Make a GraphSAGE, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    return SAGE(context.sizes, *shape, encoder=options.encoder)


def gat(options: GatTable, context: ModelContext) -> GAT:
    """Make a graph attention network, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    return GAT(context.sizes, *shape, options.encoder, options.heads, options.attention)


def gin(options: SageTable, context: ModelContext) -> GIN:
    """Make a graph isomorphism network, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    return GIN(context.sizes, *shape)


def gcn(options: SageTable, context: ModelContext) -> GCN:
    """Make a graph convolutional network, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    return GCN(context.sizes, *shape, encoder=options.encoder)


def hgt(options: HgtTable, context: ModelContext) -> HGT:
    """Make a heterogeneous graph transformer, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm)
    return HGT(context.sizes, *shape, options.heads)


def light_gcn(options: ModelTable, context: ModelContext) -> LightGCN:
    """Make a LightGCN, with new weights from torch's generator."""
    return LightGCN(context.sizes, context.hidden, context.layers)


def rgcn(options: StackTable, context: ModelContext) -> RGCN:
    """Make a relational GCN, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    return RGCN(context.sizes, *shape, bases=options.bases)


def _residual(options: StackTable) -> Residual:
    return "add" if options.residual else "none"
