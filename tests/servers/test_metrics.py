"""Metrics of a server for Prometheus."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from khop.servers.addresses import Address
from khop.servers.metrics import metrics_on, prometheus_text

STATUS = {
    "graph": 'a"b',
    "pid": 7,
    "waiting": 3,
    "requests": 12,
    "service_refused, wrong-graph": 2,
    "draining": False,
}


def test_numbers_are_gauges_or_counters_with_names_of_prometheus() -> None:
    assert prometheus_text(STATUS).splitlines() == [
        "# TYPE khop_waiting gauge",
        "khop_waiting 3",
        "# TYPE khop_requests_total counter",
        "khop_requests_total 12",
        "# TYPE khop_service_refused_wrong_graph_total counter",
        "khop_service_refused_wrong_graph_total 2",
        "# TYPE khop_draining gauge",
        "khop_draining 0",
        "# TYPE khop_graph gauge",
        'khop_graph{graph="a\\"b"} 1',
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [(999_999, "999999"), (1_234_567_891, "1234567891"), ((1 << 53) + 1, "9007199254740993"),
     (1234567.9, "1234567.9"), (0.5, "0.5"), (True, "1")],
)  # fmt: skip
def test_no_digit_of_a_counter_is_lost(value: float, written: str) -> None:
    assert prometheus_text({"bytes": value}).splitlines()[1] == f"khop_bytes_total {written}"


def test_they_are_read_over_http_at_one_path() -> None:
    with metrics_on(Address("127.0.0.1", 0), lambda: STATUS) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.read().decode() == prometheus_text(STATUS)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        refused.value.close()
        with pytest.raises(OSError, match="another --metrics"), metrics_on(Address("127.0.0.1", port), dict):
            pass
    with metrics_on(None, dict) as port:
        assert port == 0
