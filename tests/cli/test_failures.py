"""Errors of the command: an exit code and one sentence with the remedy."""

from __future__ import annotations

import pytest

from khop.cli.failures import BAD_INPUT, FAILED, exit_code, sentence
from khop.errors import PeerLost, Unsupported


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ValueError("fanout -2: give -1 or more"), BAD_INPUT, "fanout -2: give -1 or more"),
        (Unsupported("no negatives here"), BAD_INPUT, "no negatives here"),
        (PeerLost("rank 1 is gone"), FAILED, "rank 1 is gone"),
        (OSError(28, "No space left on device", "runs/a"), FAILED, "runs/a: No space left on device"),
        (OSError("disk"), FAILED, "disk"),
        (RuntimeError("x: can't allocate memory: 9 bytes\nmore"), FAILED, "lower the batch size"),
        (MemoryError(), FAILED, "not enough memory: lower the batch size"),
        (RuntimeError("CUDA out of memory. Tried 2 GiB"), FAILED, "not enough memory on the GPU"),
        (KeyError("a"), FAILED, "KeyError: 'a' (unexpected; this is likely a bug in khop, its traceback: X)"),
        (AssertionError(), FAILED, "AssertionError (unexpected"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_sentence(error: Exception, code: int, text: str) -> None:
    assert exit_code(error) == code
    assert text in sentence(error, "X")
    assert "\n" not in sentence(error, "X")
