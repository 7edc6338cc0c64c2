"""Initialization of models with lazy modules, which take their sizes from the first input."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from khop.api.loader import Loader
from khop.arguments import instance_of, seed_number
from khop.inference.chunks import evaluating
from khop.training.initial import seeded
from khop.training.move import mover

_TRIED = 10  # largest number of batches run to reach every node and edge type


def initialize(model: nn.Module, loader: Loader, seed: int = 0) -> None:
    """Size a model's lazy modules by running it on batches of the loader, before DDP wraps it.

    Every rank runs it on the same whole batches. All ranks thus get the same sizes, and from `seed` the same
    weights. ValueError if a module has no size after ten batches.
    """

    instance_of("model", model, nn.Module, "must be a torch.nn.Module")
    instance_of("loader", loader, Loader, "must be a khop.Loader")
    seed_number(seed)

    def run() -> nn.Module:
        for step in range(min(len(loader), _TRIED)):
            if not _unsized(model):
                break
            model(loader.whole_batch(0, step).map(mover(model)))
        return model

    with evaluating(model):
        seeded(seed, run)
    if left := _unsized(model):
        raise ValueError(
            f"the first {_TRIED} batches do not reach {', '.join(left[:4])}: give these modules their "
            "sizes, or leave them out"
        )


def _unsized(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
