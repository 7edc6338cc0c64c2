"""A spec proposed from files: keys, links, times, categories and text.

All rows are counted, because a sample does not show whether a column is unique.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from khop.data.tables.encoders import texts_of
from khop.data.tables.files import (
    FORMATS,
    CsvTable,
    Dialect,
    InputFile,
    codec,
    find_files,
    first_row,
    open_files,
    quoted,
)
from khop.data.tables.labels import keys_of
from khop.data.tables.packages import connected, is_text, pa, pc, reading, without_blanks, without_spec
from khop.data.tables.rows import FileTable, Table, check_columns, read_pieces
from khop.data.tables.source import FileColumns
from khop.data.tables.times import ZONE, epoch_unit
from khop.kernels.id_table import IdTable, Kind, id_table

MOST_CATEGORIES = 1000  # distinct values that are counted
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_TIME = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?$"
_TRUTH = frozenset({"true", "false", "yes", "no", "t", "f"})


@dataclass(eq=False)
class ColumnFacts:
    """Facts about all rows of a column."""

    name: str
    dtype: Any  # of pyarrow
    rows: int = 0
    nulls: int = 0
    num_words: int = 0  # in all rows
    is_number: bool = True
    is_time: bool = True
    has_zone: bool = True  # all times have one
    has_fraction: bool = False
    low: float = float("inf")  # of numbers, including numbers in text
    high: float = float("-inf")
    least: Any = None  # of times and of whole numbers
    greatest: Any = None
    keys: IdTable[Any] | None = None  # None: not unique, or not an id
    distinct: set[str] | None = field(default_factory=set)  # None: more than MOST_CATEGORIES

    @classmethod
    def of(cls, name: str, dtype: Any) -> ColumnFacts:
        """Return the facts of a column without rows."""
        facts = cls(name, dtype.value_type if pa.types.is_dictionary(dtype) else dtype)
        facts.keys = None if facts.kind is None else id_table(facts.kind)
        return facts

    @property
    def kind(self) -> Kind | None:
        """The kind of ids that the column may have; None if its type is not one of ids."""
        return "string" if is_text(self.dtype) else "int64" if pa.types.is_integer(self.dtype) else None

    @property
    def known(self) -> int:
        """Rows with a value."""
        return self.rows - self.nulls

    @cached_property
    def words(self) -> frozenset[str]:
        """Words of the name, in lower case."""
        return frozenset(_tokens(self.name))

    @property
    def is_count(self) -> bool:
        """True for the name of a count, such as num_items."""
        return bool(self.words & _COUNTS) and not self.words & _IDS

    @property
    def is_truth(self) -> bool:
        """True if all values are words for true and false."""
        texts = {text.lower() for text in self.distinct or ()}
        return pa.types.is_boolean(self.dtype) or bool(texts and texts <= _TRUTH)

    def add(self, array: Any) -> None:
        """Update the facts by the next rows."""
        self.rows += len(array)
        self.nulls += array.null_count
        values = array.drop_null()
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if self.keys is not None and self.kind is not None and len(values):
            try:
                twice = self.keys.append(keys_of(values, self.kind, self.name, str))
            except ValueError:  # an unsigned integer beyond int64
                twice = 0
            self.keys = None if twice >= 0 or array.null_count else self.keys
        if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
            self.is_number = self.is_time = False
            self.distinct = None
            return
        if self.distinct is not None:
            self.distinct.update(texts_of(values.unique(), self.name, str).to_pylist())
            self.distinct = self.distinct if len(self.distinct) <= MOST_CATEGORIES else None
        self._type(values)

    def _type(self, values: Any) -> None:
        if not len(values):
            return
        if is_text(values.type):
            self.is_number &= _all(values, _NUMBER)
            self.is_time &= _all(values, _TIME)
            self.has_zone &= self.is_time and _all(values, ZONE)
            blanks = pc.sum(pc.count_substring(pc.utf8_trim_whitespace(values), " ")).as_py()
            self.num_words += len(values) + blanks
        else:
            self.is_number &= pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
            self.is_time &= pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)
            self.has_zone &= pa.types.is_timestamp(values.type) and values.type.tz is not None
        if self.is_number:
            numbers = without_blanks(values).cast(pa.float64(), safe=False)
            self.low = min(self.low, pc.min(numbers).as_py())
            self.high = max(self.high, pc.max(numbers).as_py())
            self.has_fraction |= pc.any(pc.not_equal(numbers, pc.floor(numbers))).as_py()
        if self.is_time or pa.types.is_integer(values.type):
            least, greatest = pc.min_max(values).as_py().values()
            self.least = least if self.least is None else min(self.least, least)
            self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)


def _all(values: Any, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def facts_of(table: Table) -> dict[str, ColumnFacts]:
    """Read all rows of a table once."""
    found = {one.name: ColumnFacts.of(one.name, one.type) for one in table.schema}
    for piece in read_pieces(table, list(found)):
        rows = piece()
        for name, facts in found.items():
            facts.add(rows.column(name))
    return found


def found_in(
    table: Table, columns: list[str], keys: Mapping[str, ColumnFacts]
) -> Iterator[tuple[str, str, int]]:
    """Read the columns of a table once; yield the number of their values among the keys of each type."""
    counts = {(name, node_type): 0 for name in columns for node_type in keys}
    for piece in read_pieces(table, columns) if counts else ():
        rows = piece()
        for name, node_type in list(counts):
            unique = keys[node_type]
            assert unique.keys is not None
            assert unique.kind is not None
            try:
                wanted = keys_of(rows.column(name).drop_null(), unique.kind, name, str)
            except ValueError:  # text that is not an integer
                del counts[name, node_type]
                continue
            counts[name, node_type] += int((unique.keys.find(wanted) >= 0).sum()) if len(wanted) else 0
    for (name, node_type), count in counts.items():
        yield name, node_type, count


_HEAD = """\
# A proposal: each comment states what all rows of the files say. Save it in this folder, edit it, and import
# it: khop import SPEC.toml OUT
"""
_CATEGORIES = 256  # maximum number of categories that are proposed as one-hot
_LEAST_SHARE = 0.5  # of values of a column that must be keys, for a link
_PAIRS = {
    ("source", "target"), ("source", "destination"), ("src", "dst"), ("from", "to"), ("head", "tail"),
    ("orig", "dest"), ("origin", "destination"), ("sender", "receiver"), ("follower", "followee"),
    ("citing", "cited"), ("start", "end"), ("pickup", "dropoff"), ("pu", "do"), ("home", "away"),
    ("buyer", "seller"), ("payer", "payee"), ("user", "friend"), ("u", "v"), ("a", "b"), ("1", "2"),
}  # fmt: skip
_SHORT = {("u", "v"), ("a", "b"), ("1", "2")}  # also names of measurements: not ends if the row has an id
_PERSONS = {
    "user", "customer", "account", "author", "member", "reviewer", "person", "client", "buyer", "player",
    "student", "patient", "employee", "follower", "voter", "rater", "msno",
}  # fmt: skip
_THINGS = {
    "item", "product", "movie", "book", "song", "artist", "track", "video", "article", "paper", "page",
    "business", "node", "vertex", "entity", "group",
}  # fmt: skip
_IDS = {"id", "ids", "key", "uuid", "asin", "isbn", "sku", "msno"}
_COUNTS = {"count", "counts", "cnt", "num", "number", "total", "sum", "qty", "quantity", "amount", "score"}
_TIMES = {"time", "timestamp", "ts", "date", "datetime", "at", "created", "updated", "unix"}
_NUMBERS = re.compile(r"(?:[-+\d.]+(?: [-+\d.]+)+\n)+[-+\d. ]*")  # the last line may be truncated
_LABELS = {"label", "class", "target", "y", "fraud", "churn", "outcome"}
_NULLS = {"unknown", "na", "n/a", "none", "null", "?", "-", "\\n"}
_YEAR_1990, _YEAR_2035 = 631152000, 2051222400  # in seconds since 1970
_RESERVED = {"x", "time", "label", "split"}
_WORDS = 2.0  # per row: fewer words are names, not text


@dataclass(eq=False)
class _GuessedTable:
    name: str  # of the node type or the relation
    files: Sequence[str]
    table: Table
    columns: Mapping[str, ColumnFacts]
    key: str | None
    form: Sequence[str] = ()  # lines of the spec
    links: dict[str, tuple[str, int]] = field(default_factory=dict)  # column -> node type, values found
    has_header: bool = True
    also: list[_GuessedTable] = field(default_factory=list)  # further tables of the same nodes

    @cached_property
    def pair(self) -> tuple[str, str, str] | None:
        """The columns of two ends of one type, such as txId1 and txId2, and a name for both."""
        if not self.has_header:
            is_key = len(self.columns) > 4 and self.columns["0"].keys is not None  # more than ends and values
            return ("0", "1", "node") if not is_key and _share_ids(self.table, self.columns) else None
        ids = [facts for facts in self.columns.values() if facts.kind is not None and _may_be_ids(facts)]
        words = {facts.name: _tokens(facts.name) for facts in ids}
        key = _best_key(self.name, self.columns)
        has_id = key is not None and bool(self.columns[key].words & _IDS)
        for one, other in ((a, b) for a in words for b in words):
            known = _PAIRS - _SHORT if has_id and key not in (one, other) else _PAIRS
            if _differ(words[one], words[other]) in known:
                ends = zip(words[one], words[other], strict=True)
                stem = [a for a, b in ends if a == b and a not in _IDS | {"name"}]
                return one, other, "-".join(stem) or "node"
        return None

    @property
    def is_edges(self) -> bool:
        return len(self.links) >= 2

    @property
    def rows(self) -> int:
        return max((one.rows for one in self.columns.values()), default=0)


def ends_of(names: Sequence[str]) -> tuple[int, int] | None:
    """Return the positions of the columns whose names are those of two ends, source first; None without any.

    The names are a pair, such as source and target or id_1 and id_2, or two names of nodes: userId and item.
    """
    words = [_tokens(name) for name in names]
    of_nodes = _IDS | _PERSONS | _THINGS
    for one, other in ((a, b) for a in range(len(words)) for b in range(len(words))):
        if _differ(words[one], words[other]) in (_PAIRS if of_nodes & set(words[one]) else _PAIRS - _SHORT):
            return one, other
    nodes = [at for at, of in enumerate(words) if set(of[-1:]) & _IDS or (len(of) == 1 and of[0] in of_nodes)]
    nodes = nodes if len(nodes) < 3 else [at for at in nodes if words[at] != ["id"]]
    return (nodes[0], nodes[1]) if len(nodes) == 2 else None


def _differ(one: Sequence[str], other: Sequence[str]) -> tuple[str, str] | None:
    """Return the words in which two names differ, if they differ in one."""
    pairs = [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]]
    return pairs[0] if len(pairs) == 1 and len(one) == len(other) else None


@without_spec()
def guess_spec(files: Sequence[str], folder: Path, header: str = "auto") -> str:
    """Return the text of a spec for files of tables, with a comment for each claim.

    All files are read twice: for keys, types and categories, then for links, columns whose values are keys of
    other tables. The keys of all tables are in memory. `header` states if the first row of CSV files has the
    column names: "yes", "no", or "auto" to decide by its values.
    """
    tables = _joined(_tables(find_files(files, folder, "--guess"), header))
    for table in tables:
        _find_links(table, tables)
    nodes = [one for one in tables if one.key is not None and not one.is_edges]
    kept = {one.name for one in nodes}
    for table in tables:
        table.links = {c: of for c, of in table.links.items() if of[0] in kept}
    bare = _bare_types(tables, kept)
    finer = [f for one in tables for f in one.columns.values() if _epoch(f) and f.has_fraction]
    texts = [_HEAD, 'time_unit = "us"  # times have fractions\n' if finer else "", _splits(tables)]
    texts += [_nodes(one) for one in nodes]
    texts += [f"[nodes.{_key(name)}]  # no table: the ids that edges name\n" for name in bare]
    texts += [_edges(one) for one in tables if one.links]
    neither = [one for one in tables if one.key is None and not one.links]
    if len(neither) == len(tables):
        files, there = ", ".join(neither[0].files), ", ".join(neither[0].columns)
        if not neither[0].rows:
            reason = f"has no rows after its names, {there}"
            raise ValueError(f"--guess: {files}: {reason}; add rows, or pass --header no if these are values")
        raise ValueError(
            f"--guess: {files}: no unique column, and no two columns with ids, of {there}; pass "
            "--header no if these are values, or write a spec that names the ids (docs/import.md)"
        )
    texts += [_neither(one) for one in neither]
    return "\n".join(text for text in texts if text)


def _tables(files: Sequence[InputFile], header: str) -> list[_GuessedTable]:
    """Open the files; files of one folder, or of its Hive partitions, format and columns are one table."""
    groups: dict[tuple[object, ...], list[InputFile]] = {}
    for file in files:
        dialect, format = _dialect(file, header)
        table = open_files([file], dialect, "--guess", format)
        group = (_folder(file.path), _suffix(file.name), dialect, tuple(table.schema.names))
        groups.setdefault(group, []).append(file)
    found: list[_GuessedTable] = []
    for of_group in groups.values():
        dialect, format = _dialect(of_group[0], header)
        table = open_files(of_group, dialect, "--guess", format)
        if isinstance(table, FileTable):
            check_columns(table, dict.fromkeys(table.mixed, "--guess"))
        form = [f'format = "{format}"'] if format else []
        form += [f"delimiter = {_text(dialect.delimiter)}"] if dialect.delimiter else []
        if partitions := FileColumns.hive(of_group).schema.names:
            form.append(f"# {', '.join(partitions)}: columns in the names of folders, as text")
        if isinstance(table, CsvTable) and dialect.header == "no":
            why = "" if header == "no" else f"  # the first line of {of_group[0].name} is data, as the others"
            form.append(f'header = "no"{why}')
        name = _name(of_group, [one.name for one in found])
        columns = facts_of(table)
        guessed = _GuessedTable(name, _patterns(of_group), table, columns, None, form)
        guessed.has_header = not isinstance(table, CsvTable) or dialect.header == "yes"
        guessed.key = None if guessed.pair else _best_key(name, columns)
        found.append(guessed)
    return found


def _joined(tables: Sequence[_GuessedTable]) -> list[_GuessedTable]:
    """Join tables of the same nodes: return one of them, with the others in its `also`.

    Tables have the same nodes if their keys have the same values. This does not hold for consecutive
    integers: users and items are both counted from 1. A table with ids of other tables is not joined, because
    its links are edges, nor is one that shares a column with a joined table.
    """
    found: list[_GuessedTable] = []
    for table in tables:
        key = None if table.key is None else table.columns[table.key]
        has_links = any(set(_tokens(name)[-1:]) & _IDS for name in table.columns if name != table.key)
        first = None if key is None or has_links or _is_range(key) else _of_same_nodes(table, key, found)
        if first is None:
            found.append(table)
        else:
            first.also.append(table)
            first.name = _common_name(first.name, table.name, [one.name for one in tables])
    return found


def _is_range(key: ColumnFacts) -> bool:
    return key.is_number and key.high - key.low < 2 * key.rows


def _of_same_nodes(
    table: _GuessedTable, key: ColumnFacts, others: Sequence[_GuessedTable]
) -> _GuessedTable | None:
    keys = {one.name: one.columns[one.key] for one in others if one.key is not None}
    joined = {one.name: {name for each in one.also for name in each.columns} for one in others}
    own = table.columns.keys() - {key.name}
    keys = {n: facts for n, facts in keys.items() if facts.rows == key.rows and not own & joined[n]}
    same = [name for _, name, count in found_in(table.table, [key.name], keys) if count == key.rows]
    return next((one for one in others if one.name in same), None)


def _common_name(first: str, second: str, taken: Sequence[str]) -> str:
    """Return the common prefix of two names, if it is a word and not the name of a table."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    name = re.sub(r"s?[-_]*$", "", "".join(letter for letter, _ in pairs))
    return name if len(name) > 1 and name not in taken else first


def _may_be_ids(facts: ColumnFacts) -> bool:
    """Return False for columns of times, fractions or counts."""
    return not ((facts.is_time and facts.known) or facts.has_fraction or facts.is_count or _epoch(facts))


def _dialect(file: InputFile, header: str) -> tuple[Dialect, str | None]:
    """Return the dialect of a CSV file, with the most frequent delimiter of its first line."""
    suffix = _suffix(file.name)
    if FORMATS.get(suffix, "csv") != "csv":
        return Dialect(), None
    with (
        reading(f"--guess: {file.name}", "write it again"),
        pa.input_stream(str(file.path), compression=codec(file.name)) as stream,
    ):
        text = stream.read(1 << 16).decode("utf-8-sig", "replace").replace("\r\n", "\n")
    line, plain = text.partition("\n")[0], Dialect()
    if line.startswith(("%%", "# ", "#\t")):
        raise ValueError(
            f"--guess: {file.name}, line 1: is a comment; import lists of edges by khop import "
            f"edges:{shlex.quote(file.name)}, or remove it"
        )
    most = max(("::", *"\t;|,"), key=line.count)
    if not line.count(most) and _NUMBERS.fullmatch(text):
        most = " "
    given = most if line.count(most) and most != plain.of(file.name) else None
    if header == "auto":
        lines, delimiter = text.split("\n"), given or plain.of(file.name)
        whole = lines if len(lines) < 3 else lines[:-1]  # the last one may be truncated
        try:
            rows = [first_row(one, delimiter) for one in whole if one]
            header = "no" if _is_data(rows) else "yes"
        except csv.Error:  # a quote that is closed on another line
            header = "yes"
    return Dialect(header, given), None if suffix else "csv"


def _is_data(rows: Sequence[Sequence[str]]) -> bool:
    """Return True if the first row is certainly data, with numbers, times and words like other rows."""
    first, *others = rows or [[]]
    others = [row for row in others if len(row) == len(first)]
    if not others:
        return False
    values = f"{_NUMBER}|{_TIME}"
    columns = list(zip(*others, strict=True))
    typed = [at for at, of in enumerate(columns) if all(re.match(values, one) for one in of if one)]
    words = [at for at in range(len(first)) if at not in typed]
    if not all(re.match(values, first[at]) for at in typed):
        return False
    known = [first[at] in columns[at] for at in words]  # no column has its name as a value
    return (not words or any(known)) if typed else all(known)


_SHARED = """
WITH l AS (SELECT "0" id, count(*) n FROM edges GROUP BY 1),
r AS (SELECT "1" id, count(*) n FROM edges GROUP BY 1)
SELECT count(*), (SELECT count(*) FROM l), (SELECT count(*) FROM r), coalesce(sum(l.n * r.n), 0),
(SELECT count(*) FROM edges WHERE "0" = "1"), (SELECT count(*) FROM edges) FROM l JOIN r USING (id)
"""


def _share_ids(table: Table, columns: Mapping[str, ColumnFacts]) -> bool:
    """Return True if the first two columns of a table are ids of one type.

    They are if most ids of the shorter column are also in the other one, and self-loops are rarer than by
    chance: ids of two types are also in the same range if both are consecutive.
    """
    if not {"0", "1"} <= set(columns) or columns["0"].has_fraction or columns["1"].has_fraction:
        return False
    batches = [piece().batch for piece in read_pieces(table, ["0", "1"])]
    with connected(threads=1) as connection:
        connection.register("edges", pa.Table.from_batches(batches))
        found: Any = connection.execute(_SHARED).fetchone()
    both, left, right, chance, own, rows = map(float, found)
    return both > 0 and both >= min(left, right) / 2 and (own == 0 or own < chance / rows / 2)


def _tokens(name: str) -> list[str]:
    """Return the words of a name, in lower case: txId1 is tx, id, 1."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+|\d+", name)]


def _safe(name: str, taken: Collection[str] = ()) -> str:
    """Return a name that is valid as a file name."""
    ascii = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    word = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]+", "-", ascii)).strip("-_") or "column"
    return _free(word, taken)


def _free(word: str, taken: Collection[str]) -> str:
    """Return a word, with a number if it is taken."""
    return next(one for number in range(len(taken) + 1) if (one := f"{word}{number or ''}") not in taken)


def _epoch(facts: ColumnFacts) -> str | None:
    """Return the unit of numbers that are times since 1970, by their name and range (1973 to 2100)."""
    if not facts.is_number:
        return None
    if facts.name.isdigit() and _YEAR_1990 < facts.low <= facts.high < _YEAR_2035:  # without a header
        return "s"
    return epoch_unit(facts.low, facts.high) if facts.words & _TIMES else None


def _suffix(name: str) -> str:
    return max((end for end in FORMATS if name.lower().endswith(end)), key=len, default="")


def _patterns(files: Sequence[InputFile]) -> list[str]:
    """Return the files as a glob, if it does not match other files."""
    parent, suffix = _folder(files[0].path), _suffix(files[0].name)
    glob = f"*{suffix}" if parent == files[0].path.parent else f"**/*{suffix}"
    names = [file.name for file in files]
    is_all = len(names) > 1 and len(list(parent.glob(glob))) == len(names)
    return [str(_folder(Path(files[0].name)) / glob)] if is_all else names


def _folder(file: Path) -> Path:
    """Return the folder of a file, above Hive partitions such as day=2020-01-01."""
    return next(folder for folder in file.parents if "=" not in folder.name)


def _name(files: Sequence[InputFile], taken: Sequence[str]) -> str:
    """Return a singular one-word name, from the file, or from the folder of several files."""
    path = Path(files[0].name)
    suffix = _suffix(path.name) or path.suffix
    stem = path.name[: len(path.name) - len(suffix)]
    stem = (_folder(path).name or stem) if len(files) > 1 else stem
    word = _safe(stem) if stem else "table"
    return _free(word[:-1] if re.search("..[^s]s$", word) else word, taken)


def _best_key(table: str, columns: Mapping[str, ColumnFacts]) -> str | None:
    """Return the unique column that identifies rows: by its name, or the first one."""
    unique = [name for name, one in columns.items() if one.keys is not None and one.rows]
    named = [name for name in unique if re.search(r"(^|[_\W])(id|key|uuid|code)$|Id$|ID$", name)]
    own = [name for name in named if _has(name, table) or name.lower() == "id"]
    ids = [name for name in columns if set(_tokens(name)[-1:]) & _IDS]
    if not own and len(ids) > 1:
        return None  # ids of several other tables: a link that is unique by chance
    first = [name for name in unique if name == next(iter(columns))]
    return next(iter([*own, *named, *first]), None)


def _find_links(table: _GuessedTable, tables: Sequence[_GuessedTable]) -> None:
    """Find columns whose values are keys of a table, and set the type with most of them.

    A unique column that is named like another table, and has its keys, is a link, not a key.
    """
    keys = {one.name: one.columns[one.key] for one in tables if one.key is not None}
    named = any(_has(table.key or "", name) for name in keys if name != table.name)
    is_own = table.key is not None and (_has(table.key, table.name) or not named)
    others = {name: one for name, one in table.columns.items() if not (name == table.key and is_own)}
    columns = [name for name, one in others.items() if one.kind is not None]
    best: dict[str, tuple[str, int]] = {}
    pair = table.pair or ()
    for name, node_type, count in found_in(table.table, columns, keys):
        facts = table.columns[name]
        if count < max(1, _LEAST_SHARE * facts.known) or facts is keys[node_type]:
            continue
        if facts.is_count:
            continue
        is_counted = facts.is_number and _tokens(name)[-1:] == [f"{_tokens(node_type)[-1]}s"]  # users.posts
        is_named = _names(name, node_type, keys[node_type])
        # Small integers are in any range of ids.
        is_small = not is_named and (facts.is_number or facts.kind != "string")
        if name not in pair[:2] and (is_counted or is_small):
            continue
        if count > best.get(name, ("", 0))[1]:
            best[name] = (node_type, count)
    table.links = {name: best[name] for name in columns if name in best}
    table.key = None if table.key in table.links else table.key


def _names(column: str, node_type: str, key: ColumnFacts) -> bool:
    """Return True if a column is named like a key or the key's table."""
    lower = column.lower()
    return (lower == key.name.lower() and lower != "id") or _has(column, node_type)


def _has(column: str, table: str) -> bool:
    """Return True if a column's name contains that of a table; short names must be a word of it."""
    lower = table.lower()
    return lower in _tokens(column) or (len(lower) > 2 and lower in column.lower())


def _bare_types(tables: Sequence[_GuessedTable], known: set[str]) -> list[str]:
    """Give tables without a key a second end: columns named like ids, with separate node types."""
    added: dict[str, None] = {}
    safe: dict[str, str] = {}  # node types by the words of columns, whose safe names may collide

    def link(table: _GuessedTable, column: str, stem: str) -> None:
        node_type = stem if stem not in known else f"{stem}-{table.name}"
        table.links[column] = (node_type, table.columns[column].known)
        added[node_type] = None

    for table in tables:
        if table.key is not None and not table.is_edges:
            continue
        if table.pair is not None and not any(end in table.links for end in table.pair[:2]):
            *ends, stem = table.pair
            table.links.clear()
            for name in ends:
                link(table, name, _safe(stem))
        elif table.pair is not None:  # one of two ends is found: both have its type
            node_type = next(table.links[end][0] for end in table.pair[:2] if end in table.links)
            table.links = {end: table.links.get(end, (node_type, 0)) for end in table.pair[:2]}
        elif not table.has_header and table.key is None and {"0", "1"} <= set(table.columns):
            link(table, "0", "source")
            link(table, "1", "destination")
        for name, facts in table.columns.items():
            words = _tokens(name)
            end = "-".join(word for word in words if word not in _IDS) or name.removesuffix("_id")
            is_id = facts.kind is not None and bool(words) and words[-1] in _IDS and not facts.is_time
            if len(table.links) < 2 and is_id and name not in table.links:
                link(table, name, safe.setdefault(end, _safe(end, safe.values())))
        if len(table.links) == 1:
            table.links.clear()
        first = table.pair[:1] if table.pair else ()
        order = [name for name in table.columns if name in table.links]
        persons = {n for n in order if (table.columns[n].words | {table.links[n][0]}) & _PERSONS}
        order.sort(key=lambda name: (name not in first, name not in persons))
        table.links = {name: table.links[name] for name in order}
    return list(added)


def _splits(tables: Sequence[_GuessedTable]) -> str:
    times = [
        facts for one in tables if one.links for facts in one.columns.values() if facts.is_time and facts.rows
    ]
    if not times:
        return ""
    least, greatest = min(_day(t.least) for t in times), max(_day(t.greatest) for t in times)
    val, test = (least + (greatest - least) * share for share in (0.8, 0.9))
    return (
        f"# Times go from {least} to {greatest}. To train on the past and to test on what follows:\n"
        f"# [splits]\n# time = {{ val = {val}T00:00:00Z, test = {test}T00:00:00Z }}  # choose both\n"
    )


def _day(value: object) -> date:
    """Return the day of a time: a value of pyarrow, or text in ISO 8601."""
    return date.fromisoformat(str(value)[:10])


def _nodes(table: _GuessedTable) -> str:
    assert table.key is not None
    lines = [f"[nodes.{_key(table.name)}]  # {table.rows:,} rows", *_source(table)]
    lines.append(f"id = {_text(table.key)}  # unique in all rows")
    taken = list(_RESERVED)
    free = {name: one for name, one in table.columns.items() if name not in (table.key, *table.links)}
    for other in table.also:
        names = [name for name in other.columns if name != other.key]
        free |= {f"also.{n}" if n in table.columns else n: other.columns[n] for n in names}
    lines += [_column(name, facts, taken, table.has_header) for name, facts in free.items()]
    labels = [name for name, one in free.items() if _is_category(one) and not one.is_number]
    labels += [name for name, one in free.items() if _is_category(one) and set(_tokens(name)) & _LABELS]
    if labels:
        use = "and then remove its column, to predict it; with a split:"
        lines.append(f"# label = {_text(labels[-1])}  # {use}")
        lines.append("# split = { ratio = [0.8, 0.1, 0.1] }")
    for other in table.also:
        lines += [f"[[nodes.{_key(table.name)}.also]]", *_source(other)]
        lines.append(f"id = {_text(other.key or '')}  # the ids are those of {_text(table.key)} above")
    return "\n".join(lines) + "\n"


def _source(table: _GuessedTable) -> list[str]:
    """Return the files of a table and their form, with a comment on words for missing values."""
    words = {text for one in table.columns.values() for text in one.distinct or () if text.lower() in _NULLS}
    missing = [f"# missing = {_list(sorted(words))}  # to read them as missing values"] if words else []
    return [f"files = {_list(table.files)}", *table.form, *missing]


def _column(name: str, facts: ColumnFacts, taken: list[str], has_header: bool) -> str:
    """Return the line of a feature, or a comment for a column without a fitting kind."""
    own = _safe(name, taken)
    taken.append(own)
    renamed = "" if own == name else f", column = {_text(name)}"
    nulls = f", {facts.nulls:,} nulls" if facts.nulls else ""
    count = "more than 1,000" if facts.distinct is None else f"{len(facts.distinct):,}"

    def line(kind: str, why: str, options: str = "") -> str:
        more = options + renamed
        return f"columns.{own} = " + (f'{{ kind = "{kind}"{more} }}' if more else f'"{kind}"') + f"  # {why}"

    if facts.rows == facts.nulls:
        return f"# {own}: all rows are null"
    if name.isdecimal() and has_header and facts.keys is not None and _is_range(facts):
        return f"# {own}: numbers of rows, without a name; no kind proposed"
    if facts.is_truth:
        return line("bool", f"true or false{nulls}")
    if facts.is_time:
        zone = "" if facts.has_zone else ', timezone = "UTC"'
        remedy = "" if facts.has_zone else "; without a time zone: give the right one"
        return line("date", f"times in all rows{nulls}{remedy}", zone)
    if unit := _epoch(facts):
        return line("date", f"epoch times{nulls}", f', unit = "{unit}"')
    if _is_category(facts) and not facts.is_number:
        return line("category", f"{count} different values{nulls}")
    if facts.is_number:
        return line("number", f"a number in all rows{nulls}")
    if is_text(facts.dtype) and facts.num_words >= _WORDS * facts.known:
        return line("text", f"{facts.num_words / facts.known:.1f} words per row{nulls}")
    if is_text(facts.dtype) and _repeats(facts):
        return line("category", f"{count} different values{nulls}", ', encoding = "embedding"')
    if pa.types.is_list(facts.dtype) and is_text(facts.dtype.value_type):
        return line("multi", f"lists of text{nulls}")
    return f"# {own}: {facts.dtype}, with {count} different values{nulls}; no kind proposed"


def _is_category(facts: ColumnFacts) -> bool:
    return _repeats(facts) and len(facts.distinct or ()) <= _CATEGORIES and not facts.is_time


def _repeats(facts: ColumnFacts) -> bool:
    """Return True if all values are known, and each occurs at least twice on average."""
    return 2 <= len(facts.distinct or ()) <= facts.rows // 2


def _edges(table: _GuessedTable) -> str:
    free = {name: one for name, one in table.columns.items() if name not in (table.key, *table.links)}
    times = [n for n, one in free.items() if (one.is_time or _epoch(one)) and one.rows and not one.nulls]
    form = [f"files = {_list(table.files)}", *table.form, *([_time(free[times[0]])] if times else [])]
    ends = [(name, *of) for name, of in table.links.items()]
    if len(ends) == 2:
        source, destination = ends
        lines = [
            f'[edges."{source[1]} {table.name} {destination[1]}"]  # {table.rows:,} rows', *form,
            f"source = {_text(source[0])}  # {_found(table, source)}",
            f"destination = {_text(destination[0])}  # {_found(table, destination)}",
            f'reverse = "{table.name}-by"', *(f"{one}  # as counted above" for one in _missing(table, ends)),
        ]  # fmt: skip
        if table.key is not None:
            lines.append(f"# {table.key} is unique: the rows could be nodes too, with an edge to each end")
        taken = list(_RESERVED)
        rest = {name: one for name, one in table.columns.items() if name not in (*table.links, *times)}
        lines += [_column(n, one, taken, table.has_header) for n, one in rest.items() if one.is_number]
        uses = [(n, _text(f"{quoted(n)} = ...")) for n, one in rest.items() if _is_category(one)]
        lines += [f"# {name}: use it in where, as where = {use}" for name, use in uses]
        return "\n".join(lines) + "\n"
    own_type = table.name if table.key and not table.is_edges else ends[0][1]
    first = (table.key or ends[0][0], own_type, table.rows)
    lines = ["[[edges_from]]", *form, "edges = ["]
    for end in ends if first[0] == table.key else ends[1:]:
        missing = "".join(f", {one}" for one in _missing(table, [first, end]))
        relation = _safe(end[0])
        lines.append(
            f'  {{ type = "{first[1]} {relation} {end[1]}", source = {_text(first[0])}, destination = '
            f'{_text(end[0])}, reverse = "{relation}-of"{missing} }},  # {_found(table, end)}'
        )
    return "\n".join([*lines, "]"]) + "\n"


def _found(table: _GuessedTable, end: tuple[str, str, int]) -> str:
    return f"{end[2]:,} of {table.columns[end[0]].known:,} values are ids of {end[1]}"


def _missing(table: _GuessedTable, ends: Sequence[tuple[str, str, int]]) -> list[str]:
    """Return the fields that edges need for unknown ends and for nulls."""
    of_ends = [(table.columns[name], found) for name, _, found in ends]
    orphans = any(facts.known > count for facts, count in of_ends)
    nulls = any(facts.nulls for facts, _ in of_ends)
    return (['orphans = "drop"'] if orphans else []) + (['nulls = "drop"'] if nulls else [])


def _time(facts: ColumnFacts) -> str:
    name = facts.name
    if unit := _epoch(facts):
        return f'time = {_text(name)}\nunit = "{unit}"  # since 1970'
    ends = f"from {facts.least} to {facts.greatest}"
    if facts.has_zone:
        return f"time = {_text(name)}  # {ends}"
    return f'time = {_text(name)}  # {ends}, without a zone\ntimezone = "UTC"  # give the zone they are in'


def _neither(table: _GuessedTable) -> str:
    there = ", ".join(table.columns)
    return f"# {', '.join(table.files)}: no unique column, and no two columns with ids ({there}); left out\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"
