"""Requests arrive as they were sent: seeds, times, links and their columns, or numbers of a list.

Names of requests are looked up and never imported; values come back equal.

Equal settings have one hash, on every machine; all that changes a batch changes it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

import khop
from khop.errors import Unsupported
from khop.loading.columns import ColumnChoice
from khop.sampling.links.exclusion import Exclude
from khop.sampling.seeds import StepShare
from khop.servers.frame import Document, parsed, written
from khop.servers.graph import described_sampler
from khop.servers.request_wire import (
    BUILTIN,
    BatchQuery,
    Settings,
    check_graph,
    described,
    instance,
    read_columns,
    read_query,
    written_query,
)
from support.batch_kinds import PLAIN, TYPED
from support.same_samples import assert_same

SETTINGS = Settings("f" * 64, (), {"kind": "NeighborSampler", "with": {}}, ColumnChoice())


def read(seeds: khop.Seeds, *, with_settings: bool = False) -> BatchQuery:
    message = written_query(SETTINGS, seeds, khop.DrawKey((1 << 64) - 1), 2, 3, with_settings=with_settings)
    return read_query(parsed(message, 1 << 20, "request"))


@pytest.mark.parametrize("kind", [*PLAIN, *TYPED], ids=lambda kind: kind.__name__)
def test_seeds_arrive_as_they_were_sent(
    plain_graph: khop.Graph, typed_graph: khop.Graph, kind: object
) -> None:
    loader = kind(plain_graph if kind in PLAIN else typed_graph)  # type: ignore[operator]
    for rank in range(2):
        seeds = replace(loader._order, rank=rank, world_size=2).share(0, 0)
        assert_same(read(seeds).seeds, seeds)


@pytest.mark.parametrize("mine", [torch.arange(4), torch.tensor([1, 3]), torch.arange(0)])
def test_numbers_of_a_list_arrive_as_they_were_sent(mine: torch.Tensor) -> None:
    share = StepShare(torch.tensor([9, 2, 7, 1]), 40, mine, khop.DrawKey(8))
    assert_same(read(khop.Seeds({}, {}, listed=share)).seeds.listed, share)


def test_settings_travel_only_where_they_are_asked_for() -> None:
    seeds = khop.Seeds({}, {})
    assert read(seeds).given is None
    found = read(seeds, with_settings=True)
    assert found.given is not None
    assert found.given.value == {**SETTINGS.document}
    assert (found.settings, found.key, found.stage) == (
        SETTINGS.digest,
        khop.DrawKey((1 << 64) - 1),
        "batch of epoch 2, step 3",
    )


@pytest.mark.parametrize("mine", [torch.tensor([4]), torch.tensor([2, 1]), torch.tensor([-1])])
def test_a_share_outside_its_step_is_refused(mine: torch.Tensor) -> None:
    share = StepShare(torch.tensor([9, 2, 7, 1]), 40, mine, khop.DrawKey(8))
    with pytest.raises(ValueError, match="must be ascending numbers below 4"):
        read(khop.Seeds({}, {}, listed=share))


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


def settings(graph: khop.Graph, fanout: int = 3) -> Settings:
    sampler = khop.NeighborSampler(graph, [fanout])
    loader = khop.Loader(sampler, {"user": torch.arange(2)}, 2, columns={"user": ["x"]})
    return Settings("f" * 64, (), described_sampler(sampler), loader.columns)


def test_equal_settings_have_one_hash(typed_graph: khop.Graph) -> None:
    assert settings(typed_graph).digest == settings(typed_graph).digest


def test_every_difference_changes_the_hash(typed_graph: khop.Graph) -> None:
    given = settings(typed_graph)
    others = [
        replace(given, fingerprint="e" * 64),
        replace(given, view=({"only": []},)),
        replace(given, seeds={"split": "train"}),
        replace(given, columns=replace(given.columns, as_float32={})),
        settings(typed_graph, 4),
    ]
    assert len({each.digest for each in (given, *others)}) == 6


@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.__name__)
def test_columns_come_back_equal(typed_graph: khop.Graph, kind: object) -> None:
    columns = kind(typed_graph).columns  # type: ignore[operator]
    document = Document.parsed(written(Settings("", (), None, columns).document["columns"]), "columns")
    assert read_columns(document, typed_graph.schema) == columns


def test_a_column_that_is_missing_is_named(typed_graph: khop.Graph) -> None:
    given = Document({"nodes": [["user", ["nope"]]], "edges": [], "seeds": [], "float32": []}, "columns")
    with pytest.raises(ValueError, match="column 'nope' of 'user': not in the graph"):
        read_columns(given, typed_graph.schema)


def test_another_graph_is_refused_by_both_fingerprints() -> None:
    with pytest.raises(ValueError, match=r"aaaaaaaaaaaa\.\.\., and this server has bbbbbbbbbbbb"):
        check_graph("a" * 64, "b" * 64)
