"""The package graph as integers: the content of package lists without names, addresses and texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from khop.datasets.debian.packages import (
    BUILT_FROM,
    MAINTAINED_BY,
    PROVIDES,
    RELATIONS,
    TAGGED_WITH,
    Package,
)
from khop.datasets.debian.versions import version_key
from khop.datasets.debian.words import word_buckets
from khop.schema import EdgeType, NodeType

PACKAGE, VIRTUAL, SOURCE, MAINTAINER, TAG = "package", "virtual", "source", "maintainer", "tag"
NODE_TYPES = (PACKAGE, VIRTUAL, SOURCE, MAINTAINER, TAG)
EDGE_TYPES: tuple[EdgeType, ...] = (
    *((PACKAGE, relation, PACKAGE) for relation in RELATIONS.values()),
    *((PACKAGE, relation, VIRTUAL) for relation in RELATIONS.values()),
    (PACKAGE, BUILT_FROM, SOURCE),
    (PACKAGE, MAINTAINED_BY, MAINTAINER),
    (PACKAGE, TAGGED_WITH, TAG),
)
# Debian's sections in alphabetical order. A label is a position in this list, in every graph, so that a
# model trained on one release can be tested on another. Add new sections at the end only.
SECTIONS = (
    "admin", "cli-mono", "comm", "database", "debug", "devel", "doc", "editors", "education",
    "electronics", "embedded", "fonts", "games", "gnome", "gnu-r", "gnustep", "golang", "graphics",
    "hamradio", "haskell", "httpd", "interpreters", "introspection", "java", "javascript", "kde",
    "kernel", "libdevel", "libs", "lisp", "localization", "mail", "math", "metapackages", "misc",
    "net", "news", "ocaml", "oldlibs", "otherosfs", "perl", "php", "python", "ruby", "rust",
    "science", "shells", "sound", "tasks", "tex", "text", "utils", "vcs", "video", "web", "x11",
    "xfce", "zope",
)  # fmt: skip
UNKNOWN = -1  # the label of a package with a section that is not in SECTIONS


@dataclass(frozen=True, eq=False)
class Pairs:
    """A relation: row i links `left[i]` to `right[i]`. Ordered by left, then right."""

    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.left)


@dataclass(frozen=True, eq=False)
class Facts:
    """A package graph. Packages are numbered by name, in byte order, other nodes by first occurrence.

    With the lists at hand, package `i` can be identified again; nothing in this class names it.
    """

    counts: Mapping[NodeType, int]
    sections: npt.NDArray[np.int8]  # (packages), a position in SECTIONS, or UNKNOWN
    words: Pairs  # package, bucket of a word of its description; one row per occurrence of the word
    tags: tuple[str, ...]  # the debtag of each tag node
    edges: Mapping[EdgeType, Pairs]  # an entry per EDGE_TYPES, without duplicate edges


def collect(packages: Iterable[Package]) -> Facts:
    """Make the graph. If a name occurs several times, the newest version counts, or the first of equals."""
    chosen = _newest(packages)
    ids = {package.name: number for number, package in enumerate(chosen)}
    relations = _Relations.of(chosen, ids)
    sources, built_from = _numbered(chosen, BUILT_FROM)
    maintainers, maintained_by = _numbered(chosen, MAINTAINED_BY)
    tags, tagged_with = _numbered(chosen, TAGGED_WITH)
    positions = {section: position for position, section in enumerate(SECTIONS)}
    return Facts(
        counts={
            PACKAGE: len(chosen),
            VIRTUAL: len(relations.virtual),
            SOURCE: len(sources),
            MAINTAINER: len(maintainers),
            TAG: len(tags),
        },
        sections=np.array([positions.get(package.section or "", UNKNOWN) for package in chosen], np.int8),
        words=_pairs(
            (number, bucket)
            for number, package in enumerate(chosen)
            for bucket in word_buckets(package.description, package.name)
        ),
        tags=tags,
        edges={
            **relations.edges(),
            (PACKAGE, BUILT_FROM, SOURCE): built_from,
            (PACKAGE, MAINTAINED_BY, MAINTAINER): maintained_by,
            (PACKAGE, TAGGED_WITH, TAG): tagged_with,
        },
    )


def _newest(packages: Iterable[Package]) -> list[Package]:
    newest: dict[str, Package] = {}
    for package in packages:
        known = newest.setdefault(package.name, package)
        if version_key(package.version) > version_key(known.version):
            newest[package.name] = package
    return [newest[name] for name in sorted(newest)]


@dataclass(frozen=True)
class _Relations:
    """Relations between packages, by name."""

    packages: Sequence[Package]
    ids: Mapping[str, int]
    virtual: Mapping[str, int]  # names provided by some package that are not packages

    @classmethod
    def of(cls, packages: Sequence[Package], ids: Mapping[str, int]) -> _Relations:
        provided = (name for package in packages for name in package.relations.get(PROVIDES, ()))
        virtual = dict.fromkeys(name for name in provided if name not in ids)
        return cls(packages, ids, {name: number for number, name in enumerate(virtual)})

    def edges(self) -> dict[EdgeType, Pairs]:
        """Return edges to packages and virtual packages. Other names (e.g. removed packages) are left out."""
        ends = ((PACKAGE, self.ids), (VIRTUAL, self.virtual))
        return {
            (PACKAGE, relation, end): _pairs(self._named(relation, ids))
            for end, ids in ends
            for relation in RELATIONS.values()
        }

    def _named(self, relation: str, ids: Mapping[str, int]) -> Iterator[tuple[int, int]]:
        for number, package in enumerate(self.packages):
            for name in package.relations.get(relation, ()):
                if name in ids:
                    yield number, ids[name]


def _numbered(packages: Sequence[Package], relation: str) -> tuple[tuple[str, ...], Pairs]:
    """Number the names in a relation by first occurrence; return the names, and pairs of package and name."""
    numbers: dict[str, int] = {}
    pairs = _pairs(
        (number, numbers.setdefault(name, len(numbers)))
        for number, package in enumerate(packages)
        for name in package.relations.get(relation, ())
    )
    return tuple(numbers), pairs


def _pairs(pairs: Iterable[tuple[int, int]]) -> Pairs:
    table = np.array(sorted(pairs), np.int32).reshape(-1, 2)
    return Pairs(table[:, 0].copy(), table[:, 1].copy())
