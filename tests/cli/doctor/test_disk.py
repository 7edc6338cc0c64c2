"""Folders that khop writes to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from khop.cli.doctor.findings import Finding, FindingState, folder


def test_a_folder_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder("x", tmp_path / "a" / "b", "y").state is FindingState.OK
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert folder("x", tmp_path, "y") == Finding(
        "disk", "x", f"{tmp_path}: no permission to write", FindingState.WRONG, "y"
    )
