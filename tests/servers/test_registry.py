"""Names of requests are looked up and never imported; values come back equal."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import khop
from khop.errors import Unsupported
from khop.sampling.exclusion import Exclude
from khop.servers.json_fields import Document
from khop.servers.registry import BUILTIN, described, instance
from support.same_samples import assert_same

VALUES = [
    khop.Uniform(replacement=True),
    khop.Weighted("w"),
    khop.Sum(khop.Weighted("w")),
    khop.Sum(khop.Labor(layer_dependent=True, kappa=3)),
    khop.TopK("w"),
    khop.RelationMean("r", khop.Labor()),
    khop.Temporal("t", khop.TemporalStrategy.SAMPLE, (5, -1), khop.Weighted("w", replacement=True)),
    khop.UniformNegatives(3, khop.NegativeMode.TRIPLET, exact=True),
    khop.DegreeNegatives(2, power=0.5),
    khop.WeightedNegatives("w"),
    khop.GivenNegatives(),
    ({("user", "buys", "item"): 4, "x": -1}, 0.5, None, True, "text"),
]


def sent(value: object) -> Document:
    return Document.parsed(json.dumps(value).encode(), "sampler")


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_equal(value: object) -> None:
    assert_same(BUILTIN.made(sent(described(value))), value)


def test_words_of_enumerations_travel_as_text() -> None:
    assert described(Exclude.EDGE) == "edge"


@pytest.mark.parametrize(
    "name", ["os:system", "subprocess:Popen", "khop.servers.service:Service", "builtins.eval"]
)
def test_no_name_of_a_request_is_imported(name: str) -> None:
    before = set(sys.modules)
    with pytest.raises(ValueError, match=f"{name}: is not registered on this server"):
        BUILTIN.made(sent({"kind": name, "with": {}}))
    assert set(sys.modules) == before


def test_a_module_that_is_not_there_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="trap:Sampler: is not registered"):
        BUILTIN.made(sent({"kind": "trap:Sampler", "with": {}}))
    assert "trap" not in sys.modules


@dataclass(frozen=True)
class Numbers:
    least: int = 0


class Own(khop.SamplerBase):
    def __init__(self, graph: khop.Graph, numbers: Numbers) -> None:
        super().__init__(graph)
        self.numbers = numbers

    def sample(self, seeds: khop.Seeds, key: khop.DrawKey) -> khop.Sample:
        raise AssertionError


def test_classes_of_a_module_are_registered(plain_graph: khop.Graph) -> None:
    registry = BUILTIN.with_module(sys.modules[__name__])
    made = registry.made(sent(instance(Own, {"numbers": Numbers(3)})), plain_graph)
    assert isinstance(made, Own)
    assert (made.graph, made.numbers) == (plain_graph, Numbers(3))
    assert set(registry.classes) - set(BUILTIN.classes) == {f"{__name__}:Own", f"{__name__}:Numbers"}


def test_a_module_without_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="module empty: defines no sampler"):
        BUILTIN.with_module(ModuleType("empty"))


def test_arguments_that_a_class_does_not_take_are_named() -> None:
    with pytest.raises(ValueError, match=r"Uniform with \['replacing'\]: .*unexpected keyword"):
        BUILTIN.made(sent({"kind": "Uniform", "with": {"replacing": True}}))


def test_what_cannot_be_sent_is_refused_with_the_remedy() -> None:
    with pytest.raises(Unsupported, match="state the sampler by such values"):
        described(object())
    with pytest.raises(Unsupported, match="move it to a module"):
        instance(type("Own", (), {"__module__": "__main__"}), {})
