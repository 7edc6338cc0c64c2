from __future__ import annotations

from pathlib import Path

import pytest

from khop.config.saved_run import DIGEST, digest_of, is_run_folder, saved_run

BODY = b'graph = "debian"\n'


def test_a_changed_file_is_used_and_named(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "config.toml"
    file.write_bytes(DIGEST + digest_of(BODY) + b"\n" + BODY)
    assert saved_run(tmp_path, (), said.append).values == {"graph": "debian"}
    assert said == []
    file.write_bytes(file.read_bytes().replace(b"debian", b"toys"))
    assert saved_run(tmp_path, ["package"], said.append).values == {"graph": "toys"}
    assert said == [
        f"{file}: was changed or damaged after khop train wrote it; its present settings are used"
    ]


def test_another_folder_is_refused(tmp_path: Path) -> None:
    assert not is_run_folder(tmp_path)
    with pytest.raises(ValueError, match=r"not a run folder, it has no config.toml"):
        saved_run(tmp_path, (), print)
