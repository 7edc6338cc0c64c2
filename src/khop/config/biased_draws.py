"""Runs whose draws estimate another quantity than their exact evaluation."""

from __future__ import annotations

from khop.api.open_graph import Graph
from khop.config.contexts import rule_of
from khop.config.values import RunConfig
from khop.rules.weighted import weighted_in
from khop.sampling.fanouts import fanouts_by_type

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
