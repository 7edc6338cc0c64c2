"""Relations of a typed raw folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.formats.layouts import gz_rows, mag
from khop.data.formats.ogb import reverse_of, triplets


def test_types_are_in_alphabetical_order(tmp_path: Path) -> None:
    raw = mag(tmp_path) / "raw"
    assert triplets(raw) == [("author", "writes", "paper"), ("paper", "cites", "paper")]
    assert reverse_of(("author", "writes", "paper")) == ("paper", "rev_writes", "author")
    gz_rows(raw / "triplet-type-list.csv.gz", [["a", "b"]])
    with pytest.raises(ValueError, match="a row has 2 fields, and 3 are expected"):
        triplets(raw)
