from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import khop
from khop.importing.read_meter import ROW_BYTES, ReadMeter


def test_rows_of_threads_are_reported_once_and_stay_within_the_total() -> None:
    seen: list[tuple[str, int, int]] = []
    meter = ReadMeter(lambda *report: seen.append(report))
    meter.expect(10, 40)
    meter.begin("ids of user")
    meter.read(4)
    meter.read(2)
    meter.report()
    meter.report()
    assert seen == [("ids of user", 0, 200), ("ids of user", 6 * ROW_BYTES, 200)]
    meter.read(1000)  # a table that was larger than estimated
    meter.report()
    assert seen[-1] == ("ids of user", 200, 200)
    written = meter.end(300)
    meter.read(5)
    meter.report()
    assert (written.done, written.total) == (200, 500)


def test_an_import_reports_all_rows_it_reads(tmp_path: Path) -> None:
    names = [f"u{number}" for number in range(1000)]
    pq.write_table(pa.table({"id": names}), tmp_path / "users.parquet")
    ends = np.random.default_rng(0).integers(1000, size=(2, 20_000))
    events = {"a": [names[at] for at in ends[0]], "b": ends[1], "price": ends[0] / 7}
    pq.write_table(pa.table(events), tmp_path / "events.parquet", row_group_size=3000)
    (tmp_path / "spec.toml").write_text(
        '[nodes.user]\nfiles = ["users.parquet"]\nid = "id"\n[nodes.item]\n[edges."user buys item"]\n'
        'files = ["events.parquet"]\nwhere = "price > 10"\nsource = "a"\ndestination = "b"\n'
        'columns.price = "number"\n'
    )
    seen: list[tuple[str, int, int]] = []
    khop.import_tables(tmp_path / "spec.toml", tmp_path / "out", notice=lambda *report: seen.append(report))
    reading = [report for report in seen if report[0].startswith("edges user buys item")]
    assert len(reading) > 10  # not once per table
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert seen[-1][1] > 0.9 * seen[-1][2]  # the bytes to write are an estimate
    assert all(done <= total for _, done, total in seen)
    read = (1000 + 3 * 20_000) * ROW_BYTES  # users; events for the ids of items, for prices and for the edges
    assert max(done for what, done, _ in reading) == read
