"""Implementations of matrix products in a run: of layers on the CPU, and of float32 on a GPU."""

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
    """Return the implementation of layers by dtype, for checkpoints. `recorded` is that of the checkpoint.

    It warns if a resumed run sums in another order, and if the processor cannot multiply bfloat16.
    """
    if torch.device(settings.device).type != "cpu" or CHOICES.is_fixed:
        return recorded
    # Evaluation computes in float32.
    dtypes = ["float32", "bfloat16"] if settings.precision == "bfloat16" else [settings.precision]
    ways = {dtype: str(CHOICES.blocks(getattr(torch, dtype)) or "torch") for dtype in dtypes}
    if any(recorded.get(dtype, way) != way for dtype, way in ways.items()):
        warned(
            "this run was started on another processor or with another torch, which sum in another "
            "order: losses may differ in their last digits"
        )
    if settings.precision == "bfloat16" and not has_bfloat16_instructions():
        warned(
            "precision bfloat16: this processor multiplies it in float32; precision float32 is faster "
            "and more accurate"
        )
    return ways


def fix_linear(named: str | None) -> None:
    """Set the implementation of layers, such as torch or blas:2048; None: the processor's default."""
    if not named:
        return
    try:
        CHOICES.fix(fixed_by(named))
    except ValueError as error:
        raise ValueError(f"KHOP_LINEAR {error}") from None


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Compute products in TF32 during the block if the precision is "tf32", else with torch's setting.

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
    """Return the setter of torch's matmul precision, the current value, and the value for TF32.

    torch has two interfaces, and the older one does not see values set by the newer one.
    """
    try:
        return torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), "high"
    except RuntimeError:
        matmul = torch.backends.cuda.matmul
        return partial(setattr, matmul, "fp32_precision"), matmul.fp32_precision, "tf32"
