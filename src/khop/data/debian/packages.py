"""Package lists in apt's format, read one package at a time.

The package lists of a machine: their folder, and their lines from plain or compressed files.

The order of Debian versions (Debian Policy, section 5.6.12), as a sort key.

The package graph as integers: the content of package lists without names, addresses and texts.

Short texts as counts of hashed words: features of a description without its text.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from khop.schema import EdgeType, NodeType

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


_LIST = re.compile(r"(.*_)?Packages(\.(gz|xz|bz2|lzma|lz4|zst))?")
_LISTS_OF_APT = ("apt-config", "shell", "LISTS", "Dir::State::lists/d")
_APT_HELPER = "/usr/lib/apt/apt-helper"
_TIMEOUT_S = 30
_INSTEAD = "name a folder with the *_Packages files of a Debian or Ubuntu machine (--lists DIR)"


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


BUCKETS = 512
_TOKEN = re.compile(r"[\w.+-]+")  # package names are tokens: "libc6", "g++", "x11-utils"
_WORD = re.compile(r"[^\W_]+")


def word_buckets(text: str, own_name: str) -> list[int]:
    """Return the bucket of each word of `text`, ascending, one entry per occurrence.

    Words are runs of letters and digits, in lower case. A token equal to `own_name` is dropped first: a
    package's name is not a feature.
    """
    tokens = (token.strip(".+-") for token in _TOKEN.findall(text.lower()))
    stripped = own_name.lower().strip(".+-")
    return sorted(_bucket(word) for token in tokens if token != stripped for word in _WORD.findall(token))


def word_counts(
    rows: npt.NDArray[np.int32], buckets: npt.NDArray[np.int32], num_rows: int
) -> npt.NDArray[np.uint8]:
    """Return (rows, BUCKETS) uint8 counts of each (row, bucket) in the two vectors, 255 at most.

    The number of rows is `num_rows`.
    """
    cells, counts = np.unique(rows.astype(np.int64) * BUCKETS + buckets, return_counts=True)
    table = np.zeros(num_rows * BUCKETS, np.uint8)
    table[cells] = np.minimum(counts, np.iinfo(np.uint8).max)
    return table.reshape(num_rows, BUCKETS)


@lru_cache(maxsize=1 << 16)
def _bucket(word: str) -> int:
    """Return the first two bytes of the word's BLAKE2b digest (size 2), little endian, modulo BUCKETS."""
    return int.from_bytes(blake2b(word.encode(), digest_size=2).digest(), "little") % BUCKETS


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
