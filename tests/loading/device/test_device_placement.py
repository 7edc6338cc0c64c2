"""A request for the memory of stores, as users write it."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.loading.device.device_placement import CacheSize, DevicePlacement, StorePlace


def test_by_default_every_store_is_planned() -> None:
    placement = DevicePlacement.of()
    assert placement == DevicePlacement("cuda")
    assert not placement.is_explicit
    assert placement.place_of("x") is None
    assert not placement.cache_of("x")


def test_a_named_column_goes_before_all() -> None:
    placement = DevicePlacement.of("cuda:1", "device", {"x": "pinned", "*": "host"}, {"x": "20%", "*": "1GB"})
    assert (placement.topology, placement.is_explicit) == (StorePlace.DEVICE, True)
    assert [placement.place_of(name) for name in ("x", "y")] == [StorePlace.PINNED, StorePlace.HOST]
    assert placement.cache_of("x") == CacheSize(share=Fraction(1, 5))
    assert placement.cache_of("y") == CacheSize(10**9)


def test_one_place_and_one_size_count_for_every_column() -> None:
    placement = DevicePlacement.of(columns="mapped", cache=5)
    assert placement.place_of("anything") is StorePlace.MAPPED
    assert placement.cache_of("anything") == CacheSize(5)
    assert not placement.is_explicit


def test_a_placement_pickles() -> None:
    placement = DevicePlacement.of("cuda", "pinned", {"x": "device"}, {"y": "3%"})
    assert pickle.loads(pickle.dumps(placement)) == placement


@given(st.integers(0, 10**15), st.integers(0, 100), st.integers(0, 10**15))
def test_a_cache_is_never_larger_than_its_column(column: int, percent: int, size: int) -> None:
    assert CacheSize.of(size).bytes_of(column) == min(size, column)
    assert CacheSize.of(f"{percent} %").bytes_of(column) == column * percent // 100


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"topology": "gpu"}, r"topology 'gpu': must be one of 'device', 'pinned', 'host'.* or \"auto\""),
        ({"topology": "mapped"}, r'topology "mapped": .*topology="host"'),
        ({"columns": {"x": 3}}, "columns of 'x' 3: must be one of"),
        ({"columns": "x"}, "columns 'x': must be one of"),
        ({"cache": "120%"}, r"cache '120%': a share of a column is at most"),
        ({"cache": {"x": "a lot"}}, "cache of 'x' 'a lot': must be a whole number of bytes"),
        ({"cache": "20% of x"}, r'cache .*: must be bytes, as "4GB", or a share, as "20%"'),
        ({"cache": -1}, "cache -1: must be a whole number of bytes"),
    ],
)
def test_other_requests_are_refused(given_: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DevicePlacement.of(**given_)  # type: ignore[arg-type]


def test_a_column_that_no_type_has_is_named() -> None:
    with pytest.raises(ValueError, match=r"cache: no node type has a column 'z'; there are \['x', 'y'\]"):
        DevicePlacement.of(columns={"x": "host"}, cache={"z": 1}).check_names({"x": 1, "y": 2})
