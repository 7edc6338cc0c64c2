"""Folders that khop writes to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from khop.cli.doctor.findings import Finding, State, folder


def test_a_folder_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder("x", tmp_path / "a" / "b", "y").state is State.OK
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert folder("x", tmp_path, "y") == Finding(
        "disk", "x", f"{tmp_path}: no permission to write", State.WRONG, "y"
    )
