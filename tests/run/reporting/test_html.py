"""Tables of a report."""

from __future__ import annotations

from khop.run.reporting.page import paragraph, scrolled, table


def test_cells_are_text_and_the_first_one_is_the_heading_of_its_row() -> None:
    found = table("t", ["", "a"], [["<x>", "1 & 2"]])
    assert '<th scope="row">&lt;x&gt;</th><td>1 &amp; 2</td>' in found
    assert 'tabindex="0"' in found


def test_wide_parts_have_a_label_and_can_be_reached_by_keys() -> None:
    assert scrolled('a "b"', "x") == (
        '<div class="wide" role="region" aria-label="a &quot;b&quot;" tabindex="0">x</div>'
    )
    assert paragraph("<p>", "faint") == '<p class="faint">&lt;p&gt;</p>'
