"""Columns in a quarter of their bytes, and how far off they may be."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.graph.inputs import quantize
from khop.graph.manifest import fingerprint

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 5),
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_every_number_is_within_half_a_step_of_its_columns_largest(
    rows: int, width: int, dtype: torch.dtype, size: float, seed: int
) -> None:
    x = (torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * size).to(dtype)
    quantized = khop.quantize(x)
    restored = quantized.values.double() * quantized.scales.double()
    step = x.double().abs().amax(dim=0) / 127
    assert ((restored - x.double()).abs() <= step * 0.5001).all()


def test_a_column_of_zeros_stays_zeros() -> None:
    quantized = khop.quantize(torch.zeros(3, 2))
    assert quantized.values.tolist() == [[0, 0]] * 3
    assert quantized.scales.tolist() == [1.0, 1.0]


def test_numpy_and_a_column_of_single_numbers() -> None:
    quantized = khop.quantize(torch.tensor([1.0, -127.0, 63.6]).numpy())
    assert quantized.values.tolist() == [1, -127, 64]
    assert quantized.scales.shape == ()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (torch.arange(3), "int64: integers are stored as they are"),
        (torch.tensor([1.0, torch.nan]), r"\[1\] is nan: not a finite number"),
    ],
)
def test_what_cannot_be_quantized_is_named(column: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        khop.quantize(column)


def test_scales_fit_their_values() -> None:
    with pytest.raises(ValueError, match=r"must be \(torch.int8, torch.float32, \(2,\)\)"):
        khop.Quantized(torch.zeros(3, 2, dtype=torch.int8), torch.ones(3))


def test_the_schema_knows_the_scales_to_the_bit_and_a_loader_applies_them(tmp_path: Path) -> None:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    quantized = khop.quantize(x)
    node = khop.NodeTable(columns={"x": quantized, "half": x.half()})
    ring = khop.EdgeTable(torch.arange(6), torch.arange(6).roll(1))
    graph = khop.open_graph(khop.write_graph(tmp_path / "g", {"n": node}, {("n", "to", "n"): ring}))
    spec = graph.schema.column("n", "x")
    assert torch.equal(torch.tensor(spec.scales), quantized.scales)
    assert (spec.dtype, spec.is_narrow) == ("int8", True)
    sampler = khop.NeighborSampler(graph, [1])
    wide, stored = (
        khop.Loader(sampler, torch.arange(6), 6, columns=["x", "half"], narrow=narrow).batch(0, 0)
        for narrow in ("float32", "stored")
    )
    assert torch.equal(wide["x"], (quantized.values * quantized.scales)[wide.input_nodes])
    assert torch.equal(wide["half"], x.half().float()[wide.input_nodes])
    assert (stored["x"].dtype, stored["half"].dtype) == (torch.int8, torch.float16)


def test_scales_that_do_not_fit_are_damage(tmp_path: Path) -> None:
    node = khop.NodeTable(columns={"x": khop.quantize(torch.ones(2, 3))})
    none = torch.empty(0, dtype=torch.int64)
    folder = khop.write_graph(tmp_path / "g", {"n": node}, {("n", "to", "n"): khop.EdgeTable(none, none)})
    document = json.loads((folder / "graph.json").read_text())
    del document["fingerprint"]
    document["nodes"][0]["scales"]["x"] = [1.0]
    document["fingerprint"] = fingerprint(document)
    (folder / "graph.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"nodes/n/x.npy: 1 scales do not fit a row of it"):
        khop.open_graph(folder)


@pytest.mark.parametrize("value", [1e39, -3.5e38, 1e308])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_numbers_above_the_range_of_float32_are_refused(value: float, shape: tuple[int, ...]) -> None:
    column = np.zeros((5, *shape))
    column[3] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"in row 3 is outside of float32's range, up to 3\.4e38"):
            quantize(column)
    largest = float(np.finfo(np.float32).max)
    column[3] = largest
    found = quantize(column)
    assert (found.values.float() * found.scales).isfinite().all()


def test_numbers_too_small_for_a_scale_are_0() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = quantize(np.array([[1e-45], [-3e-46], [0.0]]))
    assert (found.values.float() * found.scales == 0).all()
