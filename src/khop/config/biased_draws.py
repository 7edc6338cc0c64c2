"""Sentences about runs that compute something else than one may expect: biased draws, unread columns."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from khop.api.open_graph import Graph
from khop.config.contexts import rule_of
from khop.config.fields import value_at
from khop.config.parts import columns_of, words_of
from khop.config.values import RunConfig
from khop.models.edge_predictor import EdgePredictor
from khop.models.link_predictor import LinkPredictor
from khop.rules.weighted import weighted_in
from khop.sampling.fanouts import fanouts_by_type
from khop.sampling.time_split import SPLIT, TIME
from khop.schema import EdgeType

_ATTEND = ("gat", "hgt")  # models that weigh neighbors by attention, under any rule


def biased_draws(config: RunConfig, graph: Graph) -> str | None:
    """Return a sentence with the remedy if training draws by weight without replacement, else None.

    A mean over such draws is biased, and exact evaluation is the plain mean. There is no sentence for
    evaluation on samples, for weights that are a mask, or if all neighbors are drawn.
    """
    rule = weighted_in(rule_of(config, graph))
    if rule is None or rule.replacement or config.evaluation.fanouts:
        return None
    if config.model.kind in _ATTEND or not config.sampler.layers_are_hops:
        return None
    schema = graph.schema
    specs = {t: schema.columns.get(t, {}).get(rule.column) for t in schema.edge_types}
    weighed = [t for t, spec in specs.items() if spec is not None and spec.dtype != "bool"]
    if not any(hop[t] > 0 for hop in fanouts_by_type(schema, config.sampler.fanouts) for t in weighed):
        return None
    setting = "sampler.replacement" if config.sampler.rule is None else "sampler.rule.replacement"
    return (
        f"draws by {rule.column} without replacement are biased: training averages lie between the mean by "
        f"weight and the plain mean, and exact evaluation takes the plain mean; with {setting} = true both "
        "are the mean by weight"
    )


def unread_edge_columns(config: RunConfig, graph: Graph, model: nn.Module) -> str | None:
    """Return a sentence with the remedies if edges have numbers that neither model nor sampler reads."""
    encoder = model.encoder if isinstance(model, LinkPredictor | EdgePredictor) else model
    named = columns_of(config, graph, encoder)
    by_type = named if isinstance(named, Mapping) else {}
    settings = ("sampler.time", "sampler.weight", "sampler.rule.column", "links.relation", "task.label")
    used = {SPLIT, TIME, *(value_at(config, path) for path in settings)}
    schema, found = graph.schema, dict[EdgeType, list[str]]()
    for edge_type in schema.edge_types:
        names = [name for name in schema.columns.get(edge_type, {}) if name not in used]
        unread = [name for name in names if name not in by_type.get(edge_type, ())]
        if unread and schema.reverse(edge_type) not in found:
            found[edge_type] = unread
    if not found:
        return None
    words = "; ".join(f"{', '.join(names)} of {words_of(t)}" for t, names in found.items())
    first = next(iter(found.values()))[0]
    return (
        f"columns of edges that {config.model.kind} does not read: {words}. --model gat --edge-column "
        f"{first} reads numbers, and --model rgcn --relation COLUMN whole numbers as relations; all models "
        'read rows that are imported as nodes (docs/import.md, "Events as nodes")'
    )
