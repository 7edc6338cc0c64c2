"""Answers about a card are kept for it and its software, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.kernels import card
from khop.kernels.card import CardAnswers, card_key, driver_version, kernels_digest


@pytest.fixture(autouse=True)
def _a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))


def test_answers_are_added_and_replaced() -> None:
    answers = CardAnswers.of("a card")
    assert answers.read() == {}
    answers.keep({"gathers": "", "draws": "3 of 9 numbers differ"})
    answers.keep({"draws": ""})
    assert CardAnswers.of("a card").read() == {"gathers": "", "draws": ""}
    assert CardAnswers.of("another card").read() == {}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 2}', '{"format": 1, "key": "other", "answers": {}}']
)
def test_a_damaged_file_has_no_answers(content: str) -> None:
    answers = CardAnswers.of("a card")
    answers.keep({"gathers": ""})
    assert answers.path is not None
    answers.path.write_text(content)
    assert answers.read() == {}
    answers.keep({"draws": ""})
    assert answers.read() == {"draws": ""}


def test_nothing_is_kept_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    answers = CardAnswers.of("a card")
    answers.keep({"gathers": ""})
    assert answers.read() == {}


def test_each_part_of_the_software_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [card_key(0)]
    for name, value in (
        ("driver_version", "999.1"),
        ("triton_text", "9.9"),
        ("kernels_digest", "another digest"),
    ):
        monkeypatch.setattr(card, name, lambda value=value: value)
        keys.append(card_key(0))
    monkeypatch.setattr(torch, "__version__", "9.9")
    keys.append(card_key(0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    keys.append(card_key(0))
    assert len(set(keys)) == len(keys)
    assert keys[-1] == ("H100, capability 9.0; driver 999.1; torch 9.9; Triton 9.9; kernels another digest")


def test_a_changed_kernel_has_another_digest(tmp_path: Path) -> None:
    (tmp_path / "gather.py").write_text("1")
    before = kernels_digest(tmp_path)
    kernels_digest.cache_clear()
    (tmp_path / "gather.py").write_text("2")
    assert kernels_digest(tmp_path) != before
    kernels_digest.cache_clear()


def test_the_driver_is_read_from_its_file(tmp_path: Path) -> None:
    assert driver_version(tmp_path / "missing") is None
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module  580.159.04  Release Build"
    )
    assert driver_version(tmp_path / "version") == "580.159.04"
