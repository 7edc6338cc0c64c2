"""The bar of long reads: silent without a terminal, and its callback takes every report."""

from __future__ import annotations

import pytest

from khop.cli.bytes_bar import bytes_bar


def test_nothing_is_written_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with bytes_bar() as notice:
        for done in (0, 5, 10):
            notice("checking x.npy", done, 10)
    assert capsys.readouterr() == ("", "")
