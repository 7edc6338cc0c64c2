"""Errors of khop are caught as the kinds of errors that they are."""

from __future__ import annotations

import pytest

from khop.errors import PeerLost, Terminated, Unsupported


@pytest.mark.parametrize(
    ("error", "kind"), [(PeerLost, RuntimeError), (Unsupported, ValueError), (Terminated, KeyboardInterrupt)]
)
def test_handlers_of_the_kind_catch_it(error: type[BaseException], kind: type[BaseException]) -> None:
    with pytest.raises(kind, match="text"):
        raise error("text")


def test_an_order_to_end_is_no_error_of_the_program() -> None:
    assert not issubclass(Terminated, Exception)
