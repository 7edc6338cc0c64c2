"""Files of a checkpoint: every flipped bit is found, and the damaged file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.training.checkpoint_files import FILES, STATE, checked_state, encoded, read_files

TENSORS = {"model.safetensors": b"weights", "optimizer.safetensors": b"moments"}
CONTENT = {"training": {"epoch": 3}, "groups": [{"params": ["a", "b"], "lr": 0.1}], "records": [{"loss": 1}]}


def written(folder: Path) -> dict[str, bytes]:
    for name, content in encoded(TENSORS, CONTENT).items():
        (folder / name).write_bytes(content)
    return read_files(folder)


def test_state_comes_back_as_it_was_encoded(tmp_path: Path) -> None:
    files = written(tmp_path)
    assert tuple(files) == FILES
    state = checked_state(tmp_path, files)
    assert {name: state[name] for name in CONTENT} == CONTENT


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, name: str) -> None:
    files = written(tmp_path)
    for at in range(len(files[name])):
        content = bytearray(files[name])
        content[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match=rf"{name}: (cut short or damaged|format)"):
            checked_state(tmp_path, files | {name: bytes(content)})


@pytest.mark.parametrize("state", [b"", b"[]", b"{}", b'{"format": 2}', b"[" * 100_000, b"\xff"])
def test_other_content_is_damage(tmp_path: Path, state: bytes) -> None:
    with pytest.raises(ValueError, match=r"state\.json: cut short or damaged"):
        checked_state(tmp_path, {**TENSORS, STATE: state})


def test_a_later_format_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format 9, this khop reads format 2"):
        checked_state(tmp_path, {**TENSORS, STATE: b'{"format": 9}'})
    with pytest.raises(ValueError, match="no checkpoint there"):
        read_files(tmp_path / "nowhere")
    written(tmp_path)
    (tmp_path / STATE).unlink()
    with pytest.raises(ValueError, match=r"state\.json: missing from the checkpoint"):
        read_files(tmp_path)
