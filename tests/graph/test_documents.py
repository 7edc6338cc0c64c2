from __future__ import annotations

from pathlib import Path

import pytest

from khop.graph.documents import read_document, write_documents
from khop.graph.verify import document_problems


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    digests = write_documents(tmp_path, {"a.json": b'{"b": 1}'})
    assert read_document(tmp_path, "a.json", digests["a.json"]) == {"b": 1}


def test_a_changed_or_missing_document_is_damage(tmp_path: Path) -> None:
    digests = write_documents(tmp_path, {"a.json": b"{}"})
    (tmp_path / "a.json").write_bytes(b"[]")
    with pytest.raises(ValueError, match="checksum differs"):
        read_document(tmp_path, "a.json", digests["a.json"])
    with pytest.raises(ValueError, match="is missing"):
        read_document(tmp_path, "b.json", "")


@pytest.mark.parametrize("name", ["../a.json", "a.npy", "b/a.json"])
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"must be the name of a \.json file"):
        write_documents(tmp_path, {name: b"{}"})


def test_verify_finds_a_damaged_document(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"{}")
    assert [finding.file for finding in document_problems(tmp_path, "a.json", "0")] == ["a.json"]
