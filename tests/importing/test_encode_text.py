from __future__ import annotations

import numpy as np
import pyarrow as pa

from khop.importing.encode_text import TextEncoder, TextFitter


def where(row: int) -> str:
    return f"row {row + 1}"


def encoder(*texts: str | None, bigrams: str = "none", words: int = 1000, width: int = 70) -> TextEncoder:
    fitter = TextFitter("title", words, width, bigrams)
    for text in texts:
        fitter.add(pa.array([text], pa.string()), where)
    return fitter.encoder()


def test_texts_of_the_same_words_are_equal_and_of_length_one() -> None:
    one = encoder("red shoe", "blue shoe", "green hat")
    values = one.encode(pa.array(["red shoe", "Shoe, RED!", "green hat", None, ""]), where).values
    assert np.array_equal(values[0], values[1])
    np.testing.assert_allclose(np.linalg.norm(values, axis=1), [1, 1, 1, 0, 0], rtol=1e-6)
    assert abs(values[0] @ values[2]) < 0.5


def test_words_that_training_lacks_add_nothing_and_are_counted() -> None:
    one = encoder("red shoe", "blue shoe")
    encoded = one.encode(pa.array(["red shoe", "red shoe unheard", "unheard"]), where)
    assert np.array_equal(encoded.values[0], encoded.values[1])
    assert not encoded.values[2].any()
    assert encoded.unknown == 2


def test_rare_words_weigh_more() -> None:
    one = encoder(*["common rare"], *["common"] * 50)
    common, rare, both = one.encode(pa.array(["common", "rare", "common rare"]), where).values
    assert both @ rare > both @ common


def test_order_counts_with_bigrams_alone() -> None:
    texts = pa.array(["red shoe", "shoe red"])
    for bigrams, is_equal in (("none", True), ("all", False)):
        values = encoder("red shoe", "shoe red", bigrams=bigrams).encode(texts, where).values
        assert np.array_equal(values[0], values[1]) == is_equal


def test_the_numbers_are_fixed() -> None:
    """A change of hash, signs or weights would change every stored graph."""
    values = encoder("red shoe", "blue shoe", width=4).encode(pa.array(["red shoe"]), where).values[0]
    again = TextEncoder.of_state(dict(encoder("red shoe", "blue shoe", width=4).state()))
    assert np.array_equal(again.encode(pa.array(["red shoe"]), where).values[0], values)
    np.testing.assert_allclose(values, EXPECTED, rtol=1e-6)


EXPECTED = [-0.5746355652809143, 0.5746355652809143, -0.5746355652809143, -0.09686054289340973]
