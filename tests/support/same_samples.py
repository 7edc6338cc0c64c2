"""Equality of samples and batches: every tensor, dtype, count and order of types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace

import torch
from torch import Tensor

import khop


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


def assert_same_epoch(found: Sequence[khop.Batch], expected: Sequence[khop.Batch]) -> None:
    """Compare the batches of two loaders: their order, their samples and their columns."""
    assert [batch.step for batch in found] == [batch.step for batch in expected]
    for one, other in zip(found, expected, strict=True):
        assert_same(one.sample, other.sample)
        assert_same(one.columns, other.columns, "columns")
        assert_same(one.seed_columns, other.seed_columns, "seed columns")


def assert_same_batches(found: khop.Batch, expected: khop.Batch) -> None:
    """Compare batches except their times and traffic."""
    empty: dict[str, float] = {}
    assert_same(replace(found, spans=(), traffic=empty), replace(expected, spans=(), traffic=empty), "batch")
