"""Descriptions as hashed words."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from khop.datasets.debian.words import BUCKETS, word_buckets, word_counts


def bucket(word: str) -> int:
    """As docs/debian.md says."""
    digest = blake2b(word.encode("utf-8"), digest_size=2).digest()
    return (digest[0] + 256 * digest[1]) % 512


def test_the_hash_is_the_documented_one() -> None:
    assert BUCKETS == 512
    assert word_buckets("library", "p") == [bucket("library")] == [340]


def test_words_are_runs_of_letters_and_digits_in_lower_case() -> None:
    text = "Real-time Strategy (3D) game_engine, naïve"
    words = ["real", "time", "strategy", "3d", "game", "engine", "naïve"]
    assert word_buckets(text, "p") == sorted(map(bucket, words))


def test_a_repeated_word_counts_as_often_as_it_stands() -> None:
    assert word_buckets("tool for tool makers", "p").count(bucket("tool")) == 2


def test_the_own_name_is_no_feature_but_words_that_resemble_it_are() -> None:
    assert word_buckets("g++", "g++") == word_buckets("Foo.", "foo") == []
    assert word_buckets("foo-bar: a bar", "foo-bar") == sorted([bucket("a"), bucket("bar")])
    assert word_buckets("(foo) food", "foo") == [bucket("food")]


@given(st.text(max_size=60), st.text("ab+-.", min_size=1, max_size=4))
def test_the_own_name_in_front_changes_nothing(text: str, name: str) -> None:
    assert word_buckets(f"{name} {text}", name) == word_buckets(text, name)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, BUCKETS - 1)), max_size=40))
def test_counts_are_how_often_a_row_has_a_bucket(pairs: list[tuple[int, int]]) -> None:
    rows, buckets = (np.array([pair[side] for pair in pairs], np.int32) for side in (0, 1))
    counts = word_counts(rows, buckets, 5)
    assert counts.shape == (5, BUCKETS)
    assert counts.sum() == len(pairs)
    assert all(counts[pair] == pairs.count(pair) for pair in pairs)


def test_counts_stop_at_255() -> None:
    same = np.zeros(300, np.int32)
    assert word_counts(same, same, 1)[0, 0] == 255
