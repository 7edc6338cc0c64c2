"""Names of parameters: different types have different names, and torch's containers take each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from khop.models.names import parameter_name

WORDS = st.text(st.sampled_from("ab.:%2E"), min_size=1, max_size=4)
TYPES = st.lists(WORDS, min_size=1, max_size=3).filter(lambda names: len(names) != 2)


@given(first=TYPES, second=TYPES)
def test_names_are_unique_and_hold_no_dot(first: list[str], second: list[str]) -> None:
    names = parameter_name(*first), parameter_name(*second)
    assert (names[0] == names[1]) is (first == second)
    assert "." not in names[0]
    nn.ModuleDict({names[0]: nn.Identity()})


def test_attributes_of_containers_may_be_types() -> None:
    container = nn.ModuleDict({parameter_name(name): nn.Identity() for name in ("items", "keys", "type")})
    assert len(container) == 3
