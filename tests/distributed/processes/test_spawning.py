"""What a rank's error becomes in the process that started it."""

from __future__ import annotations

import pytest

from khop.distributed.processes.spawning import Failure
from khop.errors import PeerLost


@pytest.mark.parametrize(
    ("kind", "error", "sentence"),
    [
        ("ValueError", ValueError, r"^batch_size 0: must be positive$"),
        ("PermissionError", OSError, r"^batch_size 0: must be positive$"),
        ("PeerLost", PeerLost, r"^batch_size 0: must be positive$"),
        ("KeyError", RuntimeError, r"^rank 1 failed with KeyError: batch_size 0: must be positive\n\nat"),
    ],
)
def test_bad_input_and_a_failing_machine_keep_their_kind(
    kind: str, error: type[Exception], sentence: str
) -> None:
    raised = Failure(1, kind, "batch_size 0: must be positive", "at line 3", 0.0).error()
    assert type(raised) is error
    with pytest.raises(error, match=sentence):
        raise raised
