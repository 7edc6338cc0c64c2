"""What ranks tell of their batches becomes lines of the logs."""

from __future__ import annotations

import torch

from khop.training.traffic import epoch_record, of_ranks, step_record, summed, values_of

COUNTS = {"collectives": 3, "seconds": 0.1234567891, "remote_rows": 10, "host_cache_rows": 4}


def test_a_step_has_a_number_per_rank_and_an_epoch_their_sums() -> None:
    told = torch.tensor([values_of(COUNTS), values_of({**COUNTS, "host_cache_rows": 1})], dtype=torch.float64)
    counted = of_ranks(COUNTS, told)
    assert counted == {
        "collectives": [3, 3],
        "host_cache_rows": [4, 1],
        "remote_rows": [10, 10],
        "seconds": [0.123457, 0.123457],
    }
    assert step_record({"waiting": [0.1, 0.2]}, counted) == {
        "seconds": {"waiting": [0.1, 0.2], "exchanging": [0.123457, 0.123457]},
        "traffic": {"collectives": [3, 3], "host_cache_rows": [4, 1], "remote_rows": [10, 10]},
    }
    epoch = summed(summed({}, counted), counted)
    assert epoch == {"collectives": 12, "host_cache_rows": 10, "remote_rows": 40}
    epoch["device_cache_rows"] = 2
    assert epoch_record(epoch) == {"traffic": {**epoch, "hit_rate": 0.3, "device_hit_rate": 0.05}}


def test_whole_numbers_are_whole() -> None:
    """A line says 3 and not 3.0."""
    counted = of_ranks({"collectives": 3}, torch.tensor([[3.0]], dtype=torch.float64))
    assert repr(counted["collectives"]) == "[3]"
    assert repr(summed({}, counted)) == "{'collectives': 3}"


def test_where_nothing_was_exchanged_nothing_is_said() -> None:
    counted = of_ranks({}, torch.empty(2, 0, dtype=torch.float64))
    assert step_record({"waiting": [0.1]}, counted) == {"seconds": {"waiting": [0.1]}}
    assert summed({}, counted) == {}
    assert epoch_record({}) == {}


def test_without_rows_of_others_there_is_no_hit_rate() -> None:
    assert epoch_record({"remote_rows": 0, "host_cache_rows": 0}) == {
        "traffic": {"remote_rows": 0, "host_cache_rows": 0}
    }


def test_a_cache_of_a_whole_graph_has_the_rate_of_all_rows() -> None:
    counts = {"needed_rows": 40, "device_cache_rows": 10}
    counted = of_ranks(counts, torch.tensor([values_of(counts)], dtype=torch.float64))
    assert step_record({"waiting": [0.1]}, counted) == {
        "seconds": {"waiting": [0.1]},
        "traffic": {"device_cache_rows": [10], "needed_rows": [40]},
    }
    assert epoch_record(summed({}, counted)) == {"traffic": {**counts, "device_hit_rate": 0.25}}
