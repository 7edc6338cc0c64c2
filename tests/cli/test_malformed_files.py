"""Files that cannot be read: one table of faults, each at every entrance where a file of rows comes in.

The error names file, line and column where there is one, the fault and the remedy.
"""

from __future__ import annotations

import dataclasses
import gzip
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from cli.conftest import Ran
from support.malformed import Columns, arrow, json_lines, link, parquet, refused, text, written

Command = Callable[..., Ran]
Content = bytes | Callable[[Path], None] | None


@dataclass(frozen=True)
class Entrance:
    """A way of a file into khop, in a folder with sound tables and a run."""

    name: str
    columns: Columns
    words: tuple[str, ...]  # of the command
    spec: str = ""  # spec.toml

    def __str__(self) -> str:
        return self.name


IDS = {"id": ["n1", "n2", "n3"], "age": ["1", "2", "3"]}
HEIGHTS = {"id": ["u1", "u2", "u3"], "height": ["1", "2", "3"]}
ENDS = {"user": ["u1", "u2", "u3"], "item": ["1", "2", "3"]}
ITEM = '[nodes.item]\nfiles = ["items.parquet"]\nid = "id"\n'
USER = '[nodes.user]\nfiles = ["users.csv"]\nid = "id"\n'
BUYS = '[edges."user buys item"]\nfiles = ["FILE"]\nsource = "user"\ndestination = "item"\n'
IMPORT = ("import", "spec.toml", "out", "--threads", "1")
NODES = '[nodes.user]\nfiles = ["FILE"]\nid = "id"\ncolumns.age = "number"\n'
HEIGHT = 'columns.height = "number"\n[nodes.user.also]\nfiles = ["FILE"]\nid = "id"\n'
DATABASE = '[nodes.user]\ndatabase = "FILE"\ntable = "users"\norder_by = "id"\nid = "id"\n'
ENTRANCES = (
    Entrance("nodes", IDS, IMPORT, NODES),
    Entrance("edges", ENDS, IMPORT, USER + ITEM + BUYS),
    Entrance("joined", HEIGHTS, IMPORT, USER + HEIGHT),
    Entrance("append", IDS, ("append", "users", "spec.toml"), NODES),
    Entrance("pairs", ENDS, ("predict", "run", "--pairs", "FILE", "--out", "out.parquet")),
    Entrance("guess", IDS, ("import", "--guess", "users.csv", "FILE")),
    Entrance(
        "seeds",
        {"id": ["u1", "u2", "u3"], "age": ["1", "2", "3"]},
        (
            "train",
            "--graph",
            "shop",
            "--task",
            "node-regression",
            "--target",
            "user",
            "--label",
            "age",
            "--seeds-train",
            "FILE",
            "--seeds-val",
            "FILE",
            "--out",
            "out",
        ),
    ),
)


@dataclass(frozen=True)
class Fault:
    """What is wrong with a file."""

    name: str
    file: str
    content: Callable[[Columns], Content]
    says: str  # a regular expression, after the name of the file
    unless: tuple[str, ...] = ()  # entrances at which it is sound
    in_file: str = ""  # the same for entrances without a spec

    def __str__(self) -> str:
        return self.name

    def at(self, entrance: Entrance) -> str:
        """The regular expression at an entrance."""
        return self.in_file if self.in_file and not entrance.spec else self.says


def rows(name: str, change: Callable[[bytes], bytes], says: str, *unless: str, in_file: str = "") -> Fault:
    """A changed CSV file."""
    return Fault(name, "f.csv", lambda columns: change(text(columns)), says, unless, in_file)


def fixed(name: str, file: str, content: Content, says: str, *unless: str) -> Fault:
    """The same file at all entrances."""
    return Fault(name, file, lambda _: content, says, unless)


def packed(name: str, suffix: str, change: Callable[[bytes], bytes], says: str) -> Fault:
    """A compressed CSV file."""
    return Fault(name, f"f.csv.{suffix}", lambda columns: change(text(columns)), says)


def zstd(content: bytes) -> bytes:
    """Compress by zstd."""
    return pa.Codec("zstd").compress(content, asbytes=True)


def other(name: str, suffix: str, change: Callable[[Columns], bytes], says: str, *unless: str) -> Fault:
    """A file of another format."""
    return Fault(name, f"f.{suffix}", change, says, unless)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
NO_LFS = r": is a pointer of Git LFS .*; fetch the file: git lfs pull"
COMMAS = r".*the first row has only the field .*; separate fields by commas"
END = r"( \(--seeds-\w+\))?$"  # of the sentence
AS_UTF8 = r"; save (it|the file) as UTF-8" + END
# Remedies that only a spec has.
OF_SPEC = re.compile(
    r"\b(delimiter|encoding|header|format|kind|missing|id_type|time_unit|where|unit|timezone)\b( =|,|$)"
    r"|by where|another kind|separator"
)
NO_PARQUET = r": is not a Parquet file, or is damaged; write it again"
NO_ARROW = r": is not an Arrow file, or is damaged; write it again"
FAULTS = (
    fixed("empty", "f.csv", b"", r": is empty; the first row must name the columns"),
    fixed("blank", "f.csv", b"\n\n", r": is empty; the first row must name the columns"),
    rows("first line blank", lambda b: b"\n" + b, r": line 1 is empty; the first row must name the columns"),
    rows(
        "other delimiter",
        lambda b: b.replace(b",", b";"),
        COMMAS + ", or give delimiter = .;.",
        "guess",
        in_file=COMMAS + END,
    ),
    rows(
        "tabs",
        lambda b: b.replace(b",", b"\t"),
        COMMAS + r", or give delimiter = .\\t.",
        "guess",
        in_file=COMMAS + END,
    ),
    rows(
        "column twice",
        lambda b: b"id,id,user,user\n1,1,1,1\n",
        r", line 1: the column 'id' occurs twice; rename one",
    ),
    rows("other columns", lambda b: b"a,b\n1,2\n", r"; (there are a, b|did you mean)", "guess"),
    rows("columns in upper case", lambda b: b.upper(), r"; did you mean (ID|USER)", "guess"),
    rows(
        "short row",
        lambda b: b + b"x\n",
        r", line 5, column '(age|height|item)': the row has 1 fields, .*complete or remove",
    ),
    rows(
        "long row",
        lambda b: b + b"x,1,1\n",
        r", line 5, column '(age|height|item)': the row has 3 fields, .*complete or remove",
    ),
    rows("open quote", lambda b: b + b'x,"1\n', r", line 5: a quote is not closed; correct the line"),
    rows(
        "text after a quote", lambda b: b + b'x,"1"y\n', r", line 5: a quote is not closed; correct the line"
    ),
    rows("line of 3 MB", lambda b: b + b'x,"' + b"1" * 3_000_000 + b"\n", r", line 5: .*; correct"),
    rows(
        "open quote in the names",
        lambda b: b'"' + b,
        r", line 1: .*a quote is not closed.*; correct the line",
    ),
    rows("NUL", lambda b: b + b"x\0,1\n", r", row 4: .*column '(id|user)' has a NUL byte; correct the row"),
    rows(
        "UTF-16",
        lambda b: b.decode().encode("utf-16"),
        r': is UTF-16; save it as UTF-8, or give encoding = "utf-16"',
        in_file=r": is UTF-16" + AS_UTF8,
    ),
    rows(
        "UTF-32",
        lambda b: b.decode().encode("utf-32"),
        r': is UTF-32; save it as UTF-8, or give encoding = "utf-32"',
        in_file=r": is UTF-32" + AS_UTF8,
    ),
    rows(
        "Latin-1",
        lambda b: b + b"\xe9,1\n",
        r", line 5: invalid UTF-8; save .* encoding = \"latin-1\"",
        in_file=r", line 5: invalid UTF-8" + AS_UTF8,
    ),
    rows(
        "Latin-1 in the names",
        lambda b: b"\xe9," + b,
        r", line 1: invalid UTF-8; save .* encoding = \"latin-1\"",
        in_file=r", line 1: invalid UTF-8" + AS_UTF8,
    ),
    rows("gzip as CSV", gzip.compress, r": is compressed; rename it to end in .csv.gz"),
    rows("zstd as CSV", zstd, r": is compressed; rename it to end in .csv.zst"),
    rows("xz as CSV", lzma.compress, r": is compressed by xz; unpack it"),
    rows("zip as CSV", lambda b: b"PK\x03\x04" + b, r": is a zip archive or a spreadsheet; unpack it"),
    other("Parquet as CSV", "csv", lambda c: parquet(**c), r": is a Parquet file; rename it"),
    other("Arrow as CSV", "csv", lambda c: arrow(**c), r": is an Arrow file; rename it"),
    fixed(
        "web page as CSV", "f.csv", b"\n<!DOCTYPE HTML>\n<html>", r": is a web page; download the file again"
    ),
    fixed("Git LFS as CSV", "f.csv", LFS, NO_LFS),
    packed("gzip cut", "gz", lambda b: gzip.compress(b)[:-9], r": is cut off; write it again"),
    packed(
        "gzip changed",
        "gz",
        lambda b: gzip.compress(b * 9999)[:-8] + b"\1" * 8,
        r": is damaged, or has another format; write it again",
    ),
    packed(
        "gzip twice",
        "gz",
        lambda b: gzip.compress(gzip.compress(b)),
        r": is compressed twice; unpack it once",
    ),
    packed("text as gzip", "gz", bytes, r": is not compressed as its name says"),
    packed("zstd cut", "zst", lambda b: zstd(b)[:-9], r": is cut off; write it again"),
    packed("zstd twice", "zst", lambda b: zstd(zstd(b)), r": is compressed twice; unpack it once"),
    packed("text as zstd", "zst", bytes, r": is not compressed as its name says"),
    fixed("Parquet empty", "f.parquet", b"", NO_PARQUET),
    other("CSV as Parquet", "parquet", text, NO_PARQUET),
    fixed("Git LFS as Parquet", "f.parquet", LFS, NO_LFS),
    fixed("web page as Parquet", "f.parquet", b"<html>", r": is a web page; download the file again"),
    other("Parquet cut", "parquet", lambda c: parquet(**c)[:-20], NO_PARQUET),
    other(
        "Parquet page damaged",
        "parquet",
        lambda c: (b := parquet(**c))[:4] + b"\xff" * 30 + b[34:],
        r", row group 0: is damaged; write it again",
    ),
    other(
        "other columns in Parquet",
        "parquet",
        lambda _: parquet(a=["1"], b=["2"]),
        r"; (there are a, b|did you mean)",
        "guess",
    ),
    other("CSV as Arrow", "arrow", text, NO_ARROW),
    other("Arrow cut", "arrow", lambda c: arrow(**c)[:-30], NO_ARROW),
    other("JSON lines cut", "jsonl", lambda c: json_lines(c)[:-9], r", (line|row) 3: .*; correct"),
    other("text as JSON lines", "jsonl", text, r"(, line 1)?: .*; correct"),
    other(
        "JSON lines not UTF-8",
        "jsonl",
        lambda c: json_lines(c).replace(b"3", b"\xff"),
        r", line 3: .*; (correct|save)",
    ),
    fixed("JSON lines empty", "f.jsonl", b"", r".*; .*"),
    fixed("unknown format", "f.xlsx", b"x", r": unknown format; give files that end in", "guess"),
    fixed("no file", "f.csv", None, r": no such file"),
    fixed(
        "folder without tables",
        "f.csv",
        Path.mkdir,
        r" is a folder with no file of a known format; name its files",
    ),
    fixed("pipe", "f.csv", os.mkfifo, r" is not a regular file, but is read twice; save it as one"),
    fixed(
        "link to nothing", "f.csv", link("gone.csv"), r" is a link to gone.csv, which does not exist; fetch"
    ),
    fixed("link in a circle", "f.csv", link("f.csv"), r" is a link to f.csv, which does not exist; fetch"),
)


def try_file(
    home: Path, folder: Path, command: Command, entrance: Entrance, file: str, content: Content
) -> Ran:
    """Bring a file in at an entrance, in a folder that becomes the working directory."""
    for name in ("shop", "users", "run", "users.csv", "items.parquet"):
        (folder / name).symlink_to(home / name)
    written(folder, {} if content is None else {file: content})
    (folder / "spec.toml").write_text(entrance.spec.replace("FILE", file))
    return command(*(word.replace("FILE", file) for word in entrance.words))


CASES = [(fault, entrance) for fault in FAULTS for entrance in ENTRANCES if entrance.name not in fault.unless]


@pytest.mark.core(5)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("fault", "entrance"), CASES, ids=str)
def test_a_file_is_refused_with_its_place(
    trained_shop: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    khop_command: Command,
    fault: Fault,
    entrance: Entrance,
) -> None:
    monkeypatch.chdir(tmp_path)
    content = fault.content(entrance.columns)
    ran = try_file(trained_shop, tmp_path, khop_command, entrance, fault.file, content)
    assert ran.code == 2, ran
    refused(ran.stderr, "^khop: ", rf"\b{fault.file}{fault.at(entrance)}")
    assert entrance.spec or not OF_SPEC.search(ran.stderr.replace("\n", " ").strip()), ran.stderr
    assert not list(tmp_path.glob("out*"))


DATED = dataclasses.replace(ENTRANCES[-1], words=(*ENTRANCES[-1].words, "--seeds-time", "at"))
CLASSES = dataclasses.replace(
    DATED, words=tuple("multi-label" if word == "node-regression" else word for word in DATED.words)
)
AT = ["2024-01-01", "2024-01-02", "2024-01-03"]
VALUES: dict[str, tuple[Entrance, Columns, str]] = {
    "id null": (
        ENTRANCES[4],
        {"user": ["u1", "", "u3"], "item": ["1", "2", "3"]},
        "row 2: pairs: user is null; correct the row",
    ),
    "id not an integer": (
        ENTRANCES[4],
        {"user": ["u1", "u2", "u3"], "item": ["1", "02", "3"]},
        "row 2: pairs: item is '02', but ids of other tables are integers; write it as an integer",
    ),
    "id beyond int64": (
        ENTRANCES[4],
        {"user": ["u1", "u2", "u3"], "item": ["1", "9" * 20, "3"]},
        "row 2: pairs: item is '9+': no integer within int64; correct it",
    ),
    "row without an id": (
        DATED,
        {**IDS, "id": ["u1", "", "u3"], "at": AT},
        "row 2: seeds.id 'id' is null; correct the row",
    ),
    "row without a time": (
        DATED,
        {"id": ["u1", "u2", "u3"], "age": ["1", "2", "3"], "at": ["2024-01-01", "", "2024-01-01"]},
        "row 2: seeds.time 'at' is null; give each row a time",
    ),
    "no time": (
        DATED,
        {"id": ["u1", "u2", "u3"], "age": ["1", "2", "3"], "at": ["2024-01-01", "soon", "2024-01-01"]},
        "row 2: seeds.time 'at' is 'soon': not an ISO 8601 time; correct the row",
    ),
    "label infinite": (
        DATED,
        {"id": ["u1", "u2", "u3"], "age": ["1", "inf", "3"], "at": AT},
        "row 2: label 'age' is infinite; correct it",
    ),
    "label of text": (
        DATED,
        {"id": ["u1", "u2", "u3"], "age": ["1", "old", "3"], "at": AT},
        "row 2: label 'age' is 'old': not a number; correct it",
    ),
    "classes in text": (
        CLASSES,
        {"id": ["u1", "u2", "u3"], "age": ["1", "2", "3"], "at": AT},
        "label 'age': is text; give a column of lists, as Parquet has",
    ),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", VALUES)
def test_a_value_without_a_spec_is_refused_with_a_remedy_in_the_file(
    trained_shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    entrance, columns, says = VALUES[name]
    ran = try_file(trained_shop, tmp_path, khop_command, entrance, "f.csv", text(columns))
    assert ran.code == 2, ran
    refused(ran.stderr, "^khop: ", says + r"( \(--[\w-]+\))?$")
    assert not OF_SPEC.search(ran.stderr), ran.stderr


UNREADABLE = (*ENTRANCES, Entrance("database", IDS, IMPORT, DATABASE))
# Root may read all files, unless the process gives up CAP_DAC_OVERRIDE (1) and CAP_DAC_READ_SEARCH (2).
AS_USER = (
    "import ctypes, os, sys; [ctypes.CDLL(None).prctl(24, capability) for capability in (1, 2)]; "
    "os.execv(sys.executable, [sys.executable, '-m', 'khop', *sys.argv[1:]])"
)


@pytest.mark.long
@pytest.mark.parametrize("entrance", UNREADABLE, ids=str)
def test_a_file_without_permission_is_refused(trained_shop: Path, tmp_path: Path, entrance: Entrance) -> None:
    def command(*words: str) -> Ran:
        (tmp_path / "f.csv").chmod(0)
        ran = subprocess.run(
            [sys.executable, "-c", AS_USER, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    ran = try_file(trained_shop, tmp_path, command, entrance, "f.csv", text(entrance.columns))
    assert ran.code == 2, ran
    refused(ran.stderr, "^khop: ", r"\bf.csv: no permission to read it; chmod u\+r .*f.csv")
