"""Names become file names: every safe name has one place, no unsafe one has any."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.graph import layout

SAFE = st.from_regex(r"[A-Za-z0-9]([._-]?[A-Za-z0-9]){0,9}", fullmatch=True)


@given(name=SAFE)
def test_letters_digits_and_single_marks_between_them_are_safe(name: str) -> None:
    layout.check_names([name], "column")


@given(name=st.text(max_size=12))
def test_what_passes_is_one_part_of_a_path_on_any_system(name: str) -> None:
    try:
        layout.check_names([name], "column")
    except ValueError:
        return
    assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
    assert name.strip("._-") == name


UNSAFE = ["", ".", "..", "a/b", "a\\b", "a b", "-a", "a.", "a__b", "_a", "a\n", "a\0", "ä", "a" * 81]


@pytest.mark.parametrize("name", UNSAFE)
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"column {name!r}: becomes a file name")):
        layout.check_names([name], "column")


@given(types=st.lists(st.tuples(SAFE, SAFE, SAFE), unique_by=lambda parts: "\n".join(parts).lower()))
def test_edge_types_that_differ_have_folders_that_differ(types: list[tuple[str, str, str]]) -> None:
    layout.check_edge_types(types)
    files = {layout.edge_array(edge_type, "indptr").lower() for edge_type in types}
    assert len(files) == len(types)
    assert all(len(file.split("/")[1]) <= 255 for file in files)


def test_the_layout_is_the_documented_one() -> None:
    edge_type = ("user", "buys", "item")
    assert layout.node_column("item", "x") == "nodes/item/x.npy"
    assert layout.node_split("item", "train") == "nodes/item/splits/train.npy"
    assert layout.edge_array(edge_type, "indices") == "edges/user__buys__item/indices.npy"
    assert layout.edge_column(edge_type, "price") == "edges/user__buys__item/columns/price.npy"
