"""Products of sparse rows: the numbers of dense rows, the same bits on any number of threads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from khop.kernels.lazy_rows import SparseRows, packed, with_unused_entries

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")


def rows_of(count: int, width: int, seed: int = 0, share: float = 0.05) -> tuple[SparseRows, Tensor]:
    """Make sparse rows, and the same rows as a tensor."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(count, width, generator=generator)
    dense[torch.rand(count, width, generator=generator) > share] = 0
    csr = dense.to_sparse_csr()
    longest = max(1, int(csr.crow_indices().diff().max())) if count else 1
    column = packed(csr.crow_indices(), csr.col_indices(), csr.values(), longest)
    return SparseRows.of(column, width), dense


@pytest.mark.parametrize("count", [0, 1, 37])
@pytest.mark.parametrize("width", [1, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_and_its_gradients_are_those_of_dense_rows(
    count: int, width: int, dtype: torch.dtype
) -> None:
    sparse, dense = rows_of(count, width)
    found = []
    for rows in (sparse.to(dtype), dense.to(dtype)):
        weight = torch.randn(16, width, generator=torch.Generator().manual_seed(1), dtype=dtype)
        bias = torch.arange(16, dtype=dtype)
        weight.requires_grad_()
        bias.requires_grad_()
        out = F.linear(rows, weight, bias)
        (out * torch.arange(16, dtype=dtype)).sum().backward()
        assert weight.grad is not None
        assert bias.grad is not None
        found.append((out.detach(), weight.grad, bias.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_bits_do_not_depend_on_threads() -> None:
    sparse, _ = rows_of(500, 2000)
    weight = torch.randn(64, 2000, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            weight.grad = None
            out = F.linear(sparse, weight)
            out.square().sum().backward()
            found.append((out.detach(), weight.grad))
    finally:
        torch.set_num_threads(before)
    for out, gradient in found[1:]:
        assert torch.equal(out, found[0][0])
        assert gradient is not None
        assert found[0][1] is not None
        assert torch.equal(gradient, found[0][1])


def test_slices_and_dtypes_stay_sparse() -> None:
    sparse, dense = rows_of(9, 50)
    assert (sparse.shape, sparse.dtype, sparse.device.type) == ((9, 50), torch.float32, "cpu")
    for rows, expected in [(sparse[:4], dense[:4]), (sparse[:0], dense[:0]), (sparse[:99], dense)]:
        assert isinstance(rows, SparseRows)
        assert torch.equal(rows.dense(), expected)
    wide = sparse.to(torch.float64)
    assert isinstance(wide, SparseRows)
    assert torch.equal(wide.dense(), dense.double())
    assert sparse.to(torch.float32) is sparse


def test_other_operations_compute_with_dense_rows() -> None:
    sparse, dense = rows_of(9, 50)
    for result, expected in [
        (sparse + 1, dense + 1),
        (torch.cat([sparse, dense]), torch.cat([dense, dense])),
        (sparse.index_select(0, torch.tensor([3, 1])), dense[[3, 1]]),
        (sparse[2], dense[2]),
        (sparse.contiguous(), dense),
        (sparse @ torch.ones(50, 2), dense @ torch.ones(50, 2)),
    ]:
        assert type(result) is Tensor
        assert torch.equal(result, expected)


def test_rows_with_unused_entries_are_the_same() -> None:
    generator = torch.Generator().manual_seed(3)
    counts = torch.tensor([0, 4, 1, 0, 2])
    indptr = F.pad(counts.cumsum(0), (1, 0))
    places = torch.cat([torch.randperm(30, generator=generator)[:count].sort().values for count in counts])
    column = packed(indptr, places, torch.randn(7, generator=generator), 4)
    few, all_room = SparseRows.of(column, 30), with_unused_entries(column, 30)
    assert torch.equal(all_room.dense(), few.dense())
    assert all_room.places.numel() == 5 * 4
    found = []
    for rows in (few[:3], all_room[:3]):
        weight = torch.randn(6, 30, generator=torch.Generator().manual_seed(1)).requires_grad_()
        out = F.linear(rows, weight)
        out.square().sum().backward()
        found.append((out.detach(), weight.grad))
    torch.testing.assert_close(found[0], found[1])


def test_autocast_lowers_the_product() -> None:
    sparse, dense = rows_of(9, 50)
    layer = torch.nn.Linear(50, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(sparse)
        expected = layer(dense)
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, atol=0.05, rtol=0.05)


def test_rows_of_another_column_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be int32 \(rows, 2, entries\)"):
        SparseRows.of(torch.zeros(3, 4), 4)
