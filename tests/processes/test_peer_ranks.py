"""Ranks exchange bytes, count them, and name whoever sends something else."""

from __future__ import annotations

import json

import pytest

from processes.peer_ranks import ROGUE, exchanges
from support.started_ranks import StartedRanks


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, ranks: StartedRanks) -> list[dict[str, object]]:
    """What each of four ranks has to say."""
    out = tmp_path_factory.mktemp("peers")
    ranks.launch(exchanges, 4, (str(out),))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]


def test_an_exchange_with_its_answer_is_three_collectives(told: list[dict[str, object]]) -> None:
    for count in (2, 3, 4):
        for of_rank in told[:count]:
            counts = of_rank[f"counts of {count}"]
            assert isinstance(counts, dict)
            assert counts["collectives"] == 3 * 3
    assert told[0]["counts of 1"] == {}


def test_bytes_are_counted_apart_on_both_sides(told: list[dict[str, object]]) -> None:
    for count in (2, 3, 4):
        of_ranks = [of_rank[f"counts of {count}"] for of_rank in told[:count]]
        for what in ("id", "row"):
            sent = sum(counts[f"{what}_bytes_sent"] for counts in of_ranks)
            assert sent == sum(counts[f"{what}_bytes_received"] for counts in of_ranks) > 0
        answered = sum(8 * (rank + 1) * (count - 1) for rank in range(count))
        marks = 24 * count * (count - 1)
        assert sum(counts["row_bytes_sent"] for counts in of_ranks) == 3 * (answered + marks)


@pytest.mark.parametrize(
    ("sent", "problem"),
    list(
        zip(
            ROGUE,
            (
                "not a khop message",
                "a message of a different kind",
                "a message of epoch 2, step 8",
                "message 3 of epoch 2, step 7, where 0 is expected",
                "1152921504606846976 bytes, must be 0 to 4096",
                "-1 bytes, must be 0 to 4096",
                "not a khop message, or truncated",
            ),
            strict=True,
        )
    ),
)
def test_the_sender_of_a_wrong_message_is_named(
    told: list[dict[str, object]], sent: str, problem: str
) -> None:
    sentence = told[0][sent]
    assert isinstance(sentence, str)
    assert sentence.startswith("rank 1 sent another message than rank 0 expected, asking for rows in epoch")
    assert problem in sentence


def test_a_rank_that_is_gone_ends_the_wait(told: list[dict[str, object]]) -> None:
    sentence = told[0]["gone"]
    assert isinstance(sentence, str)
    assert sentence.startswith(
        "PeerLost: rank 0 waited for another rank that did not answer: asking for rows"
    )


def test_a_wait_that_is_given_up_ends(told: list[dict[str, object]]) -> None:
    assert told[0]["given up"] == "PeerLost: no rank waits any more for asking for rows in epoch 0, step 3"
