"""GraphML files: nodes, edges, and their attributes of numbers."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn
from xml.parsers import expat

import numpy as np
import numpy.typing as npt

from khop.importing.sets.read_edges import ReadEdges
from khop.kernels.id_table import StringKeys

_TYPES = {"int": np.int64, "long": np.int64, "float": np.float32, "double": np.float64, "boolean": np.uint8}
_REFUSED = {"hyperedge": "a hyperedge", "port": "a port"}


def graphml(path: Path) -> ReadEdges:
    """Read a GraphML file, also .gz. Attributes of text, and those that some lack, are left out.

    ValueError for several or nested graphs, hyperedges, and edges of another direction than the graph's.
    Entities are not expanded.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    content = _Content(path)
    parser = expat.ParserCreate(namespace_separator=" ")
    content.parser = parser
    parser.StartElementHandler, parser.EndElementHandler = content.start, content.end
    parser.CharacterDataHandler, parser.EntityDeclHandler = content.text, content.entity
    try:
        with opened(path, "rb") as file:
            parser.ParseFile(file)
    except (expat.ExpatError, OSError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); correct it") from None
    return content.read()


@dataclass
class _Key:
    name: str
    kind: str
    default: str | None = None


@dataclass
class _Content:
    """The elements so far."""

    path: Path
    parser: Any = None
    keys: dict[str, _Key] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)
    data: dict[str, dict[str, dict[int, str]]] = field(default_factory=lambda: {"node": {}, "edge": {}})
    direction: Literal["directed", "undirected"] | None = None
    _at: tuple[str, int] | None = None  # the node or edge that is open
    _key: str = ""
    _text: list[str] = field(default_factory=list)

    def start(self, tag: str, given: dict[str, str]) -> None:
        """Take the beginning of an element."""
        match tag.rpartition(" ")[2]:
            case "key":
                self._key = given.get("id", "")
                name = given.get("attr.name", self._key)
                self.keys[self._key] = _Key(name, given.get("attr.type", "string"))
            case "graph":
                if self.direction is not None:
                    self._refuse("a second or nested graph")
                is_directed = given.get("edgedefault", "directed") == "directed"
                self.direction = "directed" if is_directed else "undirected"
            case "node":
                if given.get("id", "") in self.rows or "id" not in given:
                    self._refuse(f"a node with the id {given.get('id')!r}, which is missing or taken")
                self._at = ("node", self.rows.setdefault(given["id"], len(self.rows)))
            case "edge":
                self._edge(given)
            case "data":
                self._key, self._text = given.get("key", ""), []
            case "default":
                self._text = []
            case other if other in _REFUSED:
                self._refuse(_REFUSED[other])

    def end(self, tag: str) -> None:
        """Take the end of an element."""
        match tag.rpartition(" ")[2]:
            case "data" if self._at is not None:
                kind, row = self._at
                self.data[kind].setdefault(self._key, {})[row] = "".join(self._text).strip()
            case "default" if self._key in self.keys:
                self.keys[self._key].default = "".join(self._text).strip()
            case "node" | "edge":
                self._at = None

    def text(self, text: str) -> None:
        """Take text within an element."""
        self._text.append(text)

    def entity(self, *given: object) -> None:
        """Refuse an entity: its expansion may be endless."""
        self._refuse("an entity")

    def read(self) -> ReadEdges:
        """Return the nodes and edges."""
        ends = np.empty((len(self.edges), 2), np.int64)
        for number, edge in enumerate(self.edges):
            for side, end in enumerate(edge):
                if end not in self.rows:
                    raise ValueError(f"{self.path}: edge {number + 1}: no node has the id {end!r}; add it")
                ends[number, side] = self.rows[end]
        return ReadEdges(
            StringKeys.of(list(self.rows)),
            ends[:, 0].copy(),
            ends[:, 1].copy(),
            self.direction or "directed",
            self._columns("node", len(self.rows)),
            self._columns("edge", len(self.edges)),
        )

    def _edge(self, given: dict[str, str]) -> None:
        directed = given.get("directed", "true" if self.direction == "directed" else "false")
        if directed != ("true" if self.direction == "directed" else "false"):
            self._refuse("an edge of another direction than the graph's")
        self._at = ("edge", len(self.edges))
        self.edges.append((given.get("source", ""), given.get("target", "")))

    def _columns(self, kind: str, count: int) -> dict[str, npt.NDArray[Any]]:
        found: dict[str, npt.NDArray[Any]] = {}
        for key, values in self.data[kind].items():
            declared = self.keys.get(key)
            if (
                declared is None
                or declared.kind not in _TYPES
                or (declared.default is None and len(values) < count)
            ):
                continue
            texts = (values.get(row, declared.default or "") for row in range(count))
            found[declared.name] = self._numbers(declared, list(texts))
        return found

    def _numbers(self, key: _Key, texts: list[str]) -> npt.NDArray[Any]:
        dtype = _TYPES[key.kind]
        if key.kind == "boolean":
            return np.array([text.lower() in ("true", "1") for text in texts], dtype)
        try:
            return np.array(
                [float(text) if "float" in dtype.__name__ else int(text) for text in texts], dtype
            )
        except ValueError as error:
            raise ValueError(f"{self.path}: attribute {key.name!r}: {error}; correct it") from None

    def _refuse(self, what: str) -> NoReturn:
        line = self.parser.CurrentLineNumber
        raise ValueError(f"{self.path}, line {line}: has {what}, and a plain graph is expected; remove it")
