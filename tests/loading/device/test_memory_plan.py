"""Stores are planned within the free memory, and every plan after a failed one is smaller."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.loading.device.device_placement import CacheSize, DevicePlacement, StorePlace, byte_size
from khop.loading.device.memory_plan import (
    GIB,
    STAMP_BYTES,
    FreeMemory,
    MemoryPlan,
    StoreSizes,
    WorkSizes,
    plans,
)

DEVICE, SHARDED, PINNED, HOST, MAPPED, DISK = StorePlace
GB = 10**9
WORK = WorkSizes(batch_bytes=GB // 10, ring_slots=4, model_bytes=GB // 10)


def sizes(topology: int = GB, columns: Mapping[str, int] | None = None, nodes: int = 1000) -> StoreSizes:
    columns = {"x": 10 * GB, "y": GB // 100} if columns is None else columns
    return StoreSizes(topology, columns, dict.fromkeys(columns, nodes), nodes, MAPPED)


def free(device: float, host: float) -> FreeMemory:
    """Gigabytes beside the reserves."""
    return FreeMemory(int(device * GB) + GIB // 2, int(host * GB) + GIB)


def planned(request: DevicePlacement, room: FreeMemory, of: StoreSizes | None = None) -> MemoryPlan:
    return next(plans(request, of or sizes(), WORK, room, only_requested=False))


def test_all_goes_to_a_card_with_room() -> None:
    plan = planned(DevicePlacement.of(), free(20, 20))
    assert (plan.topology, dict(plan.columns)) == (DEVICE, {"x": DEVICE, "y": DEVICE})
    assert plan.pinned_bytes == 0


def test_a_column_too_large_for_the_card_is_pinned_and_for_the_host_mapped() -> None:
    assert planned(DevicePlacement.of(), free(5, 20)).columns == {"x": PINNED, "y": DEVICE}
    assert planned(DevicePlacement.of(), free(5, 2)).columns == {"x": MAPPED, "y": DEVICE}


def test_a_column_too_large_for_one_card_is_divided_among_those_of_the_machine() -> None:
    of_four = replace(sizes(), shards=4)
    plan = planned(DevicePlacement.of(), free(5, 20), of_four)
    assert plan.columns == {"x": SHARDED, "y": DEVICE}
    assert (
        plan.bytes_on_device == planned(DevicePlacement.of(), free(20, 20)).bytes_on_device - 3 * 10 * GB // 4
    )
    assert planned(DevicePlacement.of(), free(3, 20), of_four).columns == {"x": PINNED, "y": DEVICE}
    failing = list(plans(DevicePlacement.of(), of_four, WORK, free(20, 20), only_requested=False))
    assert [*dict.fromkeys(plan.columns["x"] for plan in failing)] == [DEVICE, SHARDED, PINNED, MAPPED]


def test_edges_too_many_for_one_card_are_divided_among_those_of_the_machine() -> None:
    topology, of_edges = 8 * GB, 6 * GB  # row pointers and ids of nodes are on every card
    stores = replace(sizes(topology=topology, columns={}), of_edges=of_edges, shards=4)
    whole = planned(DevicePlacement.of(), free(20, 20), stores)
    plan = planned(DevicePlacement.of(), free(5, 20), stores)
    assert (whole.topology, plan.topology) == (DEVICE, SHARDED)
    assert plan.bytes_on_device == whole.bytes_on_device - 3 * of_edges // 4
    assert planned(DevicePlacement.of(), free(5, 20), replace(stores, shards=1)).topology is PINNED
    assert planned(DevicePlacement.of(topology="sharded"), free(20, 20), stores).topology is SHARDED
    failing = list(plans(DevicePlacement.of(), stores, WORK, free(20, 20), only_requested=False))
    assert [plan.topology for plan in failing] == [DEVICE, SHARDED, PINNED, HOST]


def test_the_page_about_several_gpus_has_the_plans_of_its_example() -> None:
    nodes = 111_059_956
    columns = {"x": nodes * 128 * 4}
    room = FreeMemory(40 * GB, 240 * GB, 40 * GB, 256 * GB)
    work = WorkSizes(batch_bytes=GB // 2, ring_slots=4)
    page = Path(khop.__file__).parents[2] / "docs" / "several-gpus.md"
    rows = re.findall(r"^\| (\d) \| (\w+) \| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", page.read_text(), re.M)
    assert [row[0] for row in rows] == ["1", "2", "4", "8"]
    for gpus, *told in rows:
        stores = StoreSizes(14 * GB, columns, {"x": nodes}, nodes, shards=int(gpus))
        plan = next(plans(DevicePlacement.of("cuda"), stores, work, room, only_requested=False))
        sizes_gb = [f"{plan.bytes_on_device / GB:.1f}", f"{plan.pinned_bytes / GB:.1f}"]
        assert told == [str(plan.topology), str(plan.columns["x"]), *sizes_gb]


def test_a_column_that_memory_has_no_room_for_stays_on_disk() -> None:
    large = replace(sizes(), on_disk=frozenset({"x"}))
    assert planned(DevicePlacement.of(), free(5, 2), large).columns == {"x": DISK, "y": DEVICE}
    failing = list(plans(DevicePlacement.of(), large, WORK, free(5, 20), only_requested=False))
    assert [plan.columns["x"] for plan in failing][-1] is DISK


def test_stamps_of_all_nodes_are_counted_where_sampling_is_on_the_card() -> None:
    many = sizes(topology=GB, columns={}, nodes=GB)
    assert planned(DevicePlacement.of(), free(9.6, 20), many).topology is DEVICE  # 1 + 8 + 0.5 of work
    assert planned(DevicePlacement.of(), free(9.4, 20), many).topology is PINNED
    assert planned(DevicePlacement.of(), free(8.4, 20), many).topology is HOST


def test_without_kernels_only_requests_go_there() -> None:
    plan = next(
        plans(DevicePlacement.of(columns={"y": "device"}), sizes(), WORK, free(90, 90), only_requested=True)
    )
    assert (plan.topology, dict(plan.columns)) == (HOST, {"x": MAPPED, "y": DEVICE})


def test_the_reserve_is_a_share_of_a_large_card() -> None:
    memory = FreeMemory(100 * GIB, 100 * GIB, device_total=100 * GIB, host_total=100 * GIB)
    assert (memory.device_room, memory.host_room) == (95 * GIB, 90 * GIB)
    assert FreeMemory(GIB // 4, GIB // 2).device_room == 0


def test_the_line_says_what_and_why() -> None:
    room = free(5, 20)
    line = planned(DevicePlacement.of(cache={"x": "20%"}), room).line(room, "as planned")
    assert line == (
        "cuda: topology device, columns x pinned, y device, 2.00 GB of x cached: 3.51 GB of 5.54 GB free on "
        "the card, 10.00 GB of 21.07 GB free on the host pinned; as planned"
    )


@pytest.mark.parametrize(
    ("request_", "room", "words"),
    [
        (
            DevicePlacement.of(columns={"x": "device"}),
            free(5, 50),
            r"column 'x' \"device\": 10.50 GB are needed on cuda, including batches and model, and 5.00 GB "
            r"are free after the reserve; give columns=\{'x': \"pinned\"\}",
        ),
        (DevicePlacement.of(topology="device"), free(1, 50), r'topology "device".* give topology="pinned"'),
        (DevicePlacement.of(cache={"x": "8GB"}), free(5, 50), r"a cache of 'x'.* give a smaller cache"),
        (DevicePlacement.of(), free(0.1, 50), r"device 'cuda': .* use a smaller batch or model"),
        (DevicePlacement.of(columns="pinned"), free(5, 2), r'column \'x\' "pinned", .*10.01 GB.* "mapped"'),
    ],
)
def test_a_request_that_cannot_fit_is_refused(
    request_: DevicePlacement, room: FreeMemory, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        planned(request_, room)


places = st.sampled_from(["auto", "device", "pinned", "host"])


@given(
    topology=places,
    # A column of a few bytes is smaller than the slots of its cache.
    columns=st.dictionaries(
        st.sampled_from("xyz"), st.tuples(st.integers(10**6, 8 * GB), places), max_size=3
    ),
    cache=st.sampled_from([0, "10%", "1GB"]),
    nodes=st.integers(0, 10**8),
    device=st.floats(0, 30),
    host=st.floats(0, 30),
)
def test_plans_fit_and_keep_to_requests_and_shrink(
    topology: str,
    columns: Mapping[str, tuple[int, str]],
    cache: int | str,
    nodes: int,
    device: float,
    host: float,
) -> None:
    of = sizes(columns={name: size for name, (size, _) in columns.items()}, nodes=nodes)
    request = DevicePlacement.of(
        "cuda", topology, {name: place for name, (_, place) in columns.items()}, cache
    )
    room = free(device, host)
    try:
        found = list(plans(request, of, WORK, room, only_requested=False))
    except ValueError:
        return
    assert found[0].fits(room)
    for plan in found:
        assert request.topology in (None, plan.topology)
        assert all(request.place_of(name) in (None, place) for name, place in plan.columns.items())
        stamps = STAMP_BYTES * nodes if plan.topology in (DEVICE, PINNED) else 0
        assert plan.bytes_on_device >= WORK.total + stamps
    far = [sum(list(StorePlace).index(p) for p in (plan.topology, *plan.columns.values())) for plan in found]
    assert far == sorted(set(far))  # each plan leaves more to the host than the one before
    assert len({(plan.topology, *plan.columns.values()) for plan in found}) == len(found)
    last = found[-1]
    assert request.topology or last.topology is HOST
    assert all(request.place_of(name) or place is MAPPED for name, place in last.columns.items())


# Sizes are numbers of bytes, or text with a unit.


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (5, 5),
        ("5", 5),
        ("5b", 5),
        ("500MB", 500_000_000),
        ("1GB", 10**9),
        ("2GiB", 2 << 30),
        (" 1.5 kib ", 1536),
        ("1k", 1000),
        ("2T", 2 * 10**12),
    ],
)
def test_units_are_powers_of_1000_and_with_an_i_of_1024(given: int | str, size: int) -> None:
    assert byte_size(given, "size") == size


@pytest.mark.core(4)
@pytest.mark.parametrize(
    "given", ["", "GB", "-1", "1XB", "1 GB more", -1, True, 1.5, None, "1e3", "9" * 5000, "9000000000TB"]
)
def test_other_sizes_are_named(given: object) -> None:
    with pytest.raises(ValueError, match=r"^size .*: must be a whole number of bytes, 0 or more and below"):
        byte_size(given, "size")  # type: ignore[arg-type]


# A request for the memory of stores, as users write it.


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
        (
            {"topology": "gpu"},
            r"topology 'gpu': must be one of 'device', 'sharded', 'pinned', 'host'.* or \"auto\"",
        ),
        ({"topology": "mapped"}, r'topology "mapped": .*topology="host"'),
        ({"columns": {"x": 3}}, "columns of 'x' 3: must be one of"),
        ({"columns": "x"}, "columns 'x': must be one of"),
        ({"cache": "120%"}, r"cache '120%': a share of a column is at most"),
        ({"cache": {"x": "a lot"}}, "cache of 'x' 'a lot': must be a whole number of bytes"),
        ({"cache": "20% of x"}, r'cache .*: must be bytes, such as "4GB", or a share, such as "20%"'),
        ({"cache": -1}, "cache -1: must be a whole number of bytes"),
    ],
)
def test_other_requests_are_refused(given_: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DevicePlacement.of(**given_)  # type: ignore[arg-type]


def test_a_column_that_no_type_has_is_named() -> None:
    with pytest.raises(ValueError, match=r"cache: no node type has a column 'z'; there are \['x', 'y'\]"):
        DevicePlacement.of(columns={"x": "host"}, cache={"z": 1}).check_names({"x": 1, "y": 2})
