"""Choice of the optimizer of weights, and the limit of the gradient's norm."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from khop.arguments import mapping_of, real_number

_SET_ELSEWHERE = {
    "params": "khop gives the parameters",
    "lr": "set the learning rate of the run",
    "weight_decay": "set the weight decay of the run",
}

_WAYS_TO_COMPUTE = {"fused", "foreach", "capturable", "differentiable"}  # options of torch's classes


@dataclass(frozen=True)
class OptimizerSettings:
    """Optimizer of the weights: a class of `torch.optim` or one like it, and its options.

    Learning rate and weight decay are given apart; a class without weight decay takes none. Optimizers that
    evaluate the loss themselves (LBFGS) or need sparse gradients (SparseAdam) are refused. Rows of a
    `khop.models.NodeEmbedding` are always trained by `khop.RowAdam`.

    `clip_norm` scales the gradients of a step so that their joint norm, over all weights and embeddings and
    over all ranks, is at most this number; None leaves them as they are.
    """

    kind: type[torch.optim.Optimizer] = torch.optim.Adam
    options: Mapping[str, object] = field(default_factory=dict)
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        mapping_of("options", self.options, "names to values")
        if not (isinstance(self.kind, type) and issubclass(self.kind, torch.optim.Optimizer)):
            raise ValueError(f"optimizer {self.kind!r}: must be a class of torch.optim, as torch.optim.AdamW")
        closure = inspect.signature(self.kind.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"optimizer {self.kind.__name__}: evaluates the loss several times per step, as no "
                "trainer of batches does; use another one, as torch.optim.AdamW"
            )
        if issubclass(self.kind, torch.optim.SparseAdam):
            raise ValueError(
                "optimizer SparseAdam: weights have dense gradients; use another one, and embedding_update="
                '"sparse" for embeddings'
            )
        for name in self.options.keys() & _SET_ELSEWHERE.keys():
            raise ValueError(f"optimizer option {name!r}: {_SET_ELSEWHERE[name]}")
        if self.clip_norm is not None and not 0 < real_number("clip_norm", self.clip_norm) < math.inf:
            raise ValueError(f"clip_norm {self.clip_norm}: must be above 0, or None")
        if self.options or self.kind is not torch.optim.Adam:  # a trial imports torch's compiler
            self.over([torch.nn.Parameter(torch.zeros(1, 1))], 1e-3, 0.0)

    def over(
        self, parameters: Iterable[Tensor], learning_rate: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """Make the optimizer of some parameters. ValueError if the class does not take the options."""
        parameters = list(parameters)
        given: dict[str, object] = {"lr": learning_rate, **self.options, **self._fused(parameters)}
        if "weight_decay" in inspect.signature(self.kind).parameters:
            given["weight_decay"] = weight_decay
        elif weight_decay:
            raise ValueError(f"weight_decay {weight_decay}: {self.kind.__name__} has none; set it to 0")
        try:
            return self.kind(parameters, **given)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"optimizer {self.kind.__name__} with options {dict(self.options)}: {error}"
            ) from None

    def _fused(self, parameters: Sequence[Tensor]) -> dict[str, object]:
        """Return the option for one kernel per update on a GPU, for classes that have it; else {}."""
        chooses = self.options.keys() & _WAYS_TO_COMPUTE
        takes = "fused" in inspect.signature(self.kind).parameters
        on_gpu = bool(parameters) and all(each.device.type == "cuda" for each in parameters)
        return {"fused": True} if takes and on_gpu and not chooses else {}


ADAM = OptimizerSettings()


def clip_gradients(gradients: Iterable[Tensor], square: Tensor, limit: float) -> None:
    """Scale gradients in place so that a joint norm with this square, float64 (), is at most `limit`.

    The scale is computed where the gradients are: the host waits for no device.
    """
    norm = square.sqrt()
    torch._foreach_mul_(_values(gradients), torch.where(norm > limit, limit / norm, 1.0))


def square_sum(gradients: Iterable[Tensor]) -> Tensor:
    """Return the sum of squares of dense or coalesced sparse gradients, at least one, in their order.

    The sum is float64 (), on the device of the gradients.
    """
    return torch.stack([each.double().square().sum() for each in _values(gradients)]).sum()


def _values(gradients: Iterable[Tensor]) -> list[Tensor]:
    return [each.values() if each.is_sparse else each for each in gradients]
