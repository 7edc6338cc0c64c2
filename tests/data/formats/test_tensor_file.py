"""Files of torch.save: numbers are read, code is not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from khop.data.formats.tensor_file import Record, tensor_file, way_out
from support.commands import PROGRAM


class Attack:
    """Runs a command when it is unpickled by a reader that executes code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("is_new", [True, False], ids=["zip", "before torch 1.6"])
def test_arrays_and_tensors(is_new: bool, tmp_path: Path) -> None:
    values = {
        "edge": np.arange(6).reshape(3, 2),
        "weight": np.float32([0.5, 1.5]),
        "flags": np.array([True, False]),
        "scalar": np.int64(3),
        "tensor": torch.arange(3),
        "types": ["a", "b"],
    }
    torch.save(values, tmp_path / "a.pt", _use_new_zipfile_serialization=is_new)
    found = tensor_file(tmp_path / "a.pt")
    assert list(found) == list(values)
    assert all(np.array_equal(np.asarray(found[name]), np.asarray(values[name])) for name in values)


def test_names_of_numpy_before_version_2(tmp_path: Path) -> None:
    torch.save(
        {"a": np.arange(3)}, tmp_path / "a.pt", pickle_protocol=2, _use_new_zipfile_serialization=False
    )
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "old.pt").write_bytes(data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert tensor_file(tmp_path / "old.pt")["a"].tolist() == [0, 1, 2]


def test_code_is_refused_with_the_way_out(tmp_path: Path) -> None:
    torch.save({"a": Attack(tmp_path / "made")}, tmp_path / "bad.pt")
    with pytest.raises(ValueError, match="may execute code; if you trust it, convert it once: python -c"):
        tensor_file(tmp_path / "bad.pt")
    assert not (tmp_path / "made").exists()


def test_a_class_that_is_only_named_is_a_record(tmp_path: Path) -> None:
    torch.save(({"x": torch.ones(2)}, None, Record), tmp_path / "a.pt")
    name = f"{Record.__module__}.{Record.__qualname__}"
    data, _, kind = tensor_file(tmp_path / "a.pt", (name,))
    assert kind is Record
    assert data["x"].tolist() == [1, 1]


def test_the_line_to_convert_a_file_converts_it(tmp_path: Path) -> None:
    torch.save({"a": np.arange(3)}, tmp_path / "a.pt", pickle_protocol=4)
    with pytest.raises(ValueError, match="has content that torch cannot read without executing code"):
        tensor_file(tmp_path / "a.pt")
    program = way_out(tmp_path / "a.pt").split('"')[1]
    subprocess.run([*PROGRAM, program], check=True, timeout=100)
    assert tensor_file(tmp_path / "a.pt")["a"].tolist() == [0, 1, 2]


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1000)}, tmp_path / "a.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:1000])
    with pytest.raises(ValueError, match="cut.pt: is damaged, or not a file of torch.save"):
        tensor_file(tmp_path / "cut.pt")
    with pytest.raises(ValueError, match="nothing.pt: no such file"):
        tensor_file(tmp_path / "nothing.pt")
