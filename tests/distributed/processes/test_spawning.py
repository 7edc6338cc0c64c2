"""What a rank's error becomes in the process that started it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from khop.cli.start import exit_code, sentence
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


def test_an_error_that_keeps_its_type_has_its_rank_and_its_traceback_as_a_note() -> None:
    try:
        raise OfUser(5, 3)
    except ValueError as caught:
        again = raised(caught)
    (note,) = again.__notes__
    assert note.startswith("rank 1 failed:\n\nTraceback")
    assert note.rstrip().endswith("OfUser: 5 is above 3")
    assert sentence(again, "khop --debug train") == "5 is above 3"


def test_an_error_without_a_message_gets_one() -> None:
    assert (str(raised(MemoryError())), str(raised(ValueError()))) == (
        "rank 1 has no memory left",
        "rank 1 failed with ValueError",
    )
    found = sentence(raised(MemoryError()), "khop --debug train")
    assert found.startswith("not enough memory (rank 1 has no memory left): ")


def test_fields_of_a_system_error_that_are_not_text_are_sent_as_text() -> None:
    again = raised(OSError(5, ValueError("bad sector"), Path("runs/a"), None, ("runs", "b")))
    assert isinstance(again, OSError)
    fields = (again.errno, again.strerror, again.filename, again.filename2)
    assert fields == (5, "bad sector", "runs/a", "('runs', 'b')")


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
