"""Work that does not fit on the disk is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.graph.disk_space import check_disk


def test_too_little_space_is_said_with_both_sizes(tmp_path: Path) -> None:
    check_disk(tmp_path / "not" / "yet", 1000, "the graph")
    with pytest.raises(ValueError, match=r"x: the graph needs 1,000,000 TB of disk; [\d,.]+ [GT]B are free"):
        check_disk(tmp_path / "x", 10**18, "the graph")
