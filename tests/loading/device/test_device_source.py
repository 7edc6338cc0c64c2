"""A device that samples gives the batches of the CPU. Without a GPU, kernels run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest
import torch

import support.triton_rows  # noqa: F401 # corrects Triton's interpreter
from khop.api.open_graph import Graph
from khop.graph.features.table import FeatureTable
from khop.graph.store import CscGraph
from khop.kernels.choice import Engine, forcing
from khop.loading.device.device_caching import DeviceColumns, pinned_copies, split_choice, visits_of
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.device_source import DeviceSource
from khop.loading.device.placed_stores import Conditions, placed_stores
from khop.loading.device.transfer import Transfer
from khop.loading.local_source import LocalSource
from khop.loading.ordered_map import InFlight
from khop.loading.source import BatchRequest, StepRequests
from khop.sampling.seeds import Seeds
from khop.schema import ColumnSpec
from khop.testing.batch_source import (
    GRAPH,
    ORDER,
    PROMISES,
    FailsAt,
    Make,
    an_error_ends_the_stream_at_its_batch,
    local,
    requests,
    values,
)
from support.delaying_streams import Point, PromptStreams
from support.host_as_device import HostAsDevice
from support.host_reads import counting

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="kernels cannot run on the CPU beside a GPU; tests/gpu places graphs there",
)
PLACEMENTS = [
    *[("device", "host"), ("device", "device"), ("pinned", "pinned")],
    *[("device", "pinned"), ("pinned", "device"), ("pinned", "host")],
    ("device", "pinned", "50%"),
]
OWN = (an_error_ends_the_stream_at_its_batch,)  # its sampler is not a NeighborSampler


def device_source(
    host: LocalSource,
    topology: str,
    columns: str,
    cache: str = "0",
    warm_up: range = range(4),
    graph: Graph = GRAPH,
) -> DeviceSource:
    """A source of the same batches, drawn by kernels."""
    assert isinstance(graph.topology, CscGraph)
    request = DevicePlacement.of("cuda", topology, columns, cache)
    stores = placed_stores(graph.topology, graph.columns, request, HostAsDevice(), Conditions())
    of_host, of_device = split_choice(host.columns, stores)
    visits = visits_of(host.sampler, ORDER, graph.topology) if stores.plan.caches else {}
    copies = pinned_copies(stores, graph.topology, of_device, visits)
    added = DeviceColumns(stores, graph.schema, of_device, copies)
    first = [(request.seeds(), request.key) for request in StepRequests(ORDER, 1, warm_up)]
    streams = PromptStreams()
    placed = replace(host, columns=of_host, transfer=Transfer(streams), device_columns=added)
    source = DeviceSource(placed, stores, streams, lambda: first)
    source.prepare()
    return source


def quantized() -> Graph:
    """The graph with a column of int8 and its scales."""
    assert isinstance(GRAPH.topology, CscGraph)
    specs = {**GRAPH.schema.columns["item"], "x": ColumnSpec("int8", (1,), scales=(0.125,))}
    schema = replace(GRAPH.schema, columns={**GRAPH.schema.columns, "item": specs})
    of_items = {**GRAPH.columns["item"], "x": torch.arange(30, dtype=torch.int8)[:, None]}
    return Graph(
        replace(GRAPH.topology, schema=schema),
        FeatureTable.of(schema, {**GRAPH.columns, "item": of_items}),
    )


@pytest.mark.core(1)
@pytest.mark.parametrize("placement", PLACEMENTS, ids="-".join)
def test_batches_are_those_of_the_cpu_wherever_the_stores_are(placement: tuple[str, ...]) -> None:
    some = requests()[2:5]
    expected = [values(local().draw(request)) for request in some]
    with forcing(Engine.TORCH):
        source = device_source(local(), *placement)
        assert [values(drawn) for drawn in source.stream(some, InFlight())] == expected
    assert source.overflows == 0


@pytest.mark.long
@pytest.mark.parametrize("placement", PLACEMENTS[:3], ids="-".join)
@pytest.mark.parametrize("promise", [p for p in PROMISES if p not in OWN], ids=lambda p: p.__name__)
def test_it_keeps(promise: Callable[[Make], None], placement: tuple[str, ...]) -> None:
    with forcing(Engine.TORCH):
        promise(lambda host: device_source(host, *placement))


@pytest.mark.long
def test_a_batch_waits_for_its_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of the host are read too: seeds when they are checked, their positions when they are copied to
    the device, and the copy of the counts.

    The scales of the column of int8 are on the device already.
    """
    waits: list[Point] = []
    synchronize = Point.synchronize
    monkeypatch.setattr(Point, "synchronize", lambda point: (waits.append(point), synchronize(point))[1])
    graph = quantized()
    choice = replace(local().columns, of_edges={}, as_float32={"item": frozenset({"x"})})
    nodes = replace(local(), features=graph.features, columns=choice)
    source = device_source(nodes, "device", "device", graph=graph)
    first, second = (BatchRequest.of(request.seeds(), request.key) for request in requests()[:2])
    with forcing(Engine.TRITON):
        source.make(first)
        waits.clear()
        with counting() as found:
            made = source.make(second)
    assert len(waits) == 1
    of_host = (
        "_local_scalar_dense sampling/seeds.py",
        "Tensor.__dlpack__ loading/device/device_source.py",
        "Tensor.tolist sampling/on_device/type_nodes.py",
    )
    assert {read.removeprefix("aten::").partition(":")[0] for read in found} == set(of_host)
    assert source.overflows == 0
    assert torch.equal(made.columns["item"]["x"], made.sample.nodes["item"][:, None] / 8)


@pytest.mark.long
@pytest.mark.parametrize("placement", [("device", "device"), ("device", "pinned", "50%")], ids="-".join)
def test_a_batch_that_exceeds_the_slots_is_made_by_the_same_kernels(
    placement: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = requests()[4:6]
    expected = [values(local().draw(request)) for request in some]
    with forcing(Engine.TORCH):
        fitting = device_source(local(), *placement, warm_up=range(ORDER.num_steps))
        traffic = [drawn.traffic for drawn in fitting.stream(some, InFlight())]
        source = device_source(local(), *placement, warm_up=range(ORDER.num_steps - 1, ORDER.num_steps))

        def not_called(*_: object) -> None:
            raise AssertionError("the CPU draws")

        monkeypatch.setattr(LocalSource, "draw", not_called)
        found = list(source.stream(some, InFlight()))
    assert [values(drawn) for drawn in found] == expected
    assert [drawn.traffic for drawn in found] == traffic
    assert fitting.overflows < 2 == source.overflows


@pytest.mark.long
def test_an_error_of_a_batch_ends_the_stream_there() -> None:
    def fails() -> Seeds:
        raise OSError("the disk is gone")

    asked = list(requests()[:4])
    asked[1] = replace(asked[1], seeds=fails)
    stream = device_source(local(), "device", "host").stream(asked, InFlight(2, 4))
    assert len(list(islice(stream, 1))) == 1
    with pytest.raises(OSError, match="disk is gone"):
        next(stream)
    assert list(stream) == []


def test_other_samplers_are_refused() -> None:
    host = local(FailsAt(GRAPH, 0))
    with pytest.raises(ValueError, match=r'FailsAt: a GPU samples as khop.NeighborSampler .*topology="host"'):
        device_source(host, "device", "host")
