"""Import of a graph from one file: `khop import edges:FILE`.

Edge lists have two ids per line, and optionally a weight and a time. GraphML, GEXF, GML and Pajek files are
read by NetworkX, Matrix Market files by SciPy.
"""

from __future__ import annotations

import ast
import csv
import io
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from pathlib import Path
from typing import Any, Literal
from xml.parsers import expat

import networkx
import numpy as np
import numpy.typing as npt
from networkx.readwrite import gexf, graphml, pajek

from khop.data.formats.set_graph import EDGE, NODE, SetGraph, stored_name
from khop.data.importers import EdgeFile, ImportContext, NamedImport
from khop.data.tables.files import other_format, refuse_special
from khop.data.tables.guess import ends_of
from khop.data.tables.labels import canonical_integers, length_as_text, string_keys
from khop.data.tables.packages import numpy_of, pa, pa_csv, pc, reading
from khop.graph.atomic import ProgressCallback
from khop.graph.folder import ORIGINAL_ID
from khop.graph.networkx_tables import NetworkxTables, attribute_columns, entries, narrowed
from khop.graph.tables import EdgeTable, NodeTable
from khop.kernels.id_table import Keys, StringKeys, id_table
from khop.schema import EdgeType

WEIGHT, TIME = "weight", "time"
Header = Literal["auto", "yes", "no"]
_SEPARATORS = ("\t", ";", ",", "|", " ")  # blanks are last: "a, b" is separated by a comma
_FIELDS = range(2, 5)
_CHUNK_BYTES = 32 << 20
_SAMPLE_LINES, _SAMPLE_BYTES = 1000, 1 << 14
_COMMENT = re.compile(rb"(?m)^[ \t]*(?:#|%|//).*$")
_ATTRIBUTES = re.compile(rb"[ \t,;|]+(\{.*\})[ \t]*$")
_DECIMAL_COMMA = re.compile(rb"\s*[^\s,]+[ \t]+[^\s,]+[ \t]+[+-]?\d+,\d+\s*")  # for a weight after blanks
_PLACES = ("third", "fourth")
_INDEX = (
    "the first column has no name, like the index that pandas writes; write the file with index=False, or "
    "import it by a spec (docs/import.md)"
)
_FORM = "an edge has two ids and maybe a weight and a time; correct it, or import by a spec (docs/import.md)"


@dataclass(frozen=True)
class ReadEdges:
    """Nodes, and edges between them."""

    ids: Keys  # of the nodes, as they first appear
    sources: npt.NDArray[np.int64]
    destinations: npt.NDArray[np.int64]
    direction: Literal["directed", "undirected"] = "directed"
    node_columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    edge_columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class _Form:
    """The format of an edge list."""

    path: Path
    separator: str  # " " for any blanks
    fields: int
    has_attributes: bool  # networkx's {'weight': 3} at the end of a line


@dataclass
class _Content:
    """The lines read so far. The first piece is the first line, which may be a header."""

    ends: list[Keys] = field(default_factory=list)  # source, destination, source, ...
    values: list[Any] = field(default_factory=list)  # tables of the other fields
    attributes: list[Mapping[str, Any]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)


def edge_list(path: Path, header: Header = "auto") -> ReadEdges:
    """Read an edge list, also compressed. Lines that begin with #, % or // are comments.

    Ids are int64 if all are canonical decimal integers, without a plus sign, leading zeros or blanks, else
    text. A third field is the edge column `weight`, a fourth `time`, unless a header has other names.
    ValueError names the first line that is not an edge.
    """
    form, content = _form(path), _Content()
    try:
        for chunk in _from_first_line(path):
            if chunk and not chunk.isspace():
                _add(content, chunk, form)
    except pa.ArrowInvalid:
        raise _problem(form, True, "a line is not an edge, or not UTF-8") from None
    names, notes = [WEIGHT, TIME][: form.fields - 2], []
    first, is_header = content.first, _is_header(content, header)
    if is_header and _has_index(first):
        raise ValueError(f"{path}: {_INDEX}")
    if is_header:
        words = form.separator.join(first)
        notes.append(f"the first line, {words!r}, names the columns; --header no reads it as an edge")
        names = [name.strip() for name in first[2:]]
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: the column {names[0]!r} occurs twice in the header; rename one")
        content = _Content(content.ends[1:], content.values[1:], content.attributes[1:])
        if not content.ends:
            raise ValueError(f"{path}: has a header, {words!r}, and no edges; add lines of two ids")
        _check_order(path, first)
    if not content.ends:
        raise ValueError(f"{path}: has no edges; give a file with two ids on each line")
    columns = {}
    for at, name in enumerate(names):
        values = pa.chunked_array([table[at] for table in content.values])
        numbers = _numbers(values, name, form.separator)
        if numbers is None and pc.all(pc.equal(values, "")).as_py():
            notes.append(f"the {_PLACES[at]} field is empty on all lines: it is omitted")
            continue
        if numbers is None:
            raise _problem(form, is_header, f"{name} is not a number")
        columns[name] = numbers
        if _has_rounded(values, numbers):
            notes.append(f"{name}: whole numbers beyond 2**53 are rounded")
    if content.attributes:
        found, more = attribute_columns(content.attributes, "edges")
        columns |= found
        notes += more
    ids, rows = _numbered(content.ends)
    return ReadEdges(ids, rows[0::2].copy(), rows[1::2].copy(), edge_columns=columns, notes=notes)


def _add(content: _Content, chunk: bytes, form: _Form) -> None:
    if form.has_attributes:
        lines = [_split_attributes(line) for line in chunk.split(b"\n") if line.strip()]
        content.attributes += [attributes for _, attributes in lines]
        chunk = b"\n".join([line for line, _ in lines] + [b""])
    integers = _plain_integers(chunk, form) if content.ends else None
    if integers is not None:
        content.ends.append(integers)
        content.values.append([])
        return
    try:
        table = _table(chunk, form)
    except pa.ArrowInvalid:
        table = _table(_tidy(chunk, form.separator), form)
    content.first = content.first or [column[0].as_py() for column in table.columns]
    ends = [table[0].combine_chunks(), table[1].combine_chunks()]
    numbers = [canonical_integers(end) for end in ends]
    if numbers[0] is not None and numbers[1] is not None:
        content.ends.append(np.stack([numbers[0], numbers[1]], axis=1).reshape(-1))
    else:
        places = pa.array(np.arange(2 * len(ends[0])).reshape(2, -1).T.reshape(-1))
        content.ends.append(string_keys(pa.concat_arrays(ends).cast(pa.large_string()).take(places)))
    content.values.append(table.columns[2:])


def _plain_integers(chunk: bytes, form: _Form) -> npt.NDArray[np.int64] | None:
    """Return the ids of a chunk of only canonical integers, without a copy as text; else None."""
    if form.fields > 2 or not chunk[:1].isdigit() or b"x" in chunk or b"X" in chunk:
        return None
    kinds = {"0": pa.int64(), "1": pa.int64()}
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(chunk),
            read_options=pa_csv.ReadOptions(column_names=list(kinds)),
            parse_options=pa_csv.ParseOptions(delimiter=form.separator, quote_char=False),
            convert_options=pa_csv.ConvertOptions(column_types=kinds, null_values=[]),
        )
    except pa.ArrowInvalid:
        return None
    ends = [numpy_of(column.combine_chunks()) for column in table.columns]
    is_all = sum(length_as_text(end) + len(end) for end in ends) == len(chunk)
    return np.stack(ends, axis=1).reshape(-1) if is_all else None


def _numbered(ends: list[Keys]) -> tuple[Keys, npt.NDArray[np.int64]]:
    """Return the distinct ids in order of first appearance, and the position of each end among them."""
    is_text = any(isinstance(piece, StringKeys) for piece in ends)
    ids = id_table("string" if is_text else "int64", 0)
    rows = []
    while ends:  # a piece is dropped once it is numbered
        piece = ends.pop(0)
        if is_text and not isinstance(piece, StringKeys):
            piece = string_keys(pa.array(piece).cast(pa.large_string()))
        rows.append(ids.add(piece))
    return ids.keys(np.arange(len(ids), dtype=np.int64)), np.concatenate(rows)


def _is_header(content: _Content, header: Header) -> bool:
    """Return True if the first line names columns: names over integers, or the usual names."""
    if header != "auto":
        return header == "yes"
    names = [name.strip() for name in content.first]
    if not all(re.match(r"[^\W\d]", name) for name in names[:2]):
        return False
    is_named = ends_of(names) is not None
    if len(content.ends) < 2:
        return is_named
    over_integers = not any(isinstance(piece, StringKeys) for piece in content.ends[1:])
    over_numbers = len(names) > 2 and re.match(r"(?i)(?!nan|inf)[^\W\d]", names[2]) is not None
    is_id = any(re.search(r"\d$", name) for name in names[:2])  # node1, node2
    return over_integers or over_numbers or (is_named and not is_id)


def _check_order(path: Path, names: Sequence[str]) -> None:
    """Raise ValueError if the header names ends that are not the first two columns in this order."""
    ends = ends_of(names)
    if ends is not None and ends != (0, 1):
        source, destination = (names[at].strip() for at in ends)
        raise ValueError(
            f"{path}: the columns {source!r} and {destination!r} are not the first two in this order; "
            f"reorder them, or import it by a spec: khop import --guess {shlex.quote(str(path))}"
        )


def _numbers(values: Any, name: str, separator: str) -> npt.NDArray[Any] | None:
    """Return weights as float32, other integers as int64; None if a value is not a finite number.

    Weights are float64 as by `narrowed`.
    """
    if separator != "," and pc.any(pc.match_substring(values, ",")).as_py():
        values = pc.replace_substring(values, ",", ".")  # a decimal comma
    kinds = (pa.float64(),) if name == WEIGHT else (pa.int64(), pa.float64())
    for kind in kinds:
        try:
            made = numpy_of(values.cast(kind).combine_chunks())
        except pa.ArrowInvalid:
            continue
        if not np.isfinite(made).all():
            return None
        return narrowed(made) if name == WEIGHT else made
    return None


def _has_rounded(values: Any, numbers: npt.NDArray[Any]) -> bool:
    """Return True if a whole number of a column was changed."""
    large = np.flatnonzero(np.abs(numbers) >= 2**53) if numbers.dtype.kind == "f" else ()
    texts = ((at, values[at].as_py().strip()) for at in map(int, large))
    return any(int(text) != int(numbers[at]) for at, text in texts if re.fullmatch(r"[+-]?\d+", text))


def _table(chunk: bytes, form: _Form) -> Any:
    """Return the fields as text; pyarrow's ArrowInvalid for another number of fields, or an empty id."""
    if (b"\t" in chunk and form.separator == " ") or b'"' in chunk:
        chunk = _tidy(chunk, form.separator)
    names = [str(number) for number in range(form.fields)]
    table = pa_csv.read_csv(
        pa.BufferReader(chunk),
        read_options=pa_csv.ReadOptions(column_names=names),
        parse_options=pa_csv.ParseOptions(delimiter=form.separator),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        ),
    )
    if b" " in chunk and form.separator != " ":
        table = pa.table([pc.ascii_trim_whitespace(column) for column in table.columns], names)
    if any(pc.min(pc.binary_length(table[end])).as_py() == 0 for end in (0, 1)):
        raise pa.ArrowInvalid("an id is empty")
    return table


def _form(path: Path) -> _Form:
    """Find the format of a file from its first lines."""
    numbered = ((n, line) for n, line in _numbered_lines(path, _SAMPLE_BYTES) if line.strip())
    sample = list(islice(numbered, _SAMPLE_LINES))
    if not sample:
        raise ValueError(f"{path}: has no edges; give a file with two ids on each line")
    has_attributes = _ATTRIBUTES.search(sample[-1][1]) is not None
    lines = [_split_attributes(line)[0] if has_attributes else line for _, line in sample]
    if all(_DECIMAL_COMMA.fullmatch(line) for line in lines):
        return _Form(path, " ", 3, has_attributes)
    form, most, fields = None, 0, 1
    for separator in _SEPARATORS:
        try:
            counts = Counter(len(of_line) for of_line in _fields(b"\n".join(lines), separator))
        except csv.Error:
            limit = csv.field_size_limit()
            wrong = [n for n, line in sample if len(line) > limit or line.count(b'"') % 2]
            raise _too_long(path, [*wrong, sample[0][0]][0]) from None
        fields = max(fields, *counts)
        count, times = counts.most_common(1)[0]
        if count in _FIELDS and times > most:  # if lines differ, reading them finds the wrong one
            form, most = _Form(path, separator, count, has_attributes), times
    if form is not None:
        return form
    raise ValueError(f"{path}, line {sample[0][0]}: has {fields} fields; {_FORM}")


def _has_index(first: Sequence[str]) -> bool:
    """Return True for a header as pandas writes it over its index."""
    index, *names = [name.strip() for name in first] or [""]
    return len(names) > 1 and index in ("", "Unnamed: 0") and all(re.match(r"[^\W\d]", one) for one in names)


def _too_long(path: Path, line: int) -> ValueError:
    return ValueError(
        f"{path}, line {line}: a field is longer than {csv.field_size_limit():,} characters, or a quote is "
        f"not closed; {_FORM}"
    )


def _problem(form: _Form, is_header: bool, reason: str) -> ValueError:
    """Return an error that names the line that is not an edge."""
    for number, fields in _lines(form.path, form):
        where = f"{form.path}, line {number}"
        if len(fields) != form.fields:
            return ValueError(
                f"{where}: has {len(fields)} fields, but other lines have {form.fields}; {_FORM}"
            )
        if is_header and _has_index(fields):
            return ValueError(f"{where}: {_INDEX}")
        if not all(fields[:2]):
            return ValueError(f"{where}: an id is empty; complete or remove the line")
        for name, text in zip(_PLACES, [] if is_header else fields[2:], strict=False):
            if _numbers(pa.chunked_array([[text]]), WEIGHT, form.separator) is None:
                return ValueError(f"{where}: the {name} field is {text!r}, which is not a number; {_FORM}")
        is_header = False
    return ValueError(f"{form.path}: cannot be read ({reason}); correct the file")


def _lines(path: Path, form: _Form) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line with an edge."""
    for number, line in _numbered_lines(path):
        if line.strip(b" \t"):
            text = _split_attributes(line)[0] if form.has_attributes else line
            try:
                fields = next(_fields(text, form.separator, "strict"))
            except UnicodeDecodeError:
                raise ValueError(f"{path}, line {number}: invalid UTF-8; save the file as UTF-8") from None
            except csv.Error:
                raise _too_long(path, number) from None
            yield number, [one.strip() for one in fields]


def _fields(text: bytes, separator: str, errors: str = "replace") -> Iterator[list[str]]:
    lines = _tidy(text + b"\n", separator).decode(errors=errors).split("\n")
    return csv.reader((line for line in lines if line.strip(" \t")), delimiter=separator)


def _tidy(chunk: bytes, separator: str) -> bytes:
    """Remove blanks that are not separators: at both ends of lines, repeated, and before quotes."""
    if separator == " ":
        if b"\t" in chunk or b"  " in chunk:
            chunk = re.sub(rb'("[^"\n]*")|[ \t]+', lambda found: found[1] or b" ", chunk)
        return chunk.removeprefix(b" ").replace(b"\n ", b"\n").replace(b" \n", b"\n")
    if b" \n" in chunk or b"\t\n" in chunk:
        chunk = re.sub(rb"[ \t]+\n", b"\n", chunk)
    if b'"' in chunk and b" " in chunk:
        chunk = re.sub(rb'([\t,;|]) +"', rb'\1"', re.sub(rb'" +([\t,;|])', rb'"\1', chunk))
    return chunk


def _split_attributes(line: bytes) -> tuple[bytes, Mapping[str, Any]]:
    """Return the ids of a line, and the attributes that networkx writes after them."""
    found = _ATTRIBUTES.search(line)
    if found is None:
        return line, {}
    try:
        attributes = {} if found[1] == b"{}" else ast.literal_eval(found[1].decode())
    except (ValueError, SyntaxError):
        return line, {}
    return (line[: found.start()], attributes) if isinstance(attributes, dict) else (line, {})


def _from_first_line(path: Path) -> Iterator[bytes]:
    """Yield the first line that is not empty, then the rest in chunks."""
    chunks = _chunks(path)
    for chunk in chunks:
        if not chunk.isspace():
            first, _, rest = chunk.lstrip().partition(b"\n")
            yield first + b"\n"
            yield rest
            break
    yield from chunks


def _numbered_lines(path: Path, size: int = _CHUNK_BYTES) -> Iterator[tuple[int, bytes]]:
    lines = (line for chunk in _chunks(path, size) for line in chunk.removesuffix(b"\n").split(b"\n"))
    return enumerate(lines, 1)


def _chunks(path: Path, size: int = _CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file in chunks that end with a newline. Comments become empty lines."""
    rest, is_first = b"", True
    for read in _blocks(path, size):
        if is_first:
            _check_text(path, read)
        if b"\0" in read:
            line = _content(path).partition(b"\0")[0].count(b"\n") + 1
            raise ValueError(
                f"{path}, line {line}: has a NUL byte; save the file as UTF-8, or correct the line"
            )
        data = rest + (read.removeprefix(b"\xef\xbb\xbf") if is_first else read)
        is_first = False
        last_return = data.endswith(b"\r")  # its \n may follow
        if b"\r" in data:
            body = data[:-1] if last_return else data
            data = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + (b"\r" if last_return else b"")
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if end:
            yield _without_comments(data[:end])
    if rest.strip():
        yield _without_comments(rest.rstrip(b"\r") + b"\n")


def _check_text(path: Path, start: bytes) -> None:
    """Raise ValueError for files of other formats, by their first bytes."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{path}: is UTF-{32 if start[2:4] == bytes(2) else 16}; save the file as UTF-8")
    if problem := other_format(start, path.name):
        raise ValueError(f"{path}: {problem}")
    if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        raise ValueError(f"{path}: is JSON; write lines of two ids, or import it by a spec (docs/import.md)")


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with (
        reading(str(path), "write the file again"),
        pa.input_stream(str(path), compression="detect") as stream,
    ):
        while block := stream.read(size):
            yield block


def _content(path: Path) -> bytes:
    return b"".join(_blocks(path, _CHUNK_BYTES))


def _without_comments(chunk: bytes) -> bytes:
    start = 0
    while chunk.startswith((b"#", b"%", b"//"), start):
        start = chunk.index(b"\n", start) + 1
    lines = chunk.count(b"\n", 0, start)
    rest = chunk[start:]
    if b"#" in rest or b"%" in rest or b"//" in rest:
        rest = _COMMENT.sub(b"", rest)
    return b"\n" * lines + rest


BACK: EdgeType = (NODE, "rev_to", NODE)
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_LIST_SUFFIXES = (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el")
_ERRORS = (
    networkx.NetworkXException, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
    SyntaxError, StopIteration, RecursionError, expat.ExpatError,
)  # fmt: skip
# Attributes that elements of GraphML and GEXF need. Other elements may be numerous, and are not recorded.
_NEEDED: dict[str, tuple[str, ...]] = {"graph": (), "node": ("id",), "edge": ("source", "target")}
_KNOWN = {  # texts for networkx's errors
    r"undefined (source|target) '?([^']+?)'?$": r"an edge has the \1 \2, which no node has; add the node",
    r"node #(\d+) has no '(\w+)'": r"node \1 has no \2; add it",
    r"edge #(\d+) has no '(\w+)'": r"edge \1 has no \2; add it",
    r"node id (\S+) is duplicated": r"two nodes have the id \1; rename one",
    r"edge #\d+ \((\S+?)-[->](\S+)\) is duplicated": r"two edges go from \1 to \2; add: multigraph 1",
    "directed=(true|false) edge found|irected edge found in .*directed graph": (
        "it has directed and undirected edges; write all of them directed"
    ),
    r"Bad GraphML data: no key (\S+)|No attribute defined for=(\S+)\.": (
        r"it has data of the key \1\2, which is not declared; declare it"
    ),
    r"Unknown GEXF version (\S+)\.": r"its GEXF version \1 is not read; write it as version 1.3",
    "[Hh]yperedge": "it has hyperedges, which link more than two nodes; remove them",
}


class _Refused(ValueError):
    """Content that khop refuses."""


_BANNER = re.compile(rb"(?is)\s*(?:(?!%%MatrixMarket)(?:#|%|//)[^\n]*\n\s*)*%%MatrixMarket([^\n]*)(.*)")


def _banner(content: bytes) -> tuple[bytes, bytes]:
    """Return the banner of a MatrixMarket file as scipy reads it, and what follows; empty for other files.

    It is the first line, or follows comments.
    """
    found = _BANNER.match(content.removeprefix(b"\xef\xbb\xbf"))
    return (b"%%MatrixMarket" + found[1].lower(), found[2]) if found else (b"", b"")


def edge_file_importer(options: EdgeFile, context: ImportContext) -> NamedImport:
    """Return the import of one file. Nodes are in order of first appearance."""
    path = context.folder / options.name
    name = path.name
    for suffix in (*_COMPRESSED, *_FORMATS, *_LIST_SUFFIXES):
        name = name.removesuffix(suffix)

    def write(out: Path, notice: ProgressCallback | None) -> str:
        refuse_special(path, str(path))
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "no such file"
            raise ValueError(
                f"{path}: {what}; give an edge list, or a GraphML, GML, GEXF, Pajek or MatrixMarket file"
            )
        read = _read(path, options.header)
        notes = list(read.notes)
        node_columns, edge_columns = (_stored(c, notes) for c in (read.node_columns, read.edge_columns))
        edges = {EDGE: EdgeTable(read.sources, read.destinations, edge_columns)}
        if options.undirected or read.direction == "undirected":
            edges[BACK] = EdgeTable(read.destinations, read.sources, edge_columns, EDGE)
        unknown = [name for name, column in node_columns.items() if np.isnan(column).any()]
        node = NodeTable(len(read.ids), node_columns, ids=read.ids, unknown=unknown)
        return SetGraph(name, {NODE: node}, edges, notes=notes).write(out, context, notice)

    return NamedImport(name, write)


def _read(path: Path, header: Header) -> ReadEdges:
    """Read a file in the format of its name, without those of compression."""
    name = path.name.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    read = next((read for suffix, read in _FORMATS.items() if name.endswith(suffix)), None)
    if read is None and _banner(next(_blocks(path, _SAMPLE_BYTES), b""))[0]:
        read = _matrix_market
    return edge_list(path, header) if read is None else read(path)


def _stored(columns: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return stored columns under valid file names; each renamed column has a note."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        short = stored_name(name, {*found, ORIGINAL_ID})  # reserved: its values key draws
        if short != name:
            notes.append(f"attribute {name!r} is column {short!r}")
        found[short] = column.astype(np.uint8) if column.dtype == bool else column
    return found


def _by_networkx(parse: Callable[[bytes, list[str]], Any]) -> Callable[[Path], ReadEdges]:
    """Return the reader of a format that networkx parses from the bytes of a file."""

    def read(path: Path) -> ReadEdges:
        content, notes = _content(path).removeprefix(b"\xef\xbb\xbf"), list[str]()
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                graph = parse(content, notes)
        except _Refused as error:
            raise ValueError(f"{path}: {error}") from None
        except _ERRORS as error:
            raise _unreadable(path, content, error) from None
        tables = NetworkxTables.of(graph)
        form = r"\W*not supported.*|No key type for id (\S+)\..*"
        unread = {re.sub(form, r" \1", str(one.message)).strip() for one in told}
        problem = "has a type that is not supported; it is omitted, or kept as text"
        notes += [f"{what}: {problem}" for what in sorted(unread)]
        notes += tables.notes
        _check_finite(path, tables)
        is_int = all(type(node) is int and -(2**63) <= node < 2**63 for node in tables.ids)
        ids = np.array(tables.ids, np.int64) if is_int else StringKeys.of([str(node) for node in tables.ids])
        return ReadEdges(
            ids, tables.sources, tables.destinations, "directed" if graph.is_directed() else "undirected",
            tables.node_columns, tables.edge_columns, notes,
        )  # fmt: skip

    return read


def _check_finite(path: Path, tables: NetworkxTables) -> None:
    """Raise ValueError for an infinite attribute; NaN is a missing one."""
    ids, ends = tables.ids, zip(tables.sources.tolist(), tables.destinations.tolist(), strict=True)
    nodes, edges = (f"node {one}" for one in ids), (f"edge {ids[at]} to {ids[to]}" for at, to in ends)
    for columns, places in ((tables.node_columns, nodes), (tables.edge_columns, edges)):
        for name, column in columns.items():
            rows = np.flatnonzero(np.isinf(column).reshape(len(column), -1).any(1))
            if len(rows):
                place = next(islice(places, int(rows[0]), None))
                raise ValueError(f"{path}: attribute {name!r} of {place} is infinite; correct it")


def _unreadable(path: Path, content: bytes, error: Exception) -> ValueError:
    """Return the error for a file that networkx cannot parse, with the line if it is known."""
    message = " ".join(str(error).split())
    found = ((re.search(pattern, message), text) for pattern, text in _KNOWN.items())
    begun = next((int(note) for note in getattr(error, "__notes__", ()) if note.isdecimal()), 0)
    if known := next((match.expand(text) for match, text in found if match), None):
        return ValueError(f"{path}, line {begun}: {known}" if begun else f"{path}: {known}")
    lines = content.decode(errors="replace").split("\n")
    place = re.search(r"(?:at \(|line )(\d+)", message)  # of GML; of XML
    value = re.search(r"'([^']+)'|: ([^\s']+)$", message)
    word = (value[1] or value[2]) if value else ""
    if isinstance(error, UnicodeDecodeError):
        line = content[: error.start].count(b"\n") + 1
        return ValueError(f"{path}, line {line}: invalid UTF-8; save the file as UTF-8")
    holds = re.compile(rf"[>\"'\s]{re.escape(word)}[<\"'\s]") if word else None
    with_word = (n for n, one in enumerate(lines, start=1) if n >= begun and holds and holds.search(one))
    line = int(place[1]) if place else next(with_word, begun)
    if not line:
        return ValueError(f"{path}: has no complete graph in its format; write it again, or as an edge list")
    written = lines[min(line, len(lines)) - 1].strip()
    what = f"the value {word!r} in {written[:60]!r}" if word and word in written else f"{written[:60]!r}"
    return ValueError(f"{path}, line {line}: {what} is not valid in the format; correct the line")


@dataclass(frozen=True)
class _Elements:
    """The elements of an XML file that make up its graph, in the order of the file."""

    lines: Mapping[str, list[int]] = field(default_factory=lambda: {kind: [] for kind in _NEEDED})
    nodes: list[str] = field(default_factory=list)  # their ids


class _GraphmlReader(graphml.GraphMLReader):  # type: ignore[misc]  # networkx has no types
    """GraphML reader that keeps two keys of the same name apart, and reports the line of a faulty element."""

    def __init__(self, elements: _Elements, notes: list[str]) -> None:
        super().__init__()
        self._lines, self._notes = {kind: iter(of) for kind, of in elements.lines.items()}, notes

    def decode_data_elements(self, graphml_keys: Any, obj_xml: Any) -> Any:
        """Return the data of the next node or edge, without those that are empty."""
        line = next(self._lines[obj_xml.tag.rpartition("}")[2]])
        try:
            data = super().decode_data_elements(graphml_keys, obj_xml)
        except _ERRORS as error:
            error.add_note(str(line))
            raise
        return {name: value for name, value in data.items() if value != ""}

    def find_graphml_keys(self, graph_element: Any) -> Any:
        """Return the keys. A key with the name of another is named NAME_ID if it is another attribute.

        networkx writes integers and floats of one attribute as two keys: they remain one.
        """
        keys, defaults = super().find_graphml_keys(graph_element)
        names = Counter(key["name"] for key in keys.values())
        if max(names.values(), default=0) < 2:
            return keys, defaults
        of_elements = ([data.get("key") for data in element] for element in graph_element.iter())
        together = {pair for of_one in of_elements for pair in combinations(of_one, 2)}
        known: list[tuple[str, Any]] = []
        for key_id, key in keys.items():
            others = [(one, other) for one, other in known if other["name"] == key["name"]]
            if any(
                {(one, key_id), (key_id, one)} & together
                or (str in (key["type"], other["type"]) and key["type"] is not other["type"])
                for one, other in others
                if key["for"] == other["for"] or "all" in (key["for"], other["for"])
            ):
                name = f"{key['name']}_{key_id}"
                self._notes.append(f"key {key_id!r} has the name {key['name']!r} of another: it is {name!r}")
                key["name"] = name
            known.append((key_id, key))
        return keys, defaults


def _graphml(content: bytes, notes: list[str]) -> Any:
    elements = _elements(content)
    if len(elements.lines["graph"]) > 1:
        raise _Refused("has several or nested graphs; keep one")
    graphs = list(_GraphmlReader(elements, notes)(path=io.BytesIO(content)))
    if not graphs:
        raise _Refused("has no graph of the namespace http://graphml.graphdrawing.org/xmlns; add xmlns")
    _check_xml(elements, graphs[0])
    return graphs[0]


def _gexf(content: bytes, notes: list[str]) -> Any:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        declared = rb"(<\?xml[^>]*?)\s+encoding\s*=\s*[\"'][^\"']*[\"']"
        content = re.sub(declared, rb"\1", content.decode("utf-16").encode(), count=1)
    for group in re.findall(rb"(?s)<attributes\b.*?</attributes>", re.sub(rb"(?s)<!--.*?-->", b"", content)):
        titles = re.findall(rb"<attribute\s[^>]*?\btitle\s*=\s*[\"']([^\"']*)", group)
        if len(set(titles)) < len(titles):
            raise _Refused(f"two attributes have one title, of {b', '.join(titles).decode()}; rename one")
    content = re.sub(
        rb"(<graph\b(?![^>]*\btimeformat)[^>]*\bmode=.dynamic.)", rb'\1 timeformat="double"', content
    )
    content = re.sub(rb"https?://www\.gexf\.net/1\.3", b"http://gexf.net/1.3", content)  # Gephi 0.9
    elements, graph = _elements(content), gexf.read_gexf(io.BytesIO(content))
    _check_xml(elements, graph)
    return graph


def _elements(content: bytes) -> _Elements:
    """Return the graph's elements of XML; ValueError for entities, whose expansion may be endless.

    Elements of another namespace than the root's, as yEd writes them, are not part of the graph.
    """
    found, roots, missing = _Elements(), list[str](), list[str]()
    parser = expat.ParserCreate(namespace_separator="}")

    def start(name: str, attributes: Mapping[str, str]) -> None:
        space, _, kind = name.rpartition("}")
        if not roots:
            roots.append(space)
        if space != roots[0] or kind not in _NEEDED:
            return
        line = parser.CurrentLineNumber
        lacking = [needed for needed in _NEEDED[kind] if needed not in attributes]
        missing.extend(f"line {line}: the {kind} has no {needed}; add it" for needed in lacking)
        found.lines[kind].append(line)
        if kind == "node":
            found.nodes.append(attributes.get("id", ""))

    def entity(*_: object) -> None:
        raise _Refused("declares an entity; remove it")

    parser.StartElementHandler, parser.EntityDeclHandler = start, entity
    parser.Parse(content, True)
    if missing:  # raised after errors of XML, which may be the reason
        raise _Refused(missing[0])
    return found


def _check_xml(elements: _Elements, graph: Any) -> None:
    """Raise ValueError if networkx has merged nodes or edges with the same id."""
    _check_nodes(elements.nodes, len(graph))
    lost = len(elements.lines["edge"]) - graph.number_of_edges()
    if lost > 0:
        raise _Refused(f"{lost:,} edges have the id of another edge; rename them")


def _check_nodes(declared: list[str], count: int) -> None:
    if len(set(declared)) < len(declared):
        twice = next(node for at, node in enumerate(declared) if node in declared[:at])
        raise _Refused(f"two nodes are named {twice!r}; rename one")
    if len(declared) < count:
        raise _Refused(f"{count - len(declared):,} nodes of edges are not declared; add them to the nodes")


def _gml(content: bytes, notes: list[str]) -> Any:
    """Read GML. Ids are the labels of nodes, or their numbers if labels are missing or not distinct."""
    lines = content.decode().splitlines()
    try:
        return networkx.parse_gml(lines)
    except networkx.NetworkXError:
        graph = networkx.parse_gml(lines, label="id")
        notes.append("labels of nodes are missing or not distinct: their ids are their numbers")
        return graph


def _pajek(content: bytes, notes: list[str]) -> Any:
    """Read Pajek. Arcs, edges and a matrix have separate sections; in a file with both, an edge is two arcs.

    Whole numbers are integers.
    """
    sections: dict[str, list[str]] = {}
    section: list[str] = []
    form = None
    for number, line in enumerate(content.decode().splitlines(), start=1):
        word = (line.split() or ["%"])[0].lower()
        if word.startswith("*"):
            form, is_new = _PAJEK_LINES.get(word), word not in sections
            section = sections.setdefault(word, [])
            if not is_new:  # another relation
                notes.append(
                    f"line {number}: {line.strip()[:60]!r}: the edges of its relation are not kept apart"
                )
                continue
        elif form is not None and not word.startswith("%") and not re.match(form[0], line):
            raise _Refused(f"line {number}: {line.strip()[:60]!r} is not a valid {form[1]}; correct the line")
        if not word.startswith("%"):
            section.append(line)
    if other := [word for word in sections if word not in ("*network", "*vertices", *_PAJEK_LINKS)]:
        raise _Refused(
            f"has a section {other[0]}; remove it: only *Vertices, *Arcs, *Edges, *Matrix are read"
        )
    vertices = sections.get("*vertices", [""])
    if len(vertices[0].split()) != 2:
        raise _Refused(
            f"{vertices[0]!r} is not '*Vertices' and a number; two-mode networks are not read; correct it"
        )
    vertices[1:] = _vertices(int(vertices[0].split()[1]), vertices[1:], notes)
    parts = {word: sections[word] for word in _PAJEK_LINKS if len(sections.get(word, [])) > 1} or {"": []}
    if any(re.search(r"\s\[", line) for part in (vertices, *parts.values()) for line in part):
        notes.append("times in brackets are omitted")
    for word in parts.keys() - {"*matrix"}:  # networkx reads weights as floats, but other attributes as text
        parts[word] = [re.sub(_WHOLE_WEIGHT, r"\1 weight \2", line) for line in parts[word]]
    of_parts = {word: pajek.parse_pajek(iter(vertices + part)) for word, part in parts.items()}
    graph = next(iter(of_parts.values()))
    if len(of_parts) > 1:
        graph = networkx.MultiDiGraph(graph)
    for word in [*of_parts][1:]:
        given = list(of_parts[word].edges(data=True))
        graph.add_edges_from(given)
        if word == "*edges":
            graph.add_edges_from((v, u, of) for u, v, of in given)
            notes.append(f"the file has arcs and {len(given):,} edges: each edge is two arcs")
    for of in [*(of for _, of in graph.nodes(data=True)), *(of for *_, of in graph.edges(data=True))]:
        of.pop("id", None)  # the number of a vertex
        of |= {name: _number(value) for name, value in of.items() if re.fullmatch(_NUMBER, str(value))}
    _check_nodes([shlex.split(line)[1] for line in vertices[1:]], len(graph))
    return graph


def _number(value: object) -> int | float:
    text = str(value)
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def _vertices(count: int, lines: Sequence[str], notes: list[str]) -> list[str]:
    """Return a line for each vertex; vertices without a name are named by number, as in Pajek."""
    given: dict[int, str] = {}
    for line in lines:
        for word in line.split()[:1]:
            if not 1 <= int(word) <= count or int(word) in given:
                raise _Refused(
                    f"{line.strip()[:60]!r}: numbers of vertices are 1 to {count:,}, each once; correct it"
                )
            given[int(word)] = line
    unnamed = [at for at in range(1, count + 1) if len(given.get(at, "").split()) < 2]
    if unnamed:
        notes.append(f"{len(unnamed):,} vertices have no name: their ids are their numbers")
        given |= {at: f'{at} "{at}"' for at in unnamed}
    return [given[at] for at in range(1, count + 1)]


def _matrix_market(path: Path) -> ReadEdges:
    """Read MatrixMarket. Rows are sources and columns are destinations. Ids of nodes count from 1."""
    try:
        import scipy.io
    except ImportError:
        raise ValueError(f"{path}: MatrixMarket files need scipy: pip install scipy") from None
    banner, _ = _banner(start := next(_blocks(path, _SAMPLE_BYTES), b""))
    is_plain = path.suffix not in (".zst", ".lz4") and (start.startswith(banner) or not banner)

    def source() -> Any:
        return str(path) if is_plain else io.BytesIO(b"".join(_banner(_content(path))))

    try:
        rows, columns, _, layout, kind, symmetry = scipy.io.mminfo(source())
        is_read = layout == "coordinate" and kind != "complex" and rows == columns
        matrix = scipy.io.mmread(source()) if is_read else None
    except (ValueError, OverflowError, OSError, StopIteration) as error:
        place = re.search(r"[Ll]ine (\d+)", str(error))
        lines = _content(path).decode(errors="replace").split("\n")
        if place is None or int(place[1]) > len(lines):
            reason = "is cut off, or has no line of sizes; write it again"
            raise ValueError(f"{path}: the MatrixMarket file {reason}") from None
        written = lines[int(place[1]) - 1].strip()[:60]
        raise ValueError(
            f"{path}, line {place[1]}: {written!r} is not an entry of a matrix of this size: a row, a "
            "column and a value; correct the line"
        ) from None
    if matrix is None:
        raise ValueError(
            f"{path}: is a {kind} {layout} matrix of {rows:,} rows and {columns:,} columns; give a square "
            "sparse one of real numbers"
        )
    is_undirected = symmetry in ("symmetric", "hermitian")
    kept = matrix.row >= matrix.col if is_undirected else slice(None)  # scipy has added the opposites
    infinite = np.flatnonzero(~np.isfinite(matrix.data))
    if len(infinite):
        row, column = int(matrix.row[infinite[0]]) + 1, int(matrix.col[infinite[0]]) + 1
        raise ValueError(
            f"{path}: the entry of row {row} and column {column} is not a finite number; correct it"
        )
    values = {} if kind == "pattern" else {WEIGHT: entries(matrix.data[kept])}
    return ReadEdges(
        np.arange(1, rows + 1), matrix.row[kept].astype(np.int64), matrix.col[kept].astype(np.int64),
        "undirected" if is_undirected else "directed", edge_columns=values,
    )  # fmt: skip


_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_PAJEK_LINK = rf"\s*\d+\s+\d+(\s+({_NUMBER}|[a-zA-Z]).*)?\s*$"
_PAJEK_LINES = {
    "*vertices": (r"\s*\d+(\s|$)", "vertex: a number and a name"),
    "*arcs": (_PAJEK_LINK, "arc: two numbers of vertices, and maybe a weight"),
    "*edges": (_PAJEK_LINK, "edge: two numbers of vertices, and maybe a weight"),
}
_PAJEK_LINKS = ("*arcs", "*matrix", "*edges")  # the first of a file has the direction of its graph
_WHOLE_WEIGHT = r"^(\s*\d+\s+\d+\s+([+-]?\d+))(?=\s|$)"
_FORMATS: Mapping[str, Callable[[Path], ReadEdges]] = {
    ".graphml": _by_networkx(_graphml),
    ".xml": _by_networkx(_graphml),
    ".gml": _by_networkx(_gml),
    ".gexf": _by_networkx(_gexf),
    ".net": _by_networkx(_pajek),
    ".paj": _by_networkx(_pajek),
    ".pajek": _by_networkx(_pajek),
    ".mtx": _matrix_market,
}
