"""Edge lists: lines of two ids, and maybe a weight and a time, read as text."""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from khop.graph.networkx_tables import attribute_columns
from khop.importing.arrow_values import numpy_of
from khop.importing.id_column import canonical_integers, length_as_text, string_keys
from khop.importing.packages import pa, pa_csv, pc, reading
from khop.kernels.id_table import Keys, StringKeys, id_table

WEIGHT, TIME = "weight", "time"
Header = Literal["auto", "yes", "no"]
_SEPARATORS = ("\t", ";", ",", " ")  # blanks are last: "a, b" is separated by a comma
_FIELDS = range(2, 5)
_CHUNK_BYTES = 32 << 20
_SAMPLE_LINES, _SAMPLE_BYTES = 1000, 1 << 14
_COMMENT = re.compile(rb"(?m)^[ \t]*(?:#|%|//).*$")
_ATTRIBUTES = re.compile(rb"[ \t,;]*(\{.*\})[ \t]*$")
_DECIMAL_COMMA = re.compile(rb"\s*[^\s,]+[ \t]+[^\s,]+[ \t]+[+-]?\d+,\d+\s*")  # of a weight after blanks
_ENDS = ({"source", "target"}, {"src", "dst"}, {"from", "to"}, {"source", "destination"}, {"head", "tail"})
_FORM = "an edge has two ids and maybe a weight and a time; import other tables by a spec (docs/import.md)"


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
    """The form of a file."""

    path: Path
    separator: str  # " " for any blanks
    fields: int
    has_attributes: bool  # networkx's {'weight': 3} at the end of a line


@dataclass
class _Content:
    """The lines so far. The first piece is the first line, which may be a header."""

    ends: list[Keys] = field(default_factory=list)  # source, destination, source, ...
    values: list[Any] = field(default_factory=list)  # tables of the other fields
    attributes: list[Mapping[str, Any]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)


def edge_list(path: Path, header: Header = "auto") -> ReadEdges:
    """Read an edge list, also compressed. Lines that begin with #, % or // are comments.

    Ids are int64 if each is a decimal integer without signs, zeros or blanks that a number would lose, else
    text as it stands. A third field is the edge column `weight`, a fourth `time`, or as a header names them.
    ValueError names the first line that is no edge.
    """
    form, content = _form(path), _Content()
    try:
        for chunk in _from_first_line(path):
            if chunk and not chunk.isspace():
                _add(content, chunk, form)
    except pa.ArrowInvalid:
        raise _problem(form, True, "a line is no edge, or not UTF-8") from None
    names, notes = [WEIGHT, TIME][: form.fields - 2], []
    first, is_header = content.first, _is_header(content, header)
    if is_header:
        words = form.separator.join(first)
        notes.append(f"the first line, {words!r}, names the columns; --header no reads it as an edge")
        names = [name.strip() for name in first[2:]]
        content = _Content(content.ends[1:], content.values[1:], content.attributes[1:])
    if not content.ends:
        raise ValueError(f"{path}: has no edges; give a file with two ids on each line")
    columns = {}
    for at, name in enumerate(names):
        numbers = _numbers(pa.chunked_array([table[at] for table in content.values]), name, form.separator)
        if numbers is None:
            raise _problem(form, is_header, f"{name} is not a number")
        columns[name] = numbers
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
    """Return the ids of a chunk that is nothing but canonical integers; else None. Makes no copy as text."""
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
    """Return the distinct ids as they first appear, and the position of each end among them."""
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
    names = [name.strip().lower() for name in content.first]
    if len(content.ends) < 2 or not all(re.match(r"[^\W\d]", name) for name in names[:2]):
        return False
    over_integers = not any(isinstance(piece, StringKeys) for piece in content.ends[1:])
    over_numbers = len(names) > 2 and re.match(r"(?!nan|inf)[^\W\d]", names[2]) is not None
    return over_integers or over_numbers or set(names[:2]) in _ENDS


def _numbers(values: Any, name: str, separator: str) -> npt.NDArray[Any] | None:
    """Return a column of weights as float32, of other whole numbers as int64; None if one is no number."""
    if separator != "," and pc.any(pc.match_substring(values, ",")).as_py():
        values = pc.replace_substring(values, ",", ".")  # a decimal comma
    kinds = (pa.float64(),) if name == WEIGHT else (pa.int64(), pa.float64())
    for kind in kinds:
        try:
            made = numpy_of(values.cast(kind).combine_chunks())
        except pa.ArrowInvalid:
            continue
        return made.astype(np.float32) if name == WEIGHT else made
    return None


def _table(chunk: bytes, form: _Form) -> Any:
    """Return the fields as text; pyarrow's ArrowInvalid for lines with other fields, or with an empty id."""
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
    """Find the form of a file from its first lines."""
    sample: list[tuple[int, bytes]] = []
    number = 0
    for chunk in _chunks(path, _SAMPLE_BYTES):
        for line in chunk.split(b"\n"):
            number += 1
            if line.strip():
                sample.append((number, line))
        if len(sample) >= _SAMPLE_LINES:
            break
    if not sample:
        raise ValueError(f"{path}: has no edges; give a file with two ids on each line")
    has_attributes = _ATTRIBUTES.search(sample[-1][1]) is not None
    lines = [_split_attributes(line)[0] if has_attributes else line for _, line in sample]
    if all(_DECIMAL_COMMA.fullmatch(line) for line in lines):
        return _Form(path, " ", 3, has_attributes)
    form, most, fields = None, 0, 1
    for separator in _SEPARATORS:
        counts = Counter(len(of_line) for of_line in _fields(b"\n".join(lines), separator))
        fields = max(fields, *counts)
        count, times = counts.most_common(1)[0]
        if count in _FIELDS and times > most:  # where lines differ, reading them names the wrong one
            form, most = _Form(path, separator, count, has_attributes), times
    if form is not None:
        return form
    raise ValueError(f"{path}, line {sample[0][0]}: has {fields} fields; {_FORM}")


def _problem(form: _Form, is_header: bool, reason: str) -> ValueError:
    """Find the line that is no edge."""
    for number, fields in _lines(form.path, form):
        where = f"{form.path}, line {number}"
        if len(fields) != form.fields:
            return ValueError(
                f"{where}: has {len(fields)} fields, and other lines have {form.fields}; {_FORM}"
            )
        if not all(fields[:2]):
            return ValueError(f"{where}: an id is empty; complete or remove the line")
        for name, text in zip(("third", "fourth"), [] if is_header else fields[2:], strict=False):
            if _numbers(pa.chunked_array([[text]]), WEIGHT, form.separator) is None:
                return ValueError(f"{where}: the {name} field is {text!r}, which is not a number; {_FORM}")
        is_header = False
    return ValueError(f"{form.path}: cannot be read ({reason}); correct the file")


def _lines(path: Path, form: _Form) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line with an edge."""
    number = 0
    for chunk in _chunks(path):
        for line in chunk.removesuffix(b"\n").split(b"\n"):
            number += 1
            if line.strip():
                text = _split_attributes(line)[0] if form.has_attributes else line
                try:
                    fields = next(_fields(text, form.separator, "strict"))
                except UnicodeDecodeError:
                    raise ValueError(
                        f"{path}, line {number}: invalid UTF-8; save the file as UTF-8"
                    ) from None
                yield number, [one.strip() for one in fields]


def _fields(text: bytes, separator: str, errors: str = "replace") -> Iterator[list[str]]:
    lines = _tidy(text + b"\n", separator).decode(errors=errors).split("\n")
    return csv.reader((line for line in lines if line.strip()), delimiter=separator)


def _tidy(chunk: bytes, separator: str) -> bytes:
    """Drop blanks that separate nothing: at both ends of lines, repeated, and before quotes."""
    if separator == " ":
        if b"\t" in chunk or b"  " in chunk:
            chunk = re.sub(rb'("[^"\n]*")|[ \t]+', lambda found: found[1] or b" ", chunk)
        chunk = chunk.removeprefix(b" ")
        return (
            chunk.replace(b"\n ", b"\n").replace(b" \n", b"\n")
            if b" \n" in chunk or b"\n " in chunk
            else chunk
        )
    if b" \n" in chunk or b"\t\n" in chunk:
        chunk = re.sub(rb"[ \t]+\n", b"\n", chunk)
    if b'"' in chunk and b" " in chunk:
        chunk = re.sub(rb'([\t,;]) +"', rb'\1"', re.sub(rb'" +([\t,;])', rb'"\1', chunk))
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


def _chunks(path: Path, size: int = _CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file in chunks, each ends with a newline. Comments are empty lines."""
    rest, is_first = b"", True
    for read in _blocks(path, size):
        if is_first and read.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise ValueError(f"{path}: is UTF-16; save the file as UTF-8")
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


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with reading(str(path), "write it again"), pa.input_stream(str(path), compression="detect") as stream:
        while block := stream.read(size):
            yield block


def _without_comments(chunk: bytes) -> bytes:
    start = 0
    while chunk.startswith((b"#", b"%", b"//"), start):
        start = chunk.index(b"\n", start) + 1
    lines = chunk.count(b"\n", 0, start)
    rest = chunk[start:]
    if b"#" in rest or b"%" in rest or b"//" in rest:
        rest = _COMMENT.sub(b"", rest)
    return b"\n" * lines + rest
