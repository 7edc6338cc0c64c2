"""Packages that are required, or needed by extras."""

from __future__ import annotations

import tomllib
from pathlib import Path

from cli.doctor.support import by_name
from khop.cli.doctor.findings import PURPOSES, FindingState, versions


def test_packages_are_missing_too_old_or_optional() -> None:
    needs = ["torch>=2.6", "rich>=13", 'ray>=2.40; extra == "ray"', 'pyarrow>=17; extra == "parquet"']
    there = {"torch": "2.5.1+cpu", "pyarrow": "21.0.0"}
    found = by_name(versions(needs, there.get))
    assert (found["torch"].state, found["torch"].found) == (FindingState.STOPS, "2.5.1+cpu, khop needs 2.6")
    assert (found["rich"].state, found["rich"].remedy) == (FindingState.STOPS, 'pip install "rich>=13"')
    assert (found["ray"].state, found["ray"].found) == (
        FindingState.NOTE,
        "not installed, for khop serve --on-ray",
    )
    assert found["pyarrow"].state is FindingState.OK
    assert by_name(versions(needs, {"pyarrow": "9.0"}.get))["pyarrow"].state is FindingState.WRONG


def test_the_state_of_a_package_is_the_strictest_of_all_that_need_it() -> None:
    needs = ['pyarrow>=17; extra == "a"', "pyarrow>=18"]
    assert by_name(versions(needs, {"pyarrow": "17.5"}.get))["pyarrow"].state is FindingState.STOPS


def test_each_optional_package_has_a_purpose() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    assert {need.partition(">=")[0] for needs in extras for need in needs} == set(PURPOSES)
