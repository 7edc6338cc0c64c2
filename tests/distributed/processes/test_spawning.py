"""What a rank's error becomes in the process that started it."""

from __future__ import annotations

import json
import socket

import pytest

from khop.cli.start import exit_code
from khop.distributed.processes.spawning import Failure
from khop.errors import PeerLost, Unsupported


class OfUser(ValueError):
    """An error of a component, whose constructor takes no text."""

    def __init__(self, number: int, limit: int) -> None:
        super().__init__(f"{number} is above {limit}")


def raised(error: Exception) -> Exception:
    """The error in the process that started the rank."""
    return Failure(**json.loads(json.dumps(vars(Failure.of(1, error))))).error()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("batch_size 0: must be positive"), ValueError),
        (OfUser(5, 3), ValueError),
        (Unsupported("links cannot be recorded"), Unsupported),
        (PeerLost("rank 2 is gone"), PeerLost),
        (MemoryError("80 GB"), MemoryError),
        (OSError(28, "No space left on device", "runs/a"), OSError),
        (PermissionError(13, "Permission denied", b"runs/a"), PermissionError),
        (FileNotFoundError(2, "No such file or directory", "x", None, "y"), FileNotFoundError),
        (FileExistsError(17, "File exists", "runs/a"), FileExistsError),
        (IsADirectoryError(21, "Is a directory", "runs/a"), IsADirectoryError),
        (OSError(9, "Bad file descriptor", 7), OSError),
        (TimeoutError("no answer within 5 s"), TimeoutError),
        (OSError("the disk is gone"), OSError),
        (socket.gaierror(-2, "Name or service not known"), OSError),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else None,
)
def test_bad_input_and_a_failing_machine_keep_their_kind(error: Exception, kind: type[Exception]) -> None:
    again = raised(error)
    assert type(again) is kind
    assert str(again) == str(error).replace("b'runs/a'", "'runs/a'")
    assert exit_code(again) == exit_code(error)
    if isinstance(error, OSError) and isinstance(again, OSError):
        assert (again.errno, again.strerror) == (error.errno, error.strerror)


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), json.JSONDecodeError("no value", "", 0), UnicodeDecodeError("utf-8", b"", 0, 1, "x")],
)
def test_an_unexpected_error_has_the_traceback_of_its_rank(error: Exception) -> None:
    try:
        raise error
    except Exception as caught:
        again = raised(caught)
    assert type(again) is RuntimeError
    assert str(again).startswith(f"rank 1 failed with {type(error).__name__}: {error}\n\nTraceback")
    assert exit_code(again) == exit_code(error) == 1
