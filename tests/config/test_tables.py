"""Tables of components: options that exclude each other are refused together."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from khop.config.tables import RuleTable, SageTable, SamplerTable, StackTable


@pytest.mark.parametrize("beside", [{"weight": "price"}, {"replacement": True}], ids=str)
def test_a_rule_of_its_own_stands_alone(beside: dict[str, object]) -> None:
    rule = RuleTable(kind="uniform")
    assert SamplerTable(rule=rule).rule == rule
    with pytest.raises(ValidationError, match=r"sampler\.rule is 'uniform': it draws in place of"):
        SamplerTable(rule=rule, **beside)  # type: ignore[arg-type]


def test_bases_are_of_rgcn_alone() -> None:
    assert StackTable(kind="rgcn", bases=2).bases == 2
    with pytest.raises(ValidationError, match="only rgcn has bases"):
        SageTable(bases=2)
