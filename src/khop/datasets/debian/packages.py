"""Package lists in apt's format, read one package at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

# Control field -> relation to other packages, real or virtual.
PROVIDES = "provides"
RELATIONS = {
    "Pre-Depends": "pre_depends",
    "Depends": "depends",
    "Recommends": "recommends",
    "Suggests": "suggests",
    "Enhances": "enhances",
    "Breaks": "breaks",
    "Replaces": "replaces",
    "Conflicts": "conflicts",
    "Provides": PROVIDES,
}
BUILT_FROM, MAINTAINED_BY, TAGGED_WITH = "built_from", "maintained_by", "tagged_with"
# "python3:any (>= 3.11) [amd64] <!nocheck>": the name ends before the architecture, version and restrictions.
_NAME = re.compile(r"[^\s:(\[<]+")
_ADDRESS = re.compile(r"<([^<>]*)>")


@dataclass(frozen=True)
class Package:
    """The fields of a package in a list that the graph uses."""

    name: str
    version: str
    section: str | None  # without the archive's area: "games", not "contrib/games"
    description: str  # the one-line description; only its hashed words stay
    # Relation -> names of other nodes, each once, never empty. They identify nodes while the graph is built.
    # Of all names only debtags are kept.
    relations: Mapping[str, tuple[str, ...]]


def parse_packages(lines: Iterable[str], name: str) -> Iterator[Package]:
    """Yield the packages of a list, one at a time; the list is never held as a whole.

    `name` is the list's name in errors. ValueError if a line is neither field nor continuation, or if a
    paragraph names no package.
    """
    for number, fields in _paragraphs(lines, name):
        package = fields.get("Package")
        if not package:
            raise ValueError(
                f"{name}: the paragraph that ends at line {number} has no Package field: no list of packages"
            )
        yield _package(package, fields)


def _paragraphs(lines: Iterable[str], name: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield groups of fields separated by blank lines, unfolded, each with the number of its last line."""
    fields: dict[str, str] = {}
    key, number = "", 0
    for number, line in enumerate(lines, start=1):
        text = line.rstrip()
        if not text:
            if fields:
                yield number - 1, fields
            fields, key = {}, ""
        elif line[0] in " \t" and key:
            fields[key] += f" {text.lstrip()}"
        else:
            key, colon, value = text.partition(":")
            if not colon or line[0] in " \t":
                raise ValueError(
                    f"{name}: line {number} is {text[:40]!r}, not 'Field: value'; no list of packages"
                )
            fields[key] = value.strip()
    if fields:
        yield number, fields


def _package(name: str, fields: Mapping[str, str]) -> Package:
    relations = {relation: _names(fields.get(key, "")) for key, relation in RELATIONS.items()}
    relations[BUILT_FROM] = (fields.get("Source", "").partition("(")[0].strip() or name,)
    relations[MAINTAINED_BY] = _maintainers(fields.get("Maintainer", ""))
    relations[TAGGED_WITH] = _tags(fields.get("Tag", ""))
    return Package(
        name=name,
        version=fields.get("Version", ""),
        section=fields.get("Section", "").rpartition("/")[2] or None,
        description=fields.get("Description", ""),
        relations={relation: names for relation, names in relations.items() if names},
    )


def _names(value: str) -> tuple[str, ...]:
    """Return the packages named in a relation field; alternatives ("a | b") count as one each."""
    found = (_NAME.search(part) for part in re.split(r"[,|]", value))
    return tuple(dict.fromkeys(match.group() for match in found if match))


def _maintainers(value: str) -> tuple[str, ...]:
    """Return addresses only, because one maintainer's name is spelled in several ways."""
    address = _ADDRESS.search(value)
    maintainer = (address.group(1) if address else value).lower()
    return (maintainer,) if maintainer else ()


def _tags(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tag for part in value.split(",") if (tag := part.strip())))
