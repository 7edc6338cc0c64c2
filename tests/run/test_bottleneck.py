"""What holds a run up is found by rules, and the setting that is named exists and has another value now.

A processor says what it multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.process_tuning import usable_cores
from khop.run.bottleneck import Bottleneck, Kind, Machine, bottleneck, this_machine
from khop.run.check import checked
from khop.run.fields import field_at
from khop.run.profile import summarized
from khop.run.read import RawRun, with_options
from khop.run.run_type import value_at
from khop.run.values import RunConfig
from support.synthetic_profiles import records_of

MACHINE = Machine(cores_per_rank=4, has_fast_bfloat16=False)
BUSY_SAMPLER = {"waiting": 0.07, "sampling": 0.1, "gathering": 0.05}
BUSY_GATHERER = {"waiting": 0.07, "sampling": 0.05, "gathering": 0.1}


def config_of(options: Mapping[str, object]) -> RunConfig:
    given = {"graph": "g", "threads": 1, "compute_threads": 4, **options}
    return checked(with_options(RawRun({}, "a test"), given))


def found(
    *ranks: Mapping[str, float],
    machine: Machine = MACHINE,
    options: Mapping[str, object] | None = None,
    **how: Any,  # noqa: ANN401
) -> Bottleneck:
    return bottleneck(summarized(records_of(*ranks, **how)), config_of(options or {}), machine)


def test_sampling_that_training_waits_for_gets_more_threads() -> None:
    result = found(BUSY_SAMPLER)
    assert (result.kind, result.setting, result.value) == (Kind.SAMPLING, "threads", "2")
    assert result.finding == (
        "Training waits for batches 42 % of the time, and the threads that make them are busy 90 % of it: "
        "sampling is the bottleneck"
    )


def test_gathering_that_training_waits_for_gets_more_threads() -> None:
    result = found(BUSY_GATHERER)
    assert (result.kind, result.setting, result.value) == (Kind.GATHERING, "threads", "2")


def test_no_more_threads_than_cores_are_advised() -> None:
    result = found(BUSY_SAMPLER, options={"threads": 4}, workers=1)
    assert (result.kind, result.setting, result.value) == (Kind.SAMPLING, "sampler.fanouts", None)
    result = found(BUSY_GATHERER, options={"threads": 3}, cores=3.9)
    assert (result.kind, result.setting) == (Kind.GATHERING, "model.column")


def test_threads_that_idle_while_training_waits_may_work_further_ahead() -> None:
    result = found({"waiting": 0.07})
    assert (result.kind, result.setting, result.value) == (Kind.PREFETCH, "prefetch", "8")


def test_threads_that_memory_holds_back_get_more_of_it() -> None:
    result = found({"waiting": 0.07}, num_bytes=1 << 30)
    assert (result.kind, result.setting, result.value) == (Kind.PREFETCH, "prefetch_bytes", str(8 << 30))


SERVERS = {"servers.addresses": ["10.0.0.5:7311"], "prefetch": 4}


def test_servers_that_make_few_of_the_requested_batches_are_the_bottleneck() -> None:
    result = found(BUSY_SAMPLER, options=SERVERS)
    assert (result.kind, result.setting, result.value) == (Kind.SERVERS, "servers.addresses", None)
    assert result.finding == (
        "Training waits for batches 42 % of the time: the servers 10.0.0.5:7311 make 0.9 of the 4 batches "
        "that a process requests at once; the others wait for their turn or for the network"
    )


def test_servers_that_make_all_requested_batches_may_get_more_requests() -> None:
    result = found({"waiting": 0.3, "sampling": 1.0, "gathering": 0.5}, options=SERVERS)
    assert (result.kind, result.setting, result.value) == (Kind.PREFETCH, "prefetch", "8")


def counts(server: int, seconds: float, retries: int = 0) -> dict[str, float]:
    return {"server": server, "seconds": seconds, "server_retries": retries, "server_bytes": 1e6}


def test_requests_that_are_sent_again_are_named() -> None:
    result = found({"waiting": 0.07}, options=SERVERS, traffic=[counts(0, 0.1), counts(0, 0.1, 1)])
    assert (result.kind, result.setting) == (Kind.SERVERS, "servers.addresses")
    again = "requests for 10 batches were retried 5 times: servers of 10.0.0.5:7311 are down or busy"
    assert again in result.finding
    assert result.advice == "check them with `khop servers status 10.0.0.5:7311`"


def test_a_server_that_answers_later_than_the_others_is_named() -> None:
    options = {**SERVERS, "servers.addresses": ["10.0.0.5:7311-7312", "[::1]:80"]}
    given = [counts(0, 0.02), counts(1, 0.3), counts(2, 0.04)]
    result = found({"waiting": 0.07}, options=options, traffic=given)
    assert (result.kind, result.setting) == (Kind.SERVERS, "servers.addresses")
    named = "the server 10.0.0.5:7312 begins its answers after 0.30 s, where the others take 0.03 s"
    assert named in result.finding
    assert result.advice == "check this server (`khop servers status 10.0.0.5:7312`) and its connection"
    fewer = {**SERVERS, "servers.addresses": ["10.0.0.5:7311"]}  # the run was resumed with one server
    result = found({"waiting": 0.07}, options=fewer, traffic=given)
    assert "the server number 1 begins its answers" in result.finding
    even = found({"waiting": 0.07}, options=options, traffic=[counts(0, 0.1), counts(1, 0.2)])
    assert even.advice == "use more servers, or servers with more cores"


def test_a_rank_that_waits_longer_for_servers_than_others_has_a_slow_connection() -> None:
    result = found({}, {}, {"waiting": 0.1}, options=SERVERS)
    assert (result.kind, result.setting) == (Kind.SLOW_RANK, "servers.addresses")
    assert result.advice == "check its connection to the servers"


def test_waits_for_first_batches_of_short_epochs_are_reported() -> None:
    result = found({}, epoch=2, wait_at_start=0.1)
    assert (result.kind, result.setting, result.value) == (Kind.FIRST_BATCHES, "training.batch_size", "512")


@pytest.mark.parametrize(
    ("options", "setting", "value"),
    [
        ({"precision": "float64"}, "precision", "float32"),
        ({}, "model.column", None),
        ({"device": "cuda"}, "model.column", None),
    ],
)
def test_moving_that_takes_long_is_transfer(
    options: dict[str, object], setting: str, value: str | None
) -> None:
    result = found({"moving": 0.05}, options=options)
    assert (result.kind, result.setting, result.value) == (Kind.TRANSFER, setting, value)


def test_an_exchange_that_takes_long_with_all_ranks_there_is_communication() -> None:
    result = found({}, {}, exchange=0.05)
    assert (result.kind, result.setting, result.value) == (Kind.COMMUNICATION, "training.batch_size", "2048")


@pytest.mark.parametrize(
    ("slow", "doing", "setting"),
    [
        ({"forward": 0.15}, "computes longer, 98 % of its time and 48 % of theirs", "compute_threads"),
        ({"waiting": 0.1}, "waits longer for its batches", "threads"),
        ({"moving": 0.1}, "takes longer to move its batches", "device"),
    ],
)
def test_a_rank_that_the_others_wait_for_is_named_with_what_it_does(
    slow: dict[str, float], doing: str, setting: str
) -> None:
    result = found({}, {}, slow)
    assert (result.kind, result.setting) == (Kind.SLOW_RANK, setting)
    assert result.finding.startswith("Rank 2 (host here) is slower than the others, which wait for it ")
    assert doing in result.finding


def test_ranks_that_take_turns_in_being_slow_are_uneven() -> None:
    slow, quick = ({"forward": 0.15}, {}), ({}, {"forward": 0.15})
    first, second = records_of(*slow, steps=4), records_of(*quick, steps=4)
    joined = [
        type(a)(a.rank, a.host, a.workers, (*a.steps, *b.steps)) for a, b in zip(first, second, strict=True)
    ]
    summary = summarized(joined)
    result = bottleneck(summary, config_of({}), MACHINE)
    assert (result.kind, result.setting, result.value) == (Kind.UNEVEN_RANKS, "training.batch_size", "2048")
    crowding = Machine(1, has_fast_bfloat16=False)
    result = bottleneck(summary, config_of({"threads": 2, "compute_threads": 1}), crowding)
    assert (result.kind, result.setting, result.value) == (Kind.UNEVEN_RANKS, "threads", "1")


@pytest.mark.parametrize(
    ("options", "machine", "setting", "value"),
    [
        ({"precision": "float64"}, MACHINE, "precision", "float32"),
        ({"compute_threads": 1}, MACHINE, "compute_threads", "4"),
        ({}, Machine(4, has_fast_bfloat16=True), "precision", "bfloat16"),
        ({"precision": "bfloat16"}, Machine(4, has_fast_bfloat16=True), "model.hidden", None),
        ({}, MACHINE, "model.hidden", None),
        ({"compute_threads": 1, "device": "cuda"}, MACHINE, "model.hidden", None),
    ],
)
def test_else_the_model_is_the_bottleneck(
    options: dict[str, object], machine: Machine, setting: str, value: str | None
) -> None:
    result = found({}, options=options, machine=machine, cores=3.5)
    assert (result.kind, result.setting, result.value) == (Kind.COMPUTE, setting, value)
    assert "the bottleneck, not the loader" in result.finding


def test_a_model_that_leaves_cores_idle_is_better_shared_among_processes() -> None:
    result = found({}, cores=1.1, options={"compute_threads": 2}, machine=Machine(2, has_fast_bfloat16=True))
    assert (result.kind, result.setting, result.value) == (Kind.COMPUTE, "compute_threads", "1")
    assert result.finding.endswith("It keeps 1.1 of 2 cores busy")
    assert "(--procs 2)" in result.advice


def test_slow_checkpoints_are_reported() -> None:
    assert found({"saving": 0.1}).kind is Kind.SAVING


def test_a_busy_machine_is_reported_first() -> None:
    result = found(BUSY_SAMPLER, {"forward": 0.2}, cores=0.3)
    assert result.kind is Kind.CROWDED
    assert result.finding.startswith("A process had 0.3 of a core")
    assert found(BUSY_SAMPLER, cores=0.3, options={"device": "cuda"}).kind is Kind.SAMPLING


Part = st.sampled_from(["waiting", "sampling", "gathering", "moving", "forward", "saving"])
Rank = st.dictionaries(Part, st.floats(0.0, 1.0))


@given(
    st.lists(Rank, min_size=1, max_size=3),
    st.sampled_from(["float32", "float64", "bfloat16"]),
    st.integers(1, 8),
    st.floats(0.1, 4.0),
)
def test_whatever_is_found_names_a_field_of_the_run_and_another_value_than_its_own(
    ranks: list[dict[str, float]], precision: str, threads: int, cores: float
) -> None:
    options = {"precision": precision, "threads": threads}
    result = found(*ranks, options=options, cores=cores, workers=min(threads, 4))
    entry = field_at(result.setting)
    assert entry is not None
    config = config_of(options)
    assert result.value != str(value_at(config, result.setting))
    if result.value is not None:  # it is one that the field takes
        value: object = entry.kind(result.value)
        assert checked(with_options(RawRun({}, "a test"), {"graph": "g", result.setting: value}))
    assert not result.finding.endswith(".")


def test_the_cores_are_shared_by_the_ranks_of_a_machine() -> None:
    assert this_machine("cpu", 1).cores_per_rank == usable_cores()
    assert this_machine("cpu", 10_000).cores_per_rank == 1
