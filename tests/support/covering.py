"""Cases that `make test` leaves to `make test-all`.

Of stacked parametrization it runs each value once, of a test with `@pytest.mark.core(n)` n of its cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pytest

WHOLE = "promise"  # argument of contract suites: each implementation keeps each promise


def redundant(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases that `make test` does without."""
    functions: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("long") is None:
            functions[item.nodeid.partition("[")[0]].append(item)
    for cases in functions.values():
        core = cases[0].get_closest_marker("core")
        axes = _axes(cases[0])
        if core is not None:
            step = max(1, len(cases) // core.args[0])
            kept = {*range(0, len(cases), step)[: core.args[0]]}
            yield from (case for number, case in enumerate(cases) if number not in kept)
        elif len(cases) > 2 and len(axes) > 1 and (WHOLE,) not in axes:
            kept = set(_covering(_places(cases, axes)))
            yield from (case for number, case in enumerate(cases) if number not in kept)


def _axes(case: pytest.Function) -> list[tuple[str, ...]]:
    """Return the arguments of each parametrization."""
    names = [mark.args[0] for mark in case.iter_markers("parametrize")]
    return [tuple(each.replace(",", " ").split()) if isinstance(each, str) else tuple(each) for each in names]


def _places(cases: Sequence[pytest.Function], axes: Sequence[tuple[str, ...]]) -> list[tuple[int, ...]]:
    """Return the position of each case on each axis."""
    positions: list[dict[tuple[int, ...], int]] = [{} for _ in axes]
    places = []
    for case in cases:
        # The cases of a parametrization share its values.
        values = [tuple(id(case.callspec.params[name]) for name in axis) for axis in axes]
        pairs = zip(positions, values, strict=True)
        places.append(tuple(seen.setdefault(value, len(seen)) for seen, value in pairs))
    return places


def _covering(places: Sequence[tuple[int, ...]]) -> Iterator[int]:
    """Yield positions of cases that have every index of every axis: a diagonal, then what it leaves out."""
    sizes = [1 + max(indices) for indices in zip(*places, strict=True)]
    diagonal = {tuple(step % size for size in sizes) for step in range(max(sizes))}
    missing = {(axis, index) for place in places for axis, index in enumerate(place)}
    for number in sorted(range(len(places)), key=lambda number: places[number] not in diagonal):
        if not missing.isdisjoint(enumerate(places[number])):
            missing.difference_update(enumerate(places[number]))
            yield number
