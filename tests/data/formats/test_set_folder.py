"""The folder of a set below the named one."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.data.formats.downloads import set_folder


def test_the_first_folder_with_the_content(tmp_path: Path) -> None:
    (tmp_path / "b" / "raw").mkdir(parents=True)
    assert set_folder(tmp_path, ("a", "b"), "raw", "here") == tmp_path / "b"
    assert set_folder(tmp_path / "b", ("a", "b"), "raw", "here") == tmp_path / "b"
    with pytest.raises(ValueError, match="has none of raw, a/raw; give the folder of the set .* from here"):
        set_folder(tmp_path, ("a",), "raw", "here")
