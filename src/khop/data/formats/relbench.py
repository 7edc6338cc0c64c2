"""Import of RelBench databases: `khop import relbench:NAME`."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar

from khop.data.formats.downloads import root_folder, set_folder
from khop.data.importers import ImportContext, NamedImport, Relbench
from khop.data.tables.packages import is_text, pa, pc, pq, reading
from khop.data.tables.pipeline import import_tables
from khop.graph.atomic import ProgressCallback
from khop.graph.remote import refuse_existing_in_store, with_urls

ROW = "khop_row"  # id of a table without a primary key
_MOST_CATEGORIES = 64


@dataclass(frozen=True)
class RelbenchTable:
    """One table with its keys, as its Parquet file records them."""

    name: str
    rows: Any  # an Arrow table
    key: str
    links: Mapping[str, str]  # column of a foreign key -> table
    time: str | None

    @classmethod
    def read(cls, path: Path) -> RelbenchTable:
        """Read a table. ValueError for a Parquet file without RelBench's record."""
        with reading(str(path), "download it again", "is not a Parquet file, or is damaged"):
            rows = pq.read_table(path)
        record = rows.schema.metadata or {}
        if b"fkey_col_to_pkey_table" not in record:
            raise ValueError(f"{path}: does not record its keys; give the folder db of a RelBench database")
        links, key, time = _keys(path, record)
        if key is None:
            rows = rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
        return cls(path.stem, rows.replace_schema_metadata(None), key or ROW, links, time)

    def without(self, column: str) -> RelbenchTable:
        """Return the table without a feature or a foreign key; unchanged if it has no such column."""
        if column not in self.rows.column_names or column in (self.key, self.time):
            return self
        links = {name: table for name, table in self.links.items() if name != column}
        return replace(self, rows=self.rows.drop_columns([column]), links=links)


def _keys(path: Path, record: Mapping[bytes, bytes]) -> tuple[dict[str, str], str | None, str | None]:
    """Return foreign keys with their tables, the primary key and the column of times, as a file has them."""
    try:
        links = json.loads(record.get(b"fkey_col_to_pkey_table", b"{}"))
        key, time = (json.loads(record.get(name, b"null")) for name in (b"pkey_col", b"time_col"))
    except (ValueError, RecursionError):
        links = key = time = ()
    names = [*links, *links.values()] if isinstance(links, dict) else [None]
    if not all(isinstance(name, str) for name in (*names, key or "", time or "")):
        raise ValueError(f"{path}: its record of keys is damaged; download it again")
    return links, key, time


def relbench_spec(tables: list[RelbenchTable], val: date, test: date) -> dict[str, Any]:
    """Return the spec. Validation begins at `val`, test at `test`; times without a zone are UTC.

    Numbers, booleans, times and text become features; text with at most 64 values is a category.
    """
    nodes: dict[str, Any] = {}
    edges: dict[str, Any] = {}
    for table in tables:
        nodes[table.name] = {
            "rows": table.rows, "id": table.key, "columns": _columns(table), **_time(table),
        }  # fmt: skip
        for column, target in table.links.items():
            edges[f"{table.name} {column} {target}"] = {
                "rows": table.rows, "source": table.key, "destination": column, "nulls": "drop",
                "orphans": "drop", "reverse": f"rev-{column}", **_time(table),
            }  # fmt: skip
    cut_offs = {"val": _midnight(val), "test": _midnight(test)}
    return {"splits": {"time": cut_offs}, "nodes": nodes, "edges": edges}


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _time(table: RelbenchTable) -> dict[str, str]:
    if table.time is None:
        return {}
    kind = table.rows.schema.field(table.time).type
    return {"time": table.time} if getattr(kind, "tz", None) else {"time": table.time, "timezone": "UTC"}


def _columns(table: RelbenchTable) -> dict[str, Any]:
    """Return the features: all columns except keys and the time."""
    taken = {table.key, table.time, *table.links}
    found = {}
    for entry in table.rows.schema:
        kind = None if entry.name in taken else _kind(entry.type, table.rows.column(entry.name))
        if kind is not None:
            found[entry.name] = kind
    return found


def _kind(dtype: Any, column: Any) -> dict[str, Any] | None:
    """Return the kind of a column; None for columns that are not features, such as lists."""
    if pa.types.is_boolean(dtype):
        return {"kind": "bool"}
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        return {"kind": "number"}
    if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype):
        return {"kind": "date"} if getattr(dtype, "tz", None) else {"kind": "date", "timezone": "UTC"}
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        few = pc.count_distinct(column).as_py() <= _MOST_CATEGORIES
        return {"kind": "category" if few else "text"}
    return None


@dataclass(frozen=True)
class RelbenchLabels:
    """A task over the rows of one table: labels with dates, in files for training, validation and test."""

    name: str
    files: Mapping[str, Path]  # by split, of splits with labels
    entity: str  # the column of ids
    node_type: str
    time: str
    label: str
    kind: str  # of the task of a run
    metric: str  # RelBench's metric of comparison

    edges: ClassVar[Mapping[str, Any]] = {}  # to add to the spec

    def settings(self, out: Path) -> list[str]:
        """Copy the files to a folder, and return the settings of a run that trains on them."""
        for split, path in self.files.items():
            shutil.copyfile(path, out / f"{split}.parquet")
        tables = {split: str(out / f"{split}.parquet") for split in self.files}
        task = {"kind": self.kind, "target": self.node_type, "label": self.label, "metric": self.metric}
        return [
            f"task = {_inline(task)}",
            f"seeds = {_inline({**tables, 'id': self.entity, 'time': self.time})}",
            'sampler = { fanouts = [64, 32], time = "time" }',
        ]

    def __str__(self) -> str:
        return f"labels of {self.name}, {self.label} of {self.node_type}"


@dataclass(frozen=True)
class RelbenchLinks:
    """A recommendation task: the destinations of each source at some dates, which become edges with times."""

    name: str
    rows: Any  # an Arrow table: source, list of destinations and date, of all splits
    ends: Mapping[str, str]  # column -> table: sources, then lists of destinations
    time: str
    count: int  # K of map@K

    @property
    def edge_type(self) -> str:
        """Name of the edge type of the links."""
        source, destination = self.ends.values()
        return f"{source} {self.name} {destination}"

    @property
    def edges(self) -> Mapping[str, Any]:
        """The links as an entry of the spec."""
        source, listed = self.ends
        lists = self.rows.column(listed).combine_chunks()
        rows = self.rows.select([source, self.time]).take(pc.list_parent_indices(lists))
        entry = RelbenchTable(self.name, rows, source, {}, self.time)
        return {
            self.edge_type: {
                "rows": rows.append_column(listed, lists.flatten()), "source": source,
                "destination": listed, "nulls": "drop", "orphans": "drop", **_time(entry),
            }
        }  # fmt: skip

    def settings(self, out: Path) -> list[str]:
        """Return the settings of a run that trains on the links. They carry no messages."""
        task = {"kind": "link-prediction", "target": self.edge_type, "metric": f"map@{self.count}"}
        hops = ", ".join(f'{{ {json.dumps(self.edge_type)} = 0, "*" = {fanout} }}' for fanout in (64, 32))
        return [
            f"task = {_inline(task)}",
            'links = { split = "time" }',
            f'sampler = {{ fanouts = [{hops}], time = "time" }}',
        ]

    def __str__(self) -> str:
        return f"links of {self.name}, the edges {self.edge_type}"


def relbench_task(folder: Path, name: str, database: str) -> RelbenchLabels | RelbenchLinks:
    """Read a task from the metadata of its files. ValueError for other files."""
    path = folder / "train.parquet"
    with reading(str(path), "download it again", "is not a Parquet file, or is damaged"):
        rows = pq.read_table(path)
    record = rows.schema.metadata or {}
    ends, _, time = _keys(path, record)
    labels = [column for column in rows.column_names if column != time and column not in ends]
    lists = [column for column in ends if pa.types.is_list(rows.schema.field(column).type)]
    ends = {column: ends[column] for column in sorted(ends, key=lists.__contains__)}
    is_of_links = len(ends) == 2 and len(lists) == 1 and not labels
    if time is None or not (is_of_links or (len(ends) == 1 and len(labels) == 1)):
        raise ValueError(
            f"{path}: its columns are {', '.join(rows.column_names)}; a task has dates, one column of ids, "
            "and one label or one column with lists of ids"
        )
    splits = {split: folder / f"{split}.parquet" for split in ("train", "val", "test")}
    last = lists[0] if is_of_links else labels[0]  # test files may lack it
    files = {
        split: path for split, path in splits.items() if path.is_file() and last in pq.read_schema(path).names
    }
    if is_of_links:
        every = pa.concat_tables(pq.read_table(path).select([*ends, time]) for path in files.values())
        return RelbenchLinks(name, every.replace_schema_metadata(None), ends, time, _COUNTS.get(database, 10))
    ((entity, node_type),) = ends.items()
    labeled = rows.column(labels[0])
    is_binary = pc.count_distinct(labeled).as_py() <= _CLASSES
    is_class = is_binary or is_text(labeled.type)
    kind = "node-classification" if is_class else "node-regression"
    metric = "roc-auc" if is_binary else "accuracy" if is_class else "mae"
    return RelbenchLabels(name, files, entity, node_type, time, labels[0], kind, metric)


def write_run(task: RelbenchLabels | RelbenchLinks, out: Path, graph: Path) -> None:
    """Write a new folder with a run file that trains on a task, and with its tables of labels."""
    out.mkdir(exist_ok=True)
    lines = (
        f"graph = {json.dumps(str(graph))}",
        *task.settings(out),
        "model = { hidden = 128, embedding = 0 }",  # tables without columns have only edges
    )
    (out / "run.toml").write_text(with_urls("\n".join(lines)) + "\n", encoding="utf-8")


def _inline(values: Mapping[str, str]) -> str:
    """Return strings as an inline table of TOML, whose strings are like JSON's."""
    entries = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{{ {entries} }}"


_COUNTS = {"rel-hm": 12, "rel-avito": 12, "rel-stack": 100}  # K of a database's recommendations, else 10
_CLASSES = 2  # distinct numbers of a classification; more are regressed
_ADDRESS = "https://relbench.stanford.edu/download"
_CUT_OFFS: Mapping[str, tuple[date, date]] = {  # RelBench's first days of validation and test
    "rel-f1": (date(2005, 1, 1), date(2010, 1, 1)),
    "rel-trial": (date(2020, 1, 1), date(2021, 1, 1)),
}


def relbench_importer(options: Relbench, context: ImportContext) -> NamedImport:
    """Return the import of one database; ValueError without the first days of validation and test.

    It writes the folder of the task next to the graph folder.
    """
    cut_offs, name, asked = _cut_offs(options), options.name, options.task

    def folder_of(
        archive: str, names: list[str], content: str, source: str, notice: ProgressCallback | None
    ) -> Path:
        """Return a folder of the database. Each database has a db.zip, so a mirror has a folder for each."""
        home = f"{(options.mirror or _ADDRESS).rstrip('/')}/{name}/{archive}.zip"
        root = root_folder(replace(options, mirror=None), context, home, notice)
        return set_folder(root, names, [content], source)

    def write(out: Path, notice: ProgressCallback | None) -> str:
        tables, task = out.with_name(f"{out.name}-{asked}"), None
        if asked is not None:
            refuse_existing_in_store(tables)
        folder = folder_of("db", ["db", f"{name}/db"], "*.parquet", name, notice)
        if asked is not None:
            names = [f"tasks/{asked}", f"{name}/tasks/{asked}", f"../tasks/{asked}", asked]
            source = f"the task {asked} of {name}"
            task = relbench_task(
                folder_of(f"tasks/{asked}", names, "train.parquet", source, notice), asked, name
            )
        paths = sorted(folder.glob("*.parquet"), key=lambda path: path.name.encode())
        label = (task.node_type, task.label) if isinstance(task, RelbenchLabels) else ("", "")
        read = [RelbenchTable.read(path) for path in paths]
        # The table of an autocomplete task still has the column to predict.
        kept = [one.without(label[1]) if one.name == label[0] else one for one in read]
        is_hidden = any(one is not other for one, other in zip(kept, read, strict=True))
        spec = relbench_spec(kept, *cut_offs)
        if task is not None:
            spec["edges"] |= task.edges
        done = import_tables(spec, out, memory=context.memory, threads=context.threads, notice=notice)
        if task is None:
            return done.counts()
        write_run(task, tables, out)
        context.further.append(tables)
        run = shlex.quote(str(tables / "run.toml"))
        note = f"\n{label[1]} of {label[0]} is the label, so the graph does not have it"
        return f"{done.counts()}\n{task}: train on them by khop train {run}{note if is_hidden else ''}"

    return NamedImport(name, write)


def _cut_offs(options: Relbench) -> tuple[date, date]:
    """Return the first days of validation and test."""
    known = _CUT_OFFS.get(options.name, (None, None))
    given = zip((options.val, options.test), ("val", "test"), known, strict=True)
    val, test = (day if text is None else _day(text, name) for text, name, day in given)
    if val is None or test is None:
        raise ValueError(
            f"relbench:{options.name}: give the first days of validation and test, as --val 2020-01-01 "
            f"--test 2021-01-01; khop knows them for {', '.join(_CUT_OFFS)}"
        )
    return val, test


def _day(text: str, name: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"--{name} {text}: must be a day, such as 2020-01-01") from None
