"""Kernels are compared with the CPU on small graphs, in Triton's interpreter: right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from khop import Labor, LinkSampler, NeighborSampler, Temporal, TopK, UniformNegatives, Weighted
from khop.graph.rule import Rule
from khop.kernels import choice
from khop.kernels.card import CardAnswers
from khop.loading.device import self_proof
from khop.loading.device.self_proof import BASE, CHECKS, Compared, checks_of, why_not_proven
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.seeds import Seeds
from support.triton_rows import DEVICE
from support.triton_segments import by_triton


@pytest.fixture
def answers(tmp_path: Path) -> CardAnswers:
    return CardAnswers("a card", tmp_path / "kernels" / "card.json")


@pytest.fixture(autouse=True)
def _trusted() -> Iterator[None]:
    yield
    choice._distrusted.clear()
    choice.engine.cache_clear()


def verdict(answers: CardAnswers, *names: str, anew: bool = False) -> str | None:
    return why_not_proven(DEVICE, names or None, by=by_triton, answers=answers, anew=anew)


def disturbed(real: Callable[..., Any], change: Callable[..., object]) -> Callable[..., Any]:
    """The kernel, with an error in its results."""

    def wrong(*operands: Any, **named: Any) -> Any:  # noqa: ANN401
        result = real(*operands, **named)
        change(result, *operands)
        return result

    return wrong


@pytest.mark.core(1)  # tests/kernels/triton compares all
@pytest.mark.parametrize("name", list(CHECKS))
def test_kernels_give_the_bits_of_the_cpu(name: str, answers: CardAnswers) -> None:
    assert verdict(answers, name) is None
    assert answers.read() == {name: ""}


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("name", "target", "change", "kernel"),
    [
        (
            "gathers",
            "khop.kernels.triton.gather.gather",
            lambda result, table, ids, out: out.view(-1)[:1].add_(1),
            "gather",
        ),
        (
            "uniform draws",
            "khop.sampling.on_device.device_draw.sample_uniform",
            lambda result, csc, rows, fanout, replacement, slots, marks: slots.ids[:1].fill_(7),
            "sample_uniform",
        ),
        (
            "uniform draws",
            "khop.sampling.on_device.type_nodes.assign",
            lambda result, numbering, keys, firsts, level: level.nodes[3:4].add_(1),
            "node_table",
        ),
        (
            "uniform draws",
            "khop.sampling.on_device.device_draw.to_csr",
            lambda result, slots, sums, table, base, place, out: out.indices[:2].add_(1),
            "to_csr",
        ),
        (
            "means of edges",
            "khop.kernels.triton.segment.segment_mean",
            lambda result, *operands: result.view(-1)[:1].mul_(-1),
            "segment",
        ),
    ],
    ids=["gather", "sample_uniform", "node_table", "to_csr", "segment"],
)
def test_a_wrong_kernel_is_named_and_not_used(
    name: str,
    target: str,
    change: Callable[..., object],
    kernel: str,
    answers: CardAnswers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, _, function = target.rpartition(".")
    real = getattr(__import__(module, fromlist=[function]), function)
    monkeypatch.setattr(target, disturbed(real, change))
    reason = verdict(answers, name)
    assert reason is not None
    assert reason.startswith(f"kernels do not give the CPU's bits on this card ({name}: {kernel}: ")
    assert "numbers differ" in reason
    assert choice._distrusted == {DEVICE.index: reason}
    monkeypatch.undo()
    assert verdict(answers, name) == reason  # kept
    assert verdict(answers, name, anew=True) is None
    assert verdict(answers, name) is None


def test_a_kept_verdict_needs_no_kernel(answers: CardAnswers, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(device: torch.device, by: object) -> Iterator[Compared]:
        raise AssertionError("the verdict is known")

    answers.keep(dict.fromkeys(BASE, ""))
    monkeypatch.setattr(self_proof, "CHECKS", dict.fromkeys(CHECKS, check))
    assert verdict(answers) is None


def test_a_kernel_that_cannot_be_built_is_tried_again(
    answers: CardAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(device: torch.device, by: object) -> Iterator[Compared]:
        raise RuntimeError("Failed to find C compiler. Please specify via CC")

    monkeypatch.setattr(self_proof, "CHECKS", {**CHECKS, "gathers": check})
    assert "Triton finds no C compiler; install gcc" in (verdict(answers) or "")
    assert answers.read() == {}


@pytest.mark.parametrize(
    ("found", "wanted", "problem"),
    [
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), None),
        (torch.tensor([0.0, -0.0]), torch.tensor([0.0, 0.0]), "k: 1 of 2 numbers differ"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "k: 1 of 2 numbers differ"),
        (torch.tensor([1, 2]), torch.tensor([1]), r"k: torch.int64 (2,) instead of torch.int64 (1,)"),
        (torch.tensor([1]).int(), torch.tensor([1]), r"k: torch.int32 (1,) instead of torch.int64 (1,)"),
    ],
)
def test_bits_are_compared(found: Tensor, wanted: Tensor, problem: str | None) -> None:
    assert Compared("k", found, wanted).problem() == problem


@pytest.mark.parametrize(
    ("rule", "fanouts", "further"),
    [
        (None, [3, 2], []),
        (None, [-1], ["all neighbors"]),
        (Weighted("weight"), [3, -1], ["weighted draws", "all neighbors"]),
        (TopK("weight"), [3], ["smallest numbers of edges"]),
        (Labor(), [3], ["smallest numbers of sources"]),
        (Temporal("time"), [3], ["times", "trees"]),
    ],
    ids=str,
)
def test_a_sampler_needs_the_checks_of_its_kernels(
    rule: Rule | None, fanouts: list[int], further: list[str]
) -> None:
    graph = self_proof._simple_graph() if isinstance(rule, Labor) else self_proof._graph()
    sampler = NeighborSampler(graph, fanouts, **({} if rule is None else {"rule": rule}))  # type: ignore[arg-type]
    ids = torch.arange(5)
    seeds = Seeds({"node": ids}, {"node": ids}, {"node": ids + 50} if isinstance(rule, Temporal) else None)
    plan = BatchPlan(sampler, measured_capacities(sampler, [(seeds, self_proof.KEY)]), DEVICE)
    found = checks_of(sampler.for_kernels(), plan.arrays, excludes=False)
    assert found == [*BASE, *further]
    links = LinkSampler(graph, fanouts, negatives=UniformNegatives(1))
    assert checks_of(links.for_kernels(), {}, excludes=True)[-1] == "excluded edges"
