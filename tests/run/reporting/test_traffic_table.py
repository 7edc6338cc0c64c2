"""Caches and network in a report."""

from __future__ import annotations

from khop.run.reporting.page import page
from run.reporting.test_page import Structure, run


def test_traffic_is_shown_where_there_is_some() -> None:
    traffic = {"needed_rows": 100, "remote_rows": 50, "hit_rate": 0.75, "row_bytes_received": 4_000_000}
    text = Structure(page([run("a", traffic=traffic), run("b")], "today")).text
    assert "75.0%" in text
    assert "4 MB" in text
    assert "12 MB" in text
    assert "exchanged no rows" in Structure(page([run("b")], "today")).text


def test_the_hit_rate_on_a_device_is_shown_where_a_device_has_a_cache() -> None:
    traffic = {"needed_rows": 100, "remote_rows": 50, "hit_rate": 0.75, "device_hit_rate": 0.0}
    without = Structure(page([run("a", traffic=traffic)], "today")).text
    cached = Structure(page([run("a", traffic=traffic | {"device_hit_rate": 0.25}), run("b")], "today")).text
    assert "hit rate on the device" not in without
    assert "hit rate on the device" in cached
    assert "25.0%" in cached
