"""The ways to compute products in a run: of layers on the CPU, and of float32 matrices on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch

from khop.kernels.linear_choice import CHOICES, fixed_by, has_bfloat16_instructions
from khop.training.settings import Precision, TrainerSettings


def linear_ways(
    settings: TrainerSettings, recorded: Mapping[str, str], warned: Callable[[str], None]
) -> Mapping[str, str]:
    """Return the way to compute layers by dtype, for checkpoints. `recorded` is that of the checkpoint.

    It warns if a resumed run computes in another order, and if the processor does not multiply bfloat16.
    """
    if torch.device(settings.device).type != "cpu" or CHOICES.is_fixed:
        return recorded
    # Evaluation computes in float32.
    dtypes = ["float32", "bfloat16"] if settings.precision == "bfloat16" else [settings.precision]
    ways = {dtype: str(CHOICES.blocks(getattr(torch, dtype)) or "torch") for dtype in dtypes}
    if any(recorded.get(dtype, way) != way for dtype, way in ways.items()):
        warned(
            "this run was started on another processor or with another torch: the order of sums "
            "differs here, and losses may differ in their last digits"
        )
    if settings.precision == "bfloat16" and not has_bfloat16_instructions():
        warned(
            "precision bfloat16: this processor multiplies it in float32; precision float32 is faster here, "
            "and more exact"
        )
    return ways


def fix_linear(named: str | None) -> None:
    """Compute layers in the named way, such as torch or blas:2048; None: by the rule of the processor."""
    if not named:
        return
    try:
        CHOICES.fix(fixed_by(named))
    except ValueError as error:
        raise ValueError(f"KHOP_LINEAR {error}") from None


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Compute products in TF32 while the block runs, if the precision is "tf32", else as torch is set.

    TF32 has the range of float32 and the 10 bits of float16; sums are float32. A recording keeps the
    precision that is set while it is captured.
    """
    if precision != "tf32":
        yield
        return
    set_precision, before, tf32 = _precision_of_torch()
    set_precision(tf32)
    try:
        yield
    finally:
        set_precision(before)


def _precision_of_torch() -> tuple[Callable[[str], None], str, str]:
    """Return the function that sets torch's precision of products, its value now, and its word for TF32.

    torch has two interfaces, and the older one does not read what a script has set by the newer one.
    """
    try:
        return torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), "high"
    except RuntimeError:
        matmul = torch.backends.cuda.matmul
        return partial(setattr, matmul, "fp32_precision"), matmul.fp32_precision, "tf32"
