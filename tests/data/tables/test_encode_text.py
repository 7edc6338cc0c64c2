"""Words as sparse rows: the entries of a bag of words written out, and a column of the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from data.tables.shop import items, spec
from khop import append, import_tables, open_graph
from khop.data.tables.encoders import (
    BagFitter,
    CategoryEncoder,
    CategoryFitter,
    TextEncoder,
    WordsEncoder,
    _signs,
    bucket_of,
    texts_of,
)
from khop.graph.verify import verify_folder


def where(row: int) -> str:
    return f"row {row + 1}"


def encoder(*texts: str | None, bigrams: str = "none", words: int = 1000, width: int = 70) -> TextEncoder:
    fitter = BagFitter(TextEncoder("title", words, width, bigrams))
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


def fitter(
    limit: int = 10, min_count: int = 1, several: str = "none", separator: str | None = None
) -> CategoryFitter:
    return CategoryFitter(CategoryEncoder("brand", several, separator), limit, min_count)


def test_the_most_frequent_come_first_and_ties_by_appearance() -> None:
    one = fitter(limit=2)
    one.add(pa.array(["b", "a", None, "c", "a"]), where)
    assert one.encoder().categories == ("a", "b")


@given(st.lists(st.sampled_from("abcd")), st.integers(0, 10))
def test_grouping_changes_nothing(values: list[str], cut: int) -> None:
    whole, parts = fitter(), fitter()
    whole.add(pa.array(values, pa.string()), where)
    for part in (values[:cut], values[cut:]):
        parts.add(pa.array(part, pa.string()), where)
    assert whole.encoder() == parts.encoder()


def test_more_values_than_memory_may_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.data.tables.encoders._MOST_DISTINCT", 3)
    one = fitter(limit=2)
    one.add(pa.array(["a", "b", "c", "a"]), where)
    with pytest.raises(ValueError, match='brand: training rows have more than 3 different .* kind = "text"'):
        one.add(pa.array(["d"]), where)


def test_other_categories_and_nulls_have_numbers_of_their_own() -> None:
    one = fitter(min_count=2)
    one.add(pa.array(["a", "a", "b"]), where)
    encoded = one.encoder().encode(pa.array(["a", "b", "new", None]), where)
    assert encoded.values.tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert encoded.unknown == 2


def test_several_categories_per_row() -> None:
    for array, separator in ((pa.array([["a", "b"], [], None]), None), (pa.array(["a| b", "", None]), "|")):
        one = fitter(several="lists", separator=separator)
        one.add(array, where)
        encoder = one.encoder()
        assert encoder.categories == ("a", "b")
        assert encoder.encode(array, where).values.tolist() == [
            [0, 0, 1, 1],
            [0, 0, 0, 0],
            [0, 1, 0, 0],
        ]
    with pytest.raises(ValueError, match="brand: is text; give a column of lists, .*, or give the separator"):
        fitter(several="lists").add(pa.array(["a"]), where)


def test_numbers_and_dictionaries_are_text() -> None:
    assert texts_of(pa.array([3, None]), "key", str).to_pylist() == ["3", None]
    assert texts_of(pa.array(["a", "b"]).dictionary_encode(), "key", str).to_pylist() == ["a", "b"]
    with pytest.raises(
        ValueError, match=r"row 0: key is '\[1\]': neither text nor a number; convert the column"
    ):
        texts_of(pa.array([[1]]), "key", lambda row: f"row {row}")


WORD = st.sampled_from(["red", "blue", "shoe", "hat", "old", "coat", "seven"])
TEXTS = st.lists(st.none() | st.lists(WORD, max_size=6).map(" ".join), max_size=8)
BUCKETS = 1000


def fitted(
    texts: list[str | None], values: str = "rarity", most: int = 256, separator: str | None = None
) -> WordsEncoder:
    fitter = BagFitter(WordsEncoder("title", BUCKETS, separator, "none", values, most))
    fitter.add(pa.array(texts, pa.string()), where)
    return fitter.encoder()


def dense(encoder: WordsEncoder, array: pa.Array) -> np.ndarray:
    rows = torch.from_numpy(encoder.encode(array, where).values)
    return khop.SparseRows.of(rows, encoder.width).dense().numpy()


@given(training=TEXTS, texts=TEXTS)
def test_ones_are_the_known_words_of_each_text(training: list[str | None], texts: list[str | None]) -> None:
    encoder, known = fitted(training, "one"), {word for text in training for word in (text or "").split()}
    longest = max((len(set((text or "").split())) for text in training), default=1)
    array = pa.array(texts, pa.string())
    expected = np.zeros((len(texts), BUCKETS), np.float32)
    for row, text in enumerate(texts):
        for word in set((text or "").split()) & known:
            expected[row, bucket_of(word, BUCKETS)] = 1
    fits = expected.sum(1) <= max(1, longest)
    found = dense(encoder, array)
    assert np.array_equal(found[fits], expected[fits])
    assert (found <= expected).all()
    assert (found[~fits].sum(1) == longest).all()
    missing = sum(bool(set((text or "").split()) - known) for text in texts)
    assert encoder.encode(array, where).unknown == missing


@given(texts=TEXTS)
def test_rows_by_rarity_are_those_of_kind_text_before_its_projection(texts: list[str | None]) -> None:
    array = pa.array(texts, pa.string())
    fitter = BagFitter(TextEncoder("title", BUCKETS, 70, "none"))
    fitter.add(array, where)
    text: TextEncoder = fitter.encoder()
    signs = np.stack([_signs(bucket, 70) for bucket in range(BUCKETS)])
    rows = dense(fitted(texts), array)
    lengths = (rows**2).sum(1)
    np.testing.assert_allclose(lengths, [bool((one or "").split()) for one in texts], rtol=1e-5)
    projected = rows @ signs
    norms = np.linalg.norm(projected, axis=1, keepdims=True)
    np.testing.assert_allclose(
        projected / np.where(norms == 0, 1, norms), text.encode(array, where).values, atol=1e-5
    )


def test_a_row_that_is_too_long_keeps_its_rarest_words() -> None:
    encoder = fitted(["red shoe", "red hat", "red hat"], "one", most=2)
    (row,) = dense(encoder, pa.array(["hat red shoe"]))
    assert set(np.flatnonzero(row)) == {bucket_of("shoe", BUCKETS), bucket_of("hat", BUCKETS)}


def test_lists_of_ids_and_text_with_a_separator_are_the_same_entries() -> None:
    encoder = fitted(["7|12", "12"], "one", separator="|")
    lists = dense(encoder, pa.array([[7, 12], [12], None, []], pa.list_(pa.int64())))
    assert np.array_equal(lists, dense(encoder, pa.array(["12 | 7", "12", None, ""])))
    assert lists.sum(1).tolist() == [2, 1, 0, 0]


def test_rows_that_would_be_larger_than_dense_ones_are_refused() -> None:
    fitter = BagFitter(WordsEncoder("nodes.item.columns.title", 6, None, "none", "one", 256))
    fitter.add(pa.array(["a b c d e f g h i j"]), where)
    with pytest.raises(ValueError, match=r'columns.title: rows have up to \d of 6 words.* or kind = "text"'):
        fitter.encoder()


def words_of(path: Path) -> torch.Tensor:
    graph = open_graph(path)
    return khop.SparseRows.of(
        graph.columns["item"]["words"], graph.schema.column("item", "words").width
    ).dense()


WORDS = {"price": "raw", "words": {"kind": "words", "column": "title", "words": 300, "values": "one"}}


def test_an_imported_column_is_sparse_and_trains_a_model(tmp_path: Path) -> None:
    import_tables(spec(**{"nodes.item.columns": WORDS, "splits": None}), tmp_path / "shop")
    verify_folder(tmp_path / "shop")
    graph = open_graph(tmp_path / "shop")
    assert graph.schema.column("item", "words").sparse_width == 300
    expected = torch.zeros(4, 300)
    for row, title in enumerate(items()["title"].to_pylist()):
        expected[row, [bucket_of(word, 300) for word in title.split()]] = 1
    assert torch.equal(words_of(tmp_path / "shop"), expected)
    model = khop.models.SAGE.for_graph(graph, 8, 1, target=["item"], column="words", outputs=3, embedding=4)
    rows = khop.node_rows(model, graph, graph.features, ["item"])["item"]
    assert rows.shape == (4, 3)


def test_appended_rows_have_the_room_of_the_graph(tmp_path: Path) -> None:
    import_tables(spec(**{"nodes.item.columns": WORDS, "splits": None}), tmp_path / "shop")
    later = pa.table({"item_id": ["e"], "price": [1.0], "title": ["old red shoe of blue unheard"]})
    done = append(tmp_path / "shop", {"nodes": {"item": {"rows": later, "id": "item_id"}}})
    rows = words_of(done.path)
    assert torch.equal(rows[:4], words_of(tmp_path / "shop")[:4])
    assert rows[4].sum() == 2  # titles of the graph have two words; the rarest are kept
    assert rows[4, bucket_of("blue", 300)] == 1


def test_edges_have_no_words() -> None:
    with pytest.raises(ValueError, match='columns.kind.kind is "words": columns of edges are dense'):
        import_tables(spec(**{"edges.user buys item.columns": {"kind": "words"}}), "unused")
