"""Draws of exact inference: edges per layer, by the rule and the fanouts of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.sampling.fanouts import Fanout, fanouts_by_type
from khop.schema import EdgeType, Schema

FanoutByType = dict[EdgeType, int]


def takes_fanouts(rule: Rule, schema: Schema, edge_types: Sequence[EdgeType]) -> bool:
    """Return True if exact inference along some of the edge types depends on the fanouts of training."""
    return any(rule.exact_fanout(schema, edge_type, 1) != -1 for edge_type in edge_types)


def unknown_fanouts(rule: Rule) -> ValueError:
    """Return the error for such a rule without these fanouts."""
    return ValueError(
        f"{rule}: exact inference takes the edges that training takes, and the fanouts of training are not "
        "known: give fanouts=[...], one per layer"
    )


@dataclass(frozen=True)
class ExactDraws:
    """The rule of training, and its fanouts for rules that take the same edges in exact inference."""

    rule: Rule = Uniform()
    fanouts: Sequence[Fanout] | None = None  # of training: one per layer, that of the seeds first

    def of_layers(
        self, schema: Schema, followed: Sequence[EdgeType], num_layers: int
    ) -> tuple[FanoutByType, ...]:
        """Return the fanouts of each layer's draws by edge type, input layer first; 0 for types not followed.

        They are -1 unless the rule takes the edges of training: `RuleBase.exact_fanout`. ValueError if it
        does, and the fanouts of training are missing or not one per layer.
        """
        hops: Sequence[FanoutByType] = [dict.fromkeys(schema.edge_types, 1)] * num_layers
        if takes_fanouts(self.rule, schema, followed):
            hops = self._hops(schema, num_layers)
        return tuple(
            {t: self.rule.exact_fanout(schema, t, hop[t]) if t in followed else 0 for t in schema.edge_types}
            for hop in reversed(hops)
        )

    def _hops(self, schema: Schema, num_layers: int) -> Sequence[FanoutByType]:
        """Return the fanouts of training by edge type, hop at the seeds first."""
        if self.fanouts is None:
            raise unknown_fanouts(self.rule)
        hops = fanouts_by_type(schema, self.fanouts)
        if len(hops) != num_layers:
            raise ValueError(
                f"fanouts of training, {list(self.fanouts)}: the model has {num_layers} layers; give one "
                "fanout per layer"
            )
        return hops


ALL_NEIGHBORS = ExactDraws()
