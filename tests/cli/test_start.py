"""What happens before torch is imported.

Errors of the command: an exit code and one sentence with the remedy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

import khop
from khop.cli import start
from khop.cli.start import BAD_INPUT, FAILED, exit_code, sentence
from khop.components import ANY_NAMED, Family
from khop.errors import PeerLost, Unsupported

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(khop.__file__).parents[1])}


@pytest.mark.parametrize(("given", "policy"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_the_environment_says_otherwise(
    given: str | None, policy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    with pytest.raises(SystemExit, match="0"):
        start.run(["--version"])
    assert os.environ["OMP_WAIT_POLICY"] == policy
    assert capsys.readouterr().out.startswith("khop ")


def test_torch_is_not_imported_before_that() -> None:
    code = "import sys, khop.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=False).returncode == 0


def test_ctrl_c_while_modules_load_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "import_module", interrupted)
    with pytest.raises(SystemExit, match="130"):
        start.run(["train", "debian"])
    assert capsys.readouterr().err == "khop: stopped\n"


LESS_ON_GPU = "): keep less on the GPU (--topology pinned or host; --features pinned, host or mapped;"
FAMILY = Family("khop_test.failing", {})


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
        (RuntimeError("CUDA out of memory. Tried 2 GiB"), FAILED, LESS_ON_GPU),
        (RuntimeError("HIP out of memory. Tried 2 GiB"), FAILED, LESS_ON_GPU),
        (RuntimeError("CUDA error: out of memory\nCompile with"), FAILED, LESS_ON_GPU),
        (RuntimeError("HIP error: out of memory"), FAILED, LESS_ON_GPU),
        (RuntimeError("Triton Error [CUDA]: out of memory"), FAILED, LESS_ON_GPU),
        (RuntimeError("Triton Error [HIP]:  Code: 2, Messsage: out of memory"), FAILED, LESS_ON_GPU),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling X"), FAILED, LESS_ON_GPU),
        (RuntimeError("DuckDB: out of memory"), FAILED, "out of memory): lower the batch size"),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            FAILED,
            "UnicodeDecodeError: 'utf-8' codec can't",
        ),
        (pa.ArrowInvalid("UTF8"), FAILED, "ArrowInvalid: UTF8 (unexpected; this is likely a bug in khop"),
        (KeyError("a"), FAILED, "KeyError: 'a' (unexpected; this is likely a bug in khop, its traceback: X)"),
        (AssertionError(), FAILED, "AssertionError (unexpected"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_sentence(error: Exception, code: int, text: str) -> None:
    assert exit_code(error) == code
    assert text in sentence(error, "X")
    assert "\n" not in sentence(error, "X")


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("train", "lower the batch size, the fanouts"),
        ("import", "lower --memory or --threads, or use a machine with more memory"),
        ("append", "lower --memory or --threads, or use a machine with more memory"),
        ("verify", "use a machine with more memory"),
    ],
)
def test_the_remedy_for_memory_fits_the_command(command: str, remedy: str) -> None:
    assert sentence(MemoryError(), "X", command).startswith(f"not enough memory: {remedy}")


SOURCE = """
import khop

class Built:
    @staticmethod
    def build(options, context):
        return context()
"""


def test_an_error_of_a_component_is_not_called_a_bug_of_khop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "failing_component.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    component = FAMILY.load("failing_component:Built", ANY_NAMED)

    def said(context: object) -> str:
        with pytest.raises((TypeError, AttributeError), match="NoneType") as raised:
            component.build(None, context)
        return sentence(raised.value, "X")

    assert f"(raised in {file}, line 7, in a custom component; its traceback: X)" in said(None)
    assert "likely a bug in khop" in said(lambda: FAMILY.load(None))  # type: ignore[arg-type]
    of_rank = f'rank 1 failed with KeyError: a\n\nFile "{__file__}", line 1\nFile "{file}", line 3, in x'
    assert f"raised in {file}, line 3" in sentence(RuntimeError(of_rank), "X")


def test_a_note_is_printed_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    start.set_output_up()
    for message in ("the zone is UTC", "the unit is s", "the zone is UTC"):
        warnings.showwarning(message, UserWarning, str(Path(khop.__file__)), 1)
    assert capsys.readouterr().err == "khop: the zone is UTC\nkhop: the unit is s\n"
