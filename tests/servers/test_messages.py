"""Requests arrive as they were sent: seeds, times, links and their columns, or numbers of a list.

Names of requests are looked up and never imported; values come back equal.

Equal settings have one hash, on every machine; all that changes a batch changes it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

import khop
from khop.errors import Unsupported
from khop.graph.folder import TimeCutOffs
from khop.loading.columns import ColumnChoice
from khop.sampling.links.exclusion import Exclude
from khop.sampling.links.link_split import LinkColumns, Shares
from khop.sampling.seeds import StepShare
from khop.servers.codec import Tensors, json_of, parsed, parsed_json
from khop.servers.graph import described_sampler
from khop.servers.messages import (
    CODEC,
    BatchOf,
    ByColumn,
    NodesOfSplit,
    Only,
    SourceSettings,
    SplitArguments,
    check_graph,
    request,
)
from khop.servers.registry import BUILTIN, described, instance
from support.batch_kinds import PLAIN, TYPED
from support.same_samples import assert_same
from support.small_typed_folders import BUYS

SETTINGS = SourceSettings("f" * 64, (), {"kind": "NeighborSampler", "with": {}}, ColumnChoice())


def read(seeds: khop.Seeds, *, with_settings: bool = False) -> BatchOf:
    key = khop.DrawKey((1 << 64) - 1)
    asked = BatchOf.of(SETTINGS, seeds, key, 2, 3, with_settings=with_settings)
    return parsed(request("batch", "f" * 64, asked), 1 << 20, "request").body(CODEC, BatchOf)


@pytest.mark.core(5)
@pytest.mark.parametrize("kind", [*PLAIN, *TYPED], ids=lambda kind: kind.__name__)
def test_seeds_arrive_as_they_were_sent(
    plain_graph: khop.Graph, typed_graph: khop.Graph, kind: object
) -> None:
    loader = kind(plain_graph if kind in PLAIN else typed_graph)  # type: ignore[operator]
    for rank in range(2):
        seeds = replace(loader._order, rank=rank, world_size=2).share(0, 0)
        assert_same(read(seeds).checked_seeds(), seeds)


@pytest.mark.parametrize("mine", [torch.arange(4), torch.tensor([1, 3]), torch.arange(0)])
def test_numbers_of_a_list_arrive_as_they_were_sent(mine: torch.Tensor) -> None:
    share = StepShare(torch.tensor([9, 2, 7, 1]), 40, mine, khop.DrawKey(8))
    assert_same(read(khop.Seeds({}, {}, listed=share)).checked_seeds().listed, share)


def test_settings_travel_only_where_they_are_asked_for() -> None:
    seeds = khop.Seeds({}, {})
    assert read(seeds).given is None
    found = read(seeds, with_settings=True)
    assert found.given == SETTINGS
    assert (found.settings, found.key, found.stage) == (
        SETTINGS.digest,
        khop.DrawKey((1 << 64) - 1),
        "batch of epoch 2, step 3",
    )


@pytest.mark.parametrize("mine", [torch.tensor([4]), torch.tensor([2, 1]), torch.tensor([-1])])
def test_a_share_outside_its_step_is_refused(mine: torch.Tensor) -> None:
    share = StepShare(torch.tensor([9, 2, 7, 1]), 40, mine, khop.DrawKey(8))
    with pytest.raises(ValueError, match="must be ascending numbers below 4"):
        read(khop.Seeds({}, {}, listed=share)).checked_seeds()


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


def sent(value: object) -> object:
    return parsed_json(json_of(value), "sampler")


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


def settings(graph: khop.Graph, fanout: int = 3) -> SourceSettings:
    sampler = khop.NeighborSampler(graph, [fanout])
    loader = khop.Loader(sampler, {"user": torch.arange(2)}, 2, columns={"user": ["x"]})
    return SourceSettings("f" * 64, (), described_sampler(sampler), loader.columns)


def test_equal_settings_have_one_hash(typed_graph: khop.Graph) -> None:
    assert settings(typed_graph).digest == settings(typed_graph).digest


def test_every_difference_changes_the_hash(typed_graph: khop.Graph) -> None:
    given = settings(typed_graph)
    others = [
        replace(given, graph="e" * 64),
        replace(given, view=(Only(()),)),
        replace(given, seeds=NodesOfSplit("train", ())),
        replace(given, columns=replace(given.columns, as_float32={})),
        settings(typed_graph, 4),
    ]
    assert len({each.digest for each in (given, *others)}) == 6


@pytest.mark.core(5)
@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.__name__)
def test_columns_come_back_equal(typed_graph: khop.Graph, kind: object) -> None:
    columns = kind(typed_graph).columns  # type: ignore[operator]
    given = SourceSettings("", (), None, columns)
    plain = parsed_json(json_of(CODEC.write(given, Tensors())), "settings")
    found = CODEC.read(SourceSettings, plain, (), "settings")
    found.check_columns(typed_graph.schema)
    assert found.columns == columns


def test_a_column_that_is_missing_is_named(typed_graph: khop.Graph) -> None:
    with pytest.raises(ValueError, match="column 'nope' of 'user': not in the graph"):
        SourceSettings("", (), None, ColumnChoice({"user": ("nope",)})).check_columns(typed_graph.schema)


def test_another_graph_is_refused_by_both_fingerprints() -> None:
    with pytest.raises(ValueError, match=r"aaaaaaaaaaaa\.\.\., but this server has bbbbbbbbbbbb"):
        check_graph("a" * 64, "b" * 64)


def arguments_sent(given: SplitArguments, change: dict[str, object]) -> SplitArguments:
    fields = CODEC.write(given, Tensors())
    assert isinstance(fields, dict)
    return CODEC.read(SplitArguments, parsed_json(json_of({**fields, **change}), "split"), (), "split")


@pytest.mark.parametrize(
    "method", [Shares(0.1, 30, 0.5), TimeCutOffs(-(1 << 63), (1 << 63) - 1), ByColumn()], ids=repr
)
def test_arguments_of_a_split_come_back_equal(
    typed_graph: khop.Graph, method: Shares | TimeCutOffs | ByColumn
) -> None:
    given = SplitArguments((BUYS,), method, LinkColumns(3, "weight", "time"), (1 << 64) - 1)
    found = arguments_sent(given, {})
    found.check(typed_graph.schema)
    assert (found, hash(found)) == (given, hash(given))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": ["Size", {}]}, "split.method: is .*not one of Shares, TimeCutOffs, ByColumn"),
        ({"method": ["TimeCutOffs", {"val": 0.5, "test": 1}]}, "val: is 0.5, not a whole number"),
        ({"method": ["TimeCutOffs", {"val": 1 << 63, "test": 1}]}, "not a whole number"),
        ({"method": ["Shares", {"val": 2.5, "test": 1, "disjoint_share": 0}]}, "val 2.5: must be a share"),
        ({"edge_types": []}, "edge_types: is empty; name at least one edge type"),
        ({"edge_types": ["user"]}, "is not an edge type"),
        ({"edge_types": [["user", "sells", "item"]]}, "no edge type"),
        ({"columns": {"negatives": 1, "label": None, "time": "nope", "relation": None}}, "nope"),
    ],
)
def test_arguments_that_do_not_fit_are_sentences(
    typed_graph: khop.Graph, change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        arguments_sent(SplitArguments((BUYS,), Shares(1, 1), LinkColumns(), 1), change).check(
            typed_graph.schema
        )
