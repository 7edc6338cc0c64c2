"""A run samples by weight and by time as its table `sampler` says.

khop's tasks have every member of the protocol of a run's task.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from khop import (
    EdgeTable,
    NeighborSampler,
    NodeTable,
    Temporal,
    TemporalStrategy,
    Uniform,
    Weighted,
    write_graph,
)
from khop.components import ANY_NAMED
from khop.run.build import prepare
from khop.run.check import checked
from khop.run.contexts import RunTask, SamplerContext, rule_of
from khop.run.read import RawRun
from khop.run.tasks.link_run_task import LinkTask
from khop.run.tasks.node_task import NodeTask

EDGE = ("node", "to", "node")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(0)
    nodes = NodeTable(
        columns={"x": torch.rand(90, 4), "y": torch.arange(90) % 3, "time": torch.arange(90)},
        splits={"train": torch.arange(30), "val": torch.arange(30, 60), "test": torch.arange(60, 90)},
        num_classes={"y": 3},
    )
    ends = torch.randint(90, (2, 900), generator=generator)
    edges = EdgeTable(*ends, {"weight": torch.rand(900, generator=generator)})
    path = tmp_path_factory.mktemp("graphs") / "timed"
    return write_graph(path, {"node": nodes}, {EDGE: edges}, sort_by="time")


def raw(graph: Path, **sampler: object) -> RawRun:
    values = {
        "graph": str(graph),
        "sampler": {"fanouts": [4, 3], **sampler},
        "evaluation": {"fanouts": [4, 3]},
        "training": {"batch_size": 16},
    }
    return RawRun(values, "run.toml")


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("sampler", "rule"),
    [
        ({"replacement": True}, Uniform(replacement=True)),
        ({"weight": "weight"}, Weighted("weight")),
        ({"time": "time", "temporal_strategy": "latest"}, Temporal("time", TemporalStrategy.LATEST)),
        (
            {"time": "time", "window": [50, -1], "weight": "weight", "replacement": True},
            Temporal("time", window=(50, -1), inner=Weighted("weight", replacement=True)),
        ),
    ],
    ids=str,
)
def test_the_table_says_the_rule(
    graph: Path, tmp_path: Path, sampler: dict[str, object], rule: Uniform | Weighted | Temporal
) -> None:
    run = prepare(raw(graph, **sampler), tmp_path)
    assert rule_of(run.config, run.graph) == rule
    batch = run.loader().batch(0, 0)
    if isinstance(rule, Temporal):
        trees = batch.sample.trees
        assert trees is not None
        assert (batch.input_nodes <= batch.seeds[trees["node"]]).all()
    assert set(run.scores(("val", "test"), lambda done, total: None)) == {"val", "test"}


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ({"weight": "cost"}, "no column 'cost'"),
        ({"time": "time", "window": [5, 6]}, "after 6 would allow later edges"),
        ({"time": "time", "temporal_strategy": "latest", "weight": "weight"}, "leave inner out"),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_is_named(
    graph: Path, tmp_path: Path, sampler: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(raw(graph, **sampler), tmp_path).loader()


def test_times_are_evaluated_with_the_fanouts_of_training() -> None:
    values = {**raw(Path("g"), time="time").values, "evaluation": {}}
    run = checked(RawRun(values, "run.toml"))
    assert run.evaluation.fanouts == run.sampler.fanouts


def test_a_window_is_two_whole_numbers() -> None:
    with pytest.raises(ValueError, match=r"sampler\.window is \[3\]: must be two whole numbers"):
        checked(raw(Path("g"), time="time", window=[3]))


class Plain:
    """A sampler from outside that reads the inputs named by its option."""

    @dataclass(frozen=True)
    class Options:
        """Names of inputs."""

        reads: tuple[str, ...] = ()

    @staticmethod
    def build(options: Options, context: SamplerContext) -> NeighborSampler:
        for name in options.reads:
            getattr(context, name)
        return NeighborSampler(context.graph, [2, 2])


@pytest.mark.parametrize(
    ("settings", "reads", "unread"),
    [
        ({}, (), "sampler.fanouts"),
        ({}, ("fanouts",), ""),
        ({"replacement": True, "weight": "weight"}, ("fanouts",), "sampler.replacement, sampler.weight"),
        ({"replacement": True, "weight": "weight"}, ("fanouts", "rule"), ""),
        ({"expansion": "subgraph"}, ("rule",), "sampler.fanouts, sampler.expansion"),
        ({"fanouts": [15, 10]}, (), ""),
    ],
)
def test_settings_that_a_sampler_from_outside_does_not_read_are_named(
    graph: Path, tmp_path: Path, settings: dict[str, object], reads: tuple[str, ...], unread: str
) -> None:
    given = raw(graph, kind=f"{__name__}:Plain", reads=list(reads), **settings)
    run = prepare(replace(given, permission=ANY_NAMED), tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.loader()
    assert [str(each.message).partition(": ")[0] for each in caught] == ([unread] if unread else [])


MEMBERS = [name for name in vars(RunTask) if not name.startswith("_")]


@pytest.mark.parametrize("task", [NodeTask, LinkTask])
def test_members_have_the_arguments_of_the_protocol(task: type) -> None:
    fields = task.__dataclass_fields__  # type: ignore[attr-defined]
    for name in MEMBERS:
        of_protocol = inspect.getattr_static(RunTask, name)
        if inspect.isfunction(of_protocol):
            own = inspect.signature(getattr(task, name))
            assert list(own.parameters) == list(inspect.signature(of_protocol).parameters)
        else:
            assert name in fields or isinstance(inspect.getattr_static(task, name), property)
