"""khop's own models, built from their options."""

from __future__ import annotations

from khop.api.relation_count import relation_count
from khop.config.contexts import ModelContext
from khop.config.tables import GatTable, HgtTable, ModelTable, RgcnTable, SageTable, StackTable
from khop.models.encoder import Encoding
from khop.models.gat import GAT, EdgeInputs
from khop.models.gcn import GCN
from khop.models.gin import GIN
from khop.models.hgt import HGT
from khop.models.layer import Residual
from khop.models.light_gcn import LightGCN
from khop.models.related_edges import RelationColumn
from khop.models.rgcn import RGCN
from khop.models.sage import SAGE


def sage(options: SageTable, context: ModelContext) -> SAGE:
    """Make a GraphSAGE, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    return SAGE(context.sizes, *shape, encoder=options.encoder)


def gat(options: GatTable, context: ModelContext) -> GAT:
    """Make a graph attention network, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    named, schema = options.edge_column, context.graph.schema
    edges = None if named is None else EdgeInputs.of(schema, named, context.sizes.edge_types)
    return GAT(context.sizes, *shape, options.encoder, options.heads, options.attention, edges)


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


def rgcn(options: RgcnTable, context: ModelContext) -> RGCN:
    """Make a relational GCN, with new weights from torch's generator."""
    shape = (context.hidden, context.layers, options.dropout, options.norm, _residual(options))
    encoder: Encoding = "none" if options.inputs == "columns" else "linear"
    return RGCN(context.sizes, *shape, options.bases, _relations(options, context), encoder)


def _relations(options: RgcnTable, context: ModelContext) -> RelationColumn | None:
    """Return the column of relations, with their numbers in the graph."""
    name, graph = options.relation, context.graph
    if name is None:
        return None
    having = [t for t in context.sizes.edge_types if name in graph.schema.columns.get(t, {})]
    if not having:
        there = {" ".join(t): sorted(graph.schema.columns.get(t, {})) for t in context.sizes.edge_types}
        raise ValueError(f"model.relation is {name!r}: no edge type has this column; there are {there}")
    return RelationColumn(name, {t: relation_count(graph, t, name) for t in having})


def _residual(options: StackTable) -> Residual:
    return "add" if options.residual else "none"
