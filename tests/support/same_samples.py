"""Equality of samples: every tensor, dtype, count and order of types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor


def assert_same(found: object, expected: object, path: str = "sample") -> None:
    """Compare values field by field; tensors on any device by their bits."""
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor), path
        assert found.dtype == expected.dtype, path
        assert torch.equal(found.cpu(), expected.cpu()), f"{path}: {found} != {expected}"
    elif is_dataclass(expected):
        assert type(found) is type(expected), path
        for field in fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name), f"{path}.{field.name}")
    elif isinstance(expected, Mapping):
        assert isinstance(found, Mapping), path
        assert list(found) == list(expected), path
        for name, value in expected.items():
            assert_same(found[name], value, f"{path}[{name!r}]")
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        assert isinstance(found, Sequence), path
        assert len(found) == len(expected), path
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{path}[{number}]")
    else:
        assert found == expected, f"{path}: {found} != {expected}"
