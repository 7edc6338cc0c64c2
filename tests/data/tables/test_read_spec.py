from __future__ import annotations

from pathlib import Path

import pytest

from khop.data.tables.read_spec import nearest, read_spec

SHOP = """
[splits]
time = { val = 2020-09-20T00:00:00Z, test = 2020-09-25T00:00:00Z }
[nodes.user]
files = ["users.parquet"]
id = "user_id"
[nodes.item]
files = ["items/*.csv.gz"]
id = "item_id"
columns.title = { kind = "text", words = 50000 }
columns.price = { kind = "number", missing = "mean" }
columns.brand = "category"
label = "category"
split = { ratio = [0.8, 0.1, 0.1] }
[edges."user buys item"]
files = ["events/*.parquet"]
where = "kind = 'buy'"
source = "user_id"
destination = "item_id"
time = "ts"
orphans = "drop"
"""


def read(tmp_path: Path, text: str) -> object:
    path = tmp_path / "shop.toml"
    path.write_text(text)
    return read_spec(path)


@pytest.mark.parametrize(
    ("written", "instead", "sentence"),
    [
        ('"drop"', '"dorp"', "orphans is 'dorp': must be 'refuse', 'drop' or 'add'"),
        ("missing =", "mising =", "nodes.item.columns.price.mising: no such field; did you mean missing?"),
        (
            '"mean"',
            '"maen"',
            "nodes.item.columns.price.missing is 'maen': must be 'mean', 'zero' or 'refuse'",
        ),
        ('kind = "number", ', "", 'nodes.item.columns.price: kind is missing; give kind = "number"'),
        (
            'kind = "text", words',
            'kind = "words", wordz',
            "nodes.item.columns.title.wordz: no such field; did you mean words?",
        ),
        ('label = "category"', 'label = { unit = "x" }', "nodes.item.label.column is missing; add it"),
        (
            'label = "category"',
            'label = { colum = "x" }',
            "nodes.item.label.colum: no such field; did you mean column?",
        ),
        ("source =", "sources =", 'edges."user buys item".'),
        ("[nodes.user]", "[node.user]", "node: no such field; did you mean nodes?"),
    ],
)
def test_an_error_names_file_key_and_way_out(
    tmp_path: Path, written: str, instead: str, sentence: str
) -> None:
    assert read(tmp_path, SHOP) is not None
    with pytest.raises(ValueError, match=r"shop\.toml") as caught:
        read(tmp_path, SHOP.replace(written, instead, 1))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://me:secret@host/db",
        "postgresql://:secret@h",
        "postgresql://h/d?pass%77ord=secret",
        "host=h password=secret",
    ],
)
def test_passwords_are_refused_and_never_shown(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="nodes.user.database: contains a password") as caught:
        read(tmp_path, SHOP.replace('files = ["users.parquet"]', f'database = "{url}"'))
    assert "secret" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file; khop import --guess"):
        read_spec(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes("# \xe9".encode("latin-1"))
    with pytest.raises(ValueError, match="line 1 is not UTF-8"):
        read_spec(tmp_path / "latin.toml")


def test_near_names() -> None:
    assert nearest("user", ["users", "items"]) == "did you mean users?"
    assert nearest("USER_ID", ["user_id"]) == "did you mean user_id?"
    assert nearest("x", ["users", "items"]) == "there are users, items"
    assert nearest("x", []) == "there are none"
    assert nearest("name", [" name", "age"]) == "did you mean ' name'?"
    assert "and 5 more" in nearest("x", [f"column{n}" for n in range(25)])
