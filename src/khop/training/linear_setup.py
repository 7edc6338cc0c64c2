"""Selection of one way to compute layers on all ranks of a machine; a resumed run keeps it.

Precision of products of float32 matrices on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, get_args

import torch
from torch import Tensor, nn

from khop.distributed.processes.group import Group
from khop.kernels.linear_blocks import Blocks, Library
from khop.kernels.linear_choice import (
    CHOICES,
    SHAPES,
    LayerKind,
    LinearChoices,
    Measured,
    blocks_of,
    fixed_by,
    values_of,
)
from khop.models.layer import Layer
from khop.training.settings import Precision, TrainerSettings

# Digest of a kind of layers -> {"layers": dtype and shape, "blocks": way, "over_float32": ratio of times}.
Recorded = Mapping[str, Any]

LOSES = 1.05  # ratio to the time in float32 from which the run issues a warning
_LIBRARIES = ("torch", *get_args(Library))


def settle_linear(
    group: Group,
    model: nn.Module,
    settings: TrainerSettings,
    recorded: Recorded,
    warned: Callable[[str], None],
    choices: LinearChoices = CHOICES,
) -> Recorded:
    """Choose how layers are computed in this run; return the entries that a checkpoint must record.

    All ranks on equal machines get the same choice. It comes from the checkpoint if that has an entry for
    this machine, else from an earlier measurement here. Otherwise the first rank of the machine measures now,
    and the others wait. Collective. It warns if a resumed run is on a machine that computes in another order,
    and if bfloat16 is slower than float32.
    """
    if torch.device(settings.device).type != "cpu" or choices.is_fixed:
        return recorded
    has_layers = any(isinstance(module, Layer) for module in model.modules())
    if not has_layers and settings.precision != "bfloat16":
        return recorded
    recorded = {number: entry for number, entry in recorded.items() if _way(entry) is not None}
    # bfloat16 comes last; evaluation then computes in float32.
    dtypes = ["float32", "bfloat16"] if settings.precision == "bfloat16" else [settings.precision]
    kinds = [LayerKind.here(getattr(torch, dtype), shape) for dtype in dtypes for shape in SHAPES]
    with group.exchanging("choosing how layers are computed"):
        numbers = group.gather(torch.tensor([kind.number for kind in kinds]))
        leader = int((numbers == numbers[group.rank]).all(1).nonzero()[0])
        own = [torch.zeros(4, dtype=torch.int64) for _ in kinds]
        if leader == group.rank:
            own = [_encoded(_settled(kind, recorded, choices)) for kind in kinds]
        found = group.gather(torch.stack(own))
    measured = [_decoded(values) for values in found[leader]]
    for kind, of_kind in zip(kinds, measured, strict=True):
        choices.adopt(kind, of_kind)
    _warn_of_bfloat16(settings, measured[-1], warned)
    return _recorded(kinds, numbers, found, recorded, warned)


def fix_linear(named: str | None) -> None:
    """Compute layers in the named way, such as torch or blas:2048; None lets this machine choose."""
    if not named:
        return
    try:
        CHOICES.fix(fixed_by(named))
    except ValueError as error:
        raise ValueError(f"KHOP_LINEAR {error}") from None


def _settled(kind: LayerKind, recorded: Recorded, choices: LinearChoices) -> Measured:
    """Return the way that the run used before on such a machine, else this machine's."""
    before = _way(recorded.get(f"{kind.number:015x}"))
    if before is not None and (before.blocks is None or before.blocks.can_compute(kind.dtype)):
        return before
    return choices.settle(kind)


def _way(entry: object) -> Measured | None:
    match entry:
        case {"blocks": blocks, "over_float32": float() | int() as ratio}:
            with suppress(ValueError):
                return Measured(blocks_of(blocks), float(ratio))
    return None


def _recorded(
    kinds: list[LayerKind],
    numbers: Tensor,
    found: Tensor,
    recorded: Recorded,
    warned: Callable[[str], None],
) -> Recorded:
    """Return the record extended by the ways of all ranks' machines; warn if one is new and differs."""
    added: dict[str, Any] = {}
    for of_rank, values in zip(numbers.tolist(), found, strict=True):
        for kind, number, value in zip(kinds, of_rank, values, strict=True):
            way = _decoded(value)
            entry = {"layers": kind.layers, "blocks": values_of(way.blocks), "over_float32": way.over_float32}
            if value.any() and f"{number:015x}" not in recorded:
                added[f"{number:015x}"] = entry
    ways = [(entry.get("layers"), entry["blocks"]) for entry in recorded.values()]
    if ways and any((entry["layers"], entry["blocks"]) not in ways for entry in added.values()):
        warned(
            "this run was started on another processor or with another torch: the order of sums "
            "differs here, and losses may differ in their last digits"
        )
    return {**recorded, **added}


def _warn_of_bfloat16(settings: TrainerSettings, measured: Measured, warned: Callable[[str], None]) -> None:
    if settings.precision == "bfloat16" and measured.over_float32 > LOSES:
        warned(
            f"precision bfloat16: a layer takes {measured.over_float32:.2f} x as long as in float32 on this "
            "processor; float32 is faster here, and more exact"
        )


def _encoded(measured: Measured) -> Tensor:
    """Encode as numbers; a rank that does not measure sends zeros."""
    blocks, millionths = measured.blocks, max(1, round(1e6 * measured.over_float32))
    if blocks is None:
        return torch.tensor([0, 0, 0, millionths])
    return torch.tensor([_LIBRARIES.index(blocks.library), blocks.rows, blocks.in_float32, millionths])


def _decoded(values: Tensor) -> Measured:
    library, rows, in_float32, millionths = values.tolist()
    if not library:
        return Measured(None, millionths / 1e6)
    return Measured(Blocks(get_args(Library)[library - 1], rows, bool(in_float32)), millionths / 1e6)


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Compute products in TF32 while the block runs, if the precision is "tf32", else as torch is set.

    TF32 has the range of float32 and the 10 bits of float16; sums are float32.
    """
    before = torch.get_float32_matmul_precision()
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
