"""Words as sparse rows: the entries of a bag of words written out, and a column of the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.importing.shop import items, spec

import khop
from khop import append, import_tables, open_graph
from khop.graph.verify import verify_folder
from khop.importing.encode_text import TextEncoder, TextFitter, _signs, bucket_of
from khop.importing.encode_words import Bags, Values, WordsEncoder, WordsFitter

WORD = st.sampled_from(["red", "blue", "shoe", "hat", "old", "coat", "seven"])
TEXTS = st.lists(st.none() | st.lists(WORD, max_size=6).map(" ".join), max_size=8)
BUCKETS = 1000


def where(row: int) -> str:
    return f"row {row + 1}"


def fitted(
    texts: list[str | None], values: Values = "rarity", most: int = 256, separator: str | None = None
) -> WordsEncoder:
    fitter = WordsFitter(Bags("title", BUCKETS, separator, "none"), values, most)
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
    fitter = TextFitter("title", BUCKETS, 70, "none")
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
    fitter = WordsFitter(Bags("nodes.item.columns.title", 6, None, "none"), "one", 256)
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
