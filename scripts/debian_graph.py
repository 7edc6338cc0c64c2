#!/usr/bin/env python3
"""Make a graph of packages from Debian's or Ubuntu's package lists.

    scripts/debian_graph.py graphs/sid lists/               # of a folder of *_Packages files
    scripts/debian_graph.py graphs/mine                     # of this machine's lists, after apt-get update
    scripts/debian_graph.py --typed graphs/typed lists/     # all node and edge types
    scripts/debian_graph.py debian.npz LIST                 # the file that khop ships, of one list

For a file, it prints the checksum that src/khop/data/importers.py has, and the counts for docs/debian.md.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.data.debian.graph import (
    BUILT_FROM,
    EDGE_TYPES,
    MAINTAINED_BY,
    MAINTAINER,
    NODE_TYPES,
    PACKAGE,
    PROVIDES,
    RELATIONS,
    SECTIONS,
    SOURCE,
    TAG,
    TAGGED_WITH,
    UNKNOWN,
    VIRTUAL,
    Facts,
    Pairs,
    word_buckets,
    write_debian,
)
from khop.graph.atomic import Meter, ProgressCallback
from khop.schema import EdgeType

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


_LIST = re.compile(r"(.*_)?Packages(\.(gz|xz|bz2|lzma|lz4|zst))?")
_LISTS_OF_APT = ("apt-config", "shell", "LISTS", "Dir::State::lists/d")
_APT_HELPER = "/usr/lib/apt/apt-helper"
_TIMEOUT_S = 30
_INSTEAD = "name a folder with the *_Packages files of a Debian or Ubuntu machine"


def machine_lists() -> Path:
    """Return the folder of apt's package lists on this machine, as configured in apt."""
    command = " ".join(_LISTS_OF_APT)
    try:
        answer = subprocess.run(_LISTS_OF_APT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except FileNotFoundError as error:
        raise ValueError(f"there is no apt on this machine (no {_LISTS_OF_APT[0]}); {_INSTEAD}") from error
    except subprocess.CalledProcessError as error:
        raise ValueError(f"`{command}` failed: {error.stderr.strip()}; {_INSTEAD}") from error
    found = re.fullmatch(r"LISTS='(.+)'", answer.stdout.strip())
    if not found:
        raise ValueError(f"`{command}` says {answer.stdout.strip()!r}, which names no folder; {_INSTEAD}")
    return Path(found.group(1))


def find_lists(folder: Path) -> list[Path]:
    """Return the package lists in a folder, ordered by name; at least one."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; {_INSTEAD}")
    lists = sorted(path for path in folder.iterdir() if _LIST.fullmatch(path.name) and path.is_file())
    if not lists:
        raise ValueError(
            f"{folder}: holds no package lists (*_Packages); run `apt-get update`, or {_INSTEAD}"
        )
    return lists


def list_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a package list, decompressed while reading: all lines, or an error."""
    if path.suffix == ".gz":
        yield from _unzipped_lines(path)
    elif path.suffix:
        yield from _lines_by_apt(path)
    else:
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from lines


def _unzipped_lines(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as lines:
            yield from lines
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: damaged ({error}); run `apt-get update` again, or copy it again"
        ) from error


def _lines_by_apt(path: Path) -> Iterator[str]:
    command = (_APT_HELPER, "cat-file", str(path))
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
        )
    except FileNotFoundError as error:
        raise ValueError(
            f"{path}: only apt reads {path.suffix} and there is no {_APT_HELPER}; decompress it"
        ) from error
    # Leaving the block early closes the pipe, and this ends the helper process.
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        yield from process.stdout
        complaint = process.stderr.read().strip()
    if process.returncode:
        raise ValueError(
            f"{path}: apt cannot read it ({complaint}); run `apt-get update` again, or copy it again"
        )


Part = tuple[tuple[tuple[int, ...], int], ...]
Key = tuple[int, Part, Part]

_RUNS = re.compile(r"(\D*)(\d*)")


def version_key(version: str) -> Key:
    """Return a sort key. Keys compare as `dpkg --compare-versions` compares versions."""
    epoch, colon, rest = version.partition(":")
    if not (colon and epoch.isdecimal()):
        epoch, rest = "0", version
    upstream, hyphen, revision = rest.rpartition("-")
    return int(epoch), _part(upstream if hyphen else rest), _part(revision if hyphen else "")


def _part(text: str) -> Part:
    # The pattern's last match is empty. It sorts after "~" and before everything else, as the end must.
    runs = _RUNS.findall(text or "0")
    return tuple(((*map(_rank, letters), 0), int(digits or 0)) for letters, digits in runs)


def _rank(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 0x110000


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


def write_snapshot(path: str | os.PathLike[str], facts: Facts) -> None:
    """Write a compressed .npz of plain arrays: the same bytes for the same facts (and the same zlib).

    Pairs are stored as `NAME.counts`, the number of pairs per left id, and `NAME.right`.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "counts": np.array([facts.counts[node_type] for node_type in NODE_TYPES], np.int64),
        "sections": facts.sections,
        "tags": np.array(facts.tags, np.str_),
        **_stored("words", facts.words, facts.counts[PACKAGE]),
    }
    for edge_type in EDGE_TYPES:
        arrays |= _stored("__".join(edge_type), facts.edges[edge_type], facts.counts[PACKAGE])
    np.savez_compressed(path, allow_pickle=False, **arrays)


def _stored(name: str, pairs: Pairs, num_left: int) -> dict[str, npt.NDArray[Any]]:
    counts = np.bincount(pairs.left, minlength=num_left)
    narrow = np.min_scalar_type(int(counts.max(initial=0)))
    return {f"{name}.counts": counts.astype(narrow), f"{name}.right": pairs.right}


_PACKAGES_PER_NOTICE = 1000


def read_facts(lists: Sequence[Path], notice: ProgressCallback | None = None) -> Facts:
    """Read lists into one package graph; ValueError if they contain no package."""
    facts = collect(_packages(lists, Meter(sum(path.stat().st_size for path in lists), notice)))
    if facts.counts[PACKAGE] == 0:
        raise ValueError(
            f"{', '.join(map(str, lists))}: no package in it; run `apt-get update` and try again"
        )
    return facts


def _packages(lists: Sequence[Path], meter: Meter) -> Iterator[Package]:
    # The position in a compressed list is unknown while a pipe reads it: the bar moves list by list.
    for path in lists:
        for number, package in enumerate(parse_packages(list_lines(path), str(path))):
            if number % _PACKAGES_PER_NOTICE == 0:
                meter.at(f"{path.name}: {number:,} packages")
            yield package
        meter.at(path.name, path.stat().st_size)


def main() -> None:
    """Write a graph folder, or the file of the built-in graphs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--typed", action="store_true", help="write all node and edge types")
    parser.add_argument("out", type=Path, help="graph folder, or a file that ends in .npz")
    parser.add_argument("lists", type=Path, nargs="*", help="lists, or folders of lists (default: apt's)")
    arguments = parser.parse_args()
    folders = arguments.lists or [machine_lists()]
    lists = [path for one in folders for path in (find_lists(one) if one.is_dir() else [one])]
    facts = read_facts(lists)
    if arguments.out.suffix != ".npz":
        write_debian(arguments.out, "debian-typed" if arguments.typed else "debian", facts)
        return
    write_snapshot(arguments.out, facts)
    print(f"sha256 {sha256(arguments.out.read_bytes()).hexdigest()}, {arguments.out.stat().st_size:,} bytes")
    for node_type, count in facts.counts.items():
        print(f"{node_type:<12}{count:>10,}")
    for edge_type, pairs in facts.edges.items():
        print(f"{' '.join(edge_type):<36}{len(pairs):>10,}")


if __name__ == "__main__":
    main()
