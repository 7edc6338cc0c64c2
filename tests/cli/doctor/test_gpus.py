"""GPUs, of machines made for the test."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any

import pytest

from cli.doctor.support import by_name
from khop.cli.doctor.findings import FindingState, cards
from khop.kernels import card


def _torch(cuda: str | None, cards: int, capability: tuple[int, int] = (9, 0)) -> Any:  # noqa: ANN401
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=SimpleNamespace(
            is_available=lambda: cards > 0,
            device_count=lambda: cards,
            mem_get_info=lambda number: (3 << 30, 80 << 30),
            get_device_capability=lambda number: capability,
            get_device_name=lambda number: "H200",
        ),
    )


def test_each_reason_for_a_card_out_of_reach_has_its_own_remedy() -> None:
    cases = {
        (None, None, None): FindingState.OK,  # a machine for the CPU
        (None, "570.1", None): FindingState.WRONG,  # the wrong build
        ("12.8", None, None): FindingState.NOTE,  # no driver
        ("12.8", "570.1", ""): FindingState.NOTE,  # hidden
        ("12.8", "570.1", None): FindingState.WRONG,  # too old a driver
    }
    found = {case: by_name(cards(_torch(case[0], 0), case[1], case[2]))["cards"] for case in cases}
    assert {case: each.state for case, each in found.items()} == cases
    assert len({each.remedy for each in found.values()}) == 4


def test_a_card_is_named_with_its_memory_unless_it_is_too_old() -> None:
    found = by_name(cards(_torch("12.8", 2), "570.1", None))
    assert re.fullmatch(r"H200, 3\.2 GB of 85\.9 GB free, CUDA 12\.8, capability 9\.0", found["cuda:1"].found)
    assert by_name(cards(_torch("12.8", 1, (6, 1)), "570.1", None))["cuda:0"].state is FindingState.WRONG


@pytest.mark.parametrize(
    ("capability", "state"),
    [((7, 0), FindingState.WRONG), ((7, 5), FindingState.WRONG), ((8, 0), FindingState.OK)],
    ids=str,
)
def test_a_card_needs_the_capability_of_the_kernels(capability: tuple[int, int], state: FindingState) -> None:
    found = by_name(cards(_torch("12.8", 1, capability), "570.1", None))["cuda:0"]
    assert found.state is state
    assert ("8.0 (A100) is the least" in found.found) == (state is FindingState.WRONG)


@pytest.mark.parametrize(
    ("package", "version", "state"),
    [
        ("triton", "3.3.1", FindingState.OK),
        ("pytorch-triton", "3.6.0+git", FindingState.OK),
        ("pytorch-triton-rocm", "3.2.0", FindingState.WRONG),
        ("none", "", FindingState.WRONG),
    ],
)
def test_triton_has_several_names_and_a_least_version(
    package: str, version: str, state: FindingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if name != package:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(card, "version", installed)
    found = by_name(cards(_torch("12.8", 1), "570.1", None))["Triton"]
    assert found.state is state
    assert found.found.startswith(version[:3] or "not installed")
