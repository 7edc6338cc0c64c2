"""Run folders below a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.run.reporting.run_summary import find_runs
from run.reporting.test_run_summary import CONFIG, write_run


def test_runs_are_found_at_any_depth_and_profiles_are_not_runs(tmp_path: Path) -> None:
    for name in ("b", "a", "more/deep/c", ".hidden/d"):
        write_run(tmp_path / name, 1, None)
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "config.toml").write_text(CONFIG)
    (profile / "steps.jsonl").touch()
    assert [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)] == ["a", "b", "more/deep/c"]
    assert list(find_runs(tmp_path / "a")) == [tmp_path / "a"]
    with pytest.raises(ValueError, match="no such folder"):
        list(find_runs(tmp_path / "none"))
