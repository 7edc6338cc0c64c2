"""Features with categories as embeddings: the numbers of one-hot, of which a row stores the category alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from data.tables.shop import items, roomy, spec
from khop import append, import_tables, open_graph
from khop.data.tables.encoders import (
    BooleanEncoder,
    CategoryEncoder,
    CategoryFitter,
    ColumnEncoder,
    FeatureRows,
    NumberEncoder,
    NumberFitter,
)
from khop.data.tables.read_spec import checked_spec
from khop.data.tables.spec import Category
from khop.graph.folder import open_folder
from khop.graph.verify import verify_folder
from khop.run.proposed_run import proposed_run
from support.later_shops import shop_spec, shop_tables

BRAND = {"kind": "category", "encoding": "embedding"}
MIXED = {"price": "number", "brand": BRAND, "title": {"kind": "text", "width": 8}}
NAMES = st.none() | st.sampled_from("abcd")


def where(row: int) -> str:
    return f"row {row + 1}"


def encoders(training: list[str | None], encoding: str) -> dict[str, ColumnEncoder]:
    brand = CategoryFitter(CategoryEncoder("brand", "none", None, encoding=encoding), 3, 1)
    brand.add(pa.array(training, pa.string()), where)
    price = NumberFitter(NumberEncoder("price", "standard", "mean", "missing"))
    price.add(pa.array([1.0, 3.0]), where)
    other = CategoryFitter(CategoryEncoder("kind", "none", None), 9, 1)
    other.add(pa.array(["a", "b"]), where)
    return {
        "price": price.encoder(), "brand": brand.encoder(), "new": BooleanEncoder("new"), "kind": other.encoder(),
    }  # fmt: skip


@given(training=st.lists(NAMES, max_size=8), rows=st.lists(st.tuples(NAMES, NAMES), max_size=8))
def test_rows_have_the_numbers_of_one_hot(
    training: list[str | None], rows: list[tuple[str | None, str | None]]
) -> None:
    columns = {
        "price": pa.array([float(n % 3) for n in range(len(rows))]),
        "brand": pa.array([row[0] for row in rows], pa.string()),
        "new": pa.array([(None, True, False)[n % 3] for n in range(len(rows))], pa.bool_()),
        "kind": pa.array([row[1] for row in rows], pa.string()),
    }
    dense, sparse = (FeatureRows.of(encoders(training, one)) for one in ("one-hot", "embedding"))
    encoded = [{name: one.encode(name, columns[name], where) for name in columns} for one in (dense, sparse)]
    expected, found = (
        one.joined([each.values for each in of.values()])
        for one, of in zip((dense, sparse), encoded, strict=True)
    )
    assert (dense.is_sparse, sparse.is_sparse) == (False, True)
    assert dense.width == sparse.width == expected.shape[1]
    assert dense.stored == ("float32", (dense.width,))
    assert sparse.stored == ("int32", (2, 2 + 1 + 2 + 1))  # a number and its flag, brand, new and null, kind
    assert (found.dtype, found.shape[1:]) == (np.int32, sparse.stored[1])
    assert np.array_equal(khop.SparseRows.of(torch.from_numpy(found), sparse.width).dense(), expected)
    for name in columns:
        assert encoded[0][name].unknown == encoded[1][name].unknown


def graphs(folder: Path, columns: dict[str, Any], **changes: Any) -> tuple[Path, Path]:  # noqa: ANN401
    """Import the shop twice, with one-hot brands and with brands as embeddings."""
    for name, brand in (("one-hot", "category"), ("embedding", BRAND)):
        import_tables(spec(**{**changes, "nodes.item.columns": {**columns, "brand": brand}}), folder / name)
    return folder / "one-hot", folder / "embedding"


def rows_of(path: Path) -> torch.Tensor:
    graph = open_graph(path)
    return khop.SparseRows.of(graph.columns["item"]["x"], graph.schema.column("item", "x").width).dense()


def test_the_graph_has_the_numbers_of_one_hot(tmp_path: Path) -> None:
    one_hot, embedding = graphs(tmp_path, MIXED)
    assert verify_folder(embedding) == []
    column = open_graph(embedding).schema.column("item", "x")
    assert (column.sparse_width, column.shape) == (1 + 4 + 8, (2, 1 + 1 + 8))
    assert torch.equal(rows_of(embedding), open_graph(one_hot).columns["item"]["x"])


@pytest.mark.core(1)
@pytest.mark.parametrize("columns", [{}, MIXED], ids=["alone", "with numbers"])
def test_models_compute_the_outputs_of_one_hot(tmp_path: Path, columns: dict[str, Any]) -> None:
    outputs = []
    for path in graphs(tmp_path, columns, splits=None):
        graph = open_graph(path)
        torch.manual_seed(3)
        model = khop.models.SAGE.for_graph(graph, 8, 2, target=["item"], outputs=3, encoder="linear")
        outputs.append(khop.node_rows(model, graph, graph.features, ["item"])["item"])
    if columns:  # a sum of several terms: its order differs
        torch.testing.assert_close(*outputs)
    else:
        assert torch.equal(*outputs)
    assert outputs[0].shape == (4, 3)


def test_only_training_rows_make_categories(tmp_path: Path) -> None:
    values = spec(**roomy(), **{"nodes.item.columns": {"brand": BRAND}})
    import_tables(values, tmp_path / "shop")
    late = items().set_column(3, "brand", pa.array(["x", "y", "x", "late"]))
    values["nodes"]["item"]["rows"] = pa.concat_tables([late, values["nodes"]["item"]["rows"].slice(4)])
    done = import_tables(values, tmp_path / "late")
    documents = [json.loads((tmp_path / name / "import.json").read_text()) for name in ("shop", "late")]
    assert documents[0]["nodes"]["item"] == documents[1]["nodes"]["item"]
    assert documents[0]["nodes"]["item"]["columns"][0]["encoding"] == "embedding"
    assert "item.brand: 1 rows with words or categories that are not in training" in done.notes
    assert rows_of(tmp_path / "late")[3].tolist() == [1, 0, 0, 0]


def test_the_record_of_one_hot_is_that_of_earlier_versions(tmp_path: Path) -> None:
    one_hot, _ = graphs(tmp_path, {})
    (column,) = json.loads((one_hot / "import.json").read_text())["nodes"]["item"]["columns"]
    assert set(column) == {"name", "column", "encoder", "key", "several", "separator", "categories"}


def test_later_rows_have_the_categories_of_the_graph(tmp_path: Path) -> None:
    """Appended, and imported with the encoders: the numbers of one-hot, an unseen brand counted."""
    table = {
        "item_id": ["n", "m", "o"], "price": [2.0, 3.0, 4.0], "title": ["red hat", "old hat", "hat"],
        "brand": ["unheard", "y", None],
    }  # fmt: skip
    later, found = {"nodes": {"item": {"rows": pa.table(table), "id": "item_id"}}}, []
    one_hot, embedding = graphs(tmp_path, MIXED)
    for path in (one_hot, embedding):
        imported = import_tables(later, tmp_path / f"{path.name}-later", encoders=path)
        appended = append(path, later)
        note = "item.brand: 1 rows with words or categories that are not in training"
        assert note in imported.notes
        assert note in appended.notes
        found.append((tmp_path / f"{path.name}-later", appended.path))
    for dense, sparse in zip(*found, strict=True):
        assert verify_folder(sparse) == []
        assert torch.equal(rows_of(sparse), open_graph(dense).columns["item"]["x"])
    assert open_folder(embedding).num_nodes("item") == 7
    other = {
        "nodes": {
            "item": {
                **later["nodes"]["item"],
                "columns": {"brand": {"kind": "category", "encoding": "one-hot"}},
            }
        }
    }
    with pytest.raises(ValueError, match="brand.encoding is 'one-hot', and the encoders of .* 'embedding'"):
        import_tables(other, tmp_path / "other", encoders=embedding)


def test_a_proposed_run_reads_sparse_features(tmp_path: Path) -> None:
    values = shop_spec(shop_tables(), {})
    values["nodes"]["item"]["columns"] = {"price": "raw", "brand": BRAND}
    import_tables(values, tmp_path / "shop")
    assert 'column = "x"' in proposed_run(tmp_path / "shop")


def test_limits_fit_the_encoding() -> None:
    assert Category(kind="category").most == 256
    assert Category(kind="category", encoding="embedding").most == 65_536
    assert Category(kind="category", encoding="embedding", limit=100_000).most == 100_000
    with pytest.raises(ValueError, match='limit 100,000: rows of one-hot .* give encoding = "embedding"'):
        checked_spec(
            spec(**{"nodes.item.columns": {"brand": {"kind": "category", "limit": 100_000}}}), "spec"
        )
