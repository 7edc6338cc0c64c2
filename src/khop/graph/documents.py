"""JSON documents of a graph folder: small files beside the arrays, with their checksums in graph.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from khop.errors import REMEDY
from khop.graph.atomic import naming
from khop.graph.npy import flush


def write_documents(folder: Path, documents: Mapping[str, bytes]) -> dict[str, str]:
    """Write documents and flush them to disk; return the sha256 of each by name."""
    digests = {}
    for name, content in documents.items():
        if Path(name).name != name or not name.endswith(".json"):
            raise ValueError(f"document {name!r}: must be the name of a .json file, without folders")
        with naming(folder / name), (folder / name).open("wb") as file:
            file.write(content)
            flush(file)
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests


def read_document(folder: Path, name: str, sha256: str) -> Any:  # noqa: ANN401
    """Return the values of a document; ValueError if it is missing or differs from its checksum."""
    return json.loads(document_bytes(folder, name, sha256))


def document_bytes(folder: Path, name: str, sha256: str) -> bytes:
    """Return the content of a document; ValueError if it is missing or differs from its checksum."""
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{path}: is missing; {REMEDY}")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path}: checksum differs from graph.json; {REMEDY}")
    return content


def documents_of(folder: Path, sha256: Mapping[str, str]) -> dict[str, bytes]:
    """Return the contents of documents by name, to write them again beside a changed graph."""
    return {name: document_bytes(folder, name, digest) for name, digest in sha256.items()}
