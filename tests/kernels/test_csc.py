import pytest
import torch

from khop.kernels.csc import Csc


def test_counts_rows_and_edges() -> None:
    csc = Csc(torch.tensor([0, 2, 2, 3]), torch.tensor([5, 1, 0], dtype=torch.int32))
    assert (csc.num_rows, csc.num_edges) == (3, 3)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        (torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0]), "indptr is int32"),
        (torch.tensor([], dtype=torch.int64), torch.tensor([0]), r"indptr is int64 \(0,\)"),
        (torch.tensor([[0, 1]]), torch.tensor([0]), r"indptr is int64 \(1, 2\)"),
        (torch.tensor([0, 1]), torch.tensor([0.0]), "indices is float32"),
        (torch.tensor([0, 1]), torch.tensor([[0]]), r"indices is int64 \(1, 1\)"),
        (
            torch.tensor([0, 1]),
            torch.zeros(1, dtype=torch.int64, device="meta"),
            "indptr is on cpu, indices on meta",
        ),
        (torch.tensor([0, 1]), torch.arange(4)[::2], "make it contiguous"),
        (torch.arange(4)[::2], torch.tensor([0]), "make it contiguous"),
    ],
)
def test_arrays_that_are_no_csc_are_refused(
    indptr: torch.Tensor, indices: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Csc(indptr, indices)
