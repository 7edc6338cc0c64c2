"""Published results stand in the graph folder and in the proposed run."""

from __future__ import annotations

from khop.importing.sets.published import PUBLISHED


def test_each_result_has_its_source() -> None:
    for name, one in PUBLISHED.items():
        assert one.source.startswith("https://"), name
        assert one.record()["value"] == one.value
        assert str(one).startswith(one.metric)
