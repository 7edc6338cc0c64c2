"""The page of a report: well-formed, without scripts, and with the users' words as text."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from khop.run.reporting.examined import Confusion, Examined
from khop.run.reporting.page import ReportedRun, page
from khop.run.reporting.run_summary import RunSummary
from khop.run.reporting.time_spent import time_spent
from run.reporting.test_time_spent import step

VOID = {"meta", "link", "img"}
ODD = "<b>\"&runs'</b>"


class Structure(HTMLParser):
    """The elements of a page; AssertionError where one is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.names: list[str] = []
        self.ids: list[str] = []
        self.given: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.given += [(name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def record(epoch: int, **more: object) -> dict[str, object]:
    scores = {"val_accuracy": 0.5 + 0.1 * epoch, "test_accuracy": 0.4, "test_majority_accuracy": 0.25}
    return {
        "epoch": epoch,
        "step": epoch + 1,
        "loss": 1.0 - 0.1 * epoch,
        **scores,
        "seconds": {"total": 2.0},
        **more,
    }


def run(name: str, ranks: int = 2, **more: object) -> ReportedRun:
    settings = {"graph": f"graphs/{name}", "model": {"kind": "sage", "hidden": 16}, "training": {"epochs": 3}}
    summary = RunSummary(
        Path(name), settings, tuple(record(n, **more) for n in range(3)), {"epoch": 3, "best_epoch": 2},
        {"khop": "0.1.0", "processor": ODD, "memory_bytes": 24_000_000_000}, 0.0,
    )  # fmt: skip
    zeros = [0.0] * ranks
    time = time_spent([step(n, [1.0 + n / 9] * ranks, zeros, zeros) for n in range(30)], 2)
    split = Examined(
        Confusion(("cat", ODD), ((3, 1), (0, 4))), ("id", "label"), ((ODD, "cat"), ("b", "dog")), "The worst."
    )
    return ReportedRun(name, summary, time, ("Computing takes 90 % of the time.", "Try less."), split)


@cache
def of_two_runs() -> str:
    """A page, of which drawing the pictures takes a second."""
    return page([run("a"), run(ODD)], "today")


@cache
def of_one_run() -> str:
    return page([run("b")], "today")


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    text = of_two_runs()
    found = Structure(text)
    assert not {"script", "iframe", "object"} & set(found.names)
    loads = [value for name, value in found.given if name in ("src", "href", "action")]
    assert all(value.startswith(("#", "data:")) for value in loads)
    assert not re.search(r"https?://|url\(|@import|\son\w+=", text)
    assert len(text) < 400_000


def test_the_words_of_users_are_text_and_not_markup() -> None:
    found = Structure(of_two_runs())
    assert found.text.count(ODD) >= 8
    assert "b" not in found.names


def test_links_within_the_page_lead_to_sections_and_ids_are_unique() -> None:
    found = Structure(of_two_runs())
    assert len(found.ids) == len(set(found.ids))
    assert {value[1:] for name, value in found.given if name == "href" and value.startswith("#")} == set(
        found.ids
    )


def test_pictures_have_words_and_tables_have_headings() -> None:
    text = of_two_runs()
    pictures = re.findall(r"<img [^>]*>", text)
    assert len(pictures) > 6
    assert all(re.search(r'alt="[^"]+"', each) for each in pictures)
    assert text.count("<table>") == text.count("<thead>") == text.count('class="table" role="region"')
    assert '<html lang="en">' in text


@pytest.mark.long
def test_runs_stand_side_by_side() -> None:
    text = Structure(of_two_runs()).text
    assert "0.7000" in text
    assert "0.4000 (majority 0.2500)" in text
    assert "graphs/a" in text
    assert f"graphs/{ODD}" in text
    assert "Settings that differ" not in Structure(of_one_run()).text


@pytest.mark.long
def test_traffic_is_shown_where_there_is_some() -> None:
    traffic = {"needed_rows": 100, "remote_rows": 50, "hit_rate": 0.75, "row_bytes_received": 4_000_000}
    text = Structure(page([run("a", traffic=traffic)], "today")).text
    assert "75.0%" in text
    assert "4 MB" in text
    assert "12 MB" in text
    assert "exchanged no rows" in Structure(of_one_run()).text


@pytest.mark.long
def test_the_hit_rate_on_a_device_is_shown_where_a_device_has_a_cache() -> None:
    traffic = {"needed_rows": 100, "remote_rows": 50, "hit_rate": 0.75, "device_hit_rate": 0.0}
    without = Structure(page([run("a", traffic=traffic)], "today")).text
    cached = Structure(page([run("a", traffic=traffic | {"device_hit_rate": 0.25}), run("b")], "today")).text
    assert "hit rate on the device" not in without
    assert "hit rate on the device" in cached
    assert "25.0%" in cached
