"""Optimizers, learning rate schedules and gradient clipping of a run.

`ModelOptimizer` combines the optimizer of the weights with RowAdam, for sparse and sharded embeddings.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from khop.arguments import check_word, checked_field, instance_of, mapping_of, real_number, whole_number
from khop.components import Component
from khop.distributed.processes.group import Group
from khop.models.node_embedding import NodeEmbedding, gathered_from_all, sent_to_owners, summed

_SET_ELSEWHERE = {
    "params": "khop passes the parameters",
    "lr": "set the learning rate of the run",
    "weight_decay": "set the weight decay of the run",
}

_WAYS_TO_COMPUTE = {
    "fused",
    "foreach",
    "capturable",
    "differentiable",
}  # types of the options of torch's classes
# Fused updates are 4 to 8 times as fast on the CPU. SGD and Adagrad are not fused, because only their other
# implementations take sparse gradients.
_FUSED_ON_CPU = (torch.optim.Adam, torch.optim.AdamW)


@dataclass(frozen=True)
class OptimizerSettings:
    """Optimizer of the weights: a class with the interface of `torch.optim.Optimizer`, and its options.

    Rows of a `khop.models.NodeEmbedding` are always trained by `khop.RowAdam`.

    Args:
        kind: Class of the optimizer, by default `torch.optim.Adam`. Classes that evaluate the loss
            themselves (LBFGS) or need sparse gradients (SparseAdam) are not supported.
        options: Options of the class, except learning rate and weight decay, which the run sets; default
            none.
        clip_norm: Maximum gradient norm of a step, over all weights and embeddings and over all ranks.
            Default None: no clipping.
    Raises:
        ValueError: The class is not supported, or does not accept the options.
    Example:
        >>> settings = khop.OptimizerSettings(torch.optim.SGD, {"momentum": 0.9}, clip_norm=1.0)
        >>> trainer_settings = khop.TrainerSettings(epochs=3, optimizer=settings)
    """

    kind: type[torch.optim.Optimizer] = torch.optim.Adam
    options: Mapping[str, object] = field(default_factory=dict)
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        options = mapping_of("options", self.options, "names to values")
        object.__setattr__(self, "options", {name: _in_python(value) for name, value in options.items()})
        if not (isinstance(self.kind, type) and issubclass(self.kind, torch.optim.Optimizer)):
            raise ValueError(
                f"optimizer {self.kind!r}: must be a class of torch.optim, such as torch.optim.AdamW"
            )
        closure = inspect.signature(self.kind.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"optimizer {self.kind.__name__}: evaluates the loss several times per step, which is not "
                "supported; use another one, such as torch.optim.AdamW"
            )
        if issubclass(self.kind, torch.optim.SparseAdam):
            raise ValueError(
                "optimizer SparseAdam: weights have dense gradients; use another one, and embedding_update="
                '"sparse" for embeddings'
            )
        for name in self.options.keys() & _SET_ELSEWHERE.keys():
            raise ValueError(f"optimizer option {name!r}: {_SET_ELSEWHERE[name]}")
        if self.clip_norm is not None and not 0 < checked_field(self, "clip_norm", real_number) < math.inf:
            raise ValueError(f"clip_norm {self.clip_norm}: must be above 0, or None")
        if (
            self.options or self.kind is not torch.optim.Adam
        ):  # constructing an optimizer imports torch's compiler
            self.over([torch.nn.Parameter(torch.zeros(1, 1))], 1e-3, 0.0)

    def over(
        self, parameters: Iterable[Tensor], learning_rate: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """Make the optimizer of some parameters.

        Args:
            parameters: The parameters.
            learning_rate: Learning rate.
            weight_decay: Weight decay; 0 for a class without one.
        Raises:
            ValueError: The class does not accept the options.
        """
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
        """Return the option of fused updates for classes that have it on the parameters' device; else {}.

        On the CPU, fused updates ignore the strides of gradients, so that parameters must be contiguous.
        """
        chooses = self.options.keys() & _WAYS_TO_COMPUTE
        takes = "fused" in inspect.signature(self.kind).parameters
        devices = {each.device.type for each in parameters}
        on_cpu = self.kind in _FUSED_ON_CPU and all(each.is_contiguous() for each in parameters)
        is_fused = devices == {"cuda"} or (devices == {"cpu"} and on_cpu)
        return {"fused": True} if takes and is_fused and not chooses else {}


def _in_python(value: Any) -> object:  # noqa: ANN401
    """Return numbers of NumPy and torch, also in a tuple or list, as Python numbers, for checkpoints."""
    if isinstance(value, tuple | list):
        return tuple(map(_in_python, value)) if isinstance(value, tuple) else list(map(_in_python, value))
    is_number = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    # Not NumPy's float64, which is a float: runs compare options with checkpoints as text.
    return value.item() if is_number and not isinstance(value, float) else value


ADAM = OptimizerSettings()


def clip_gradients(gradients: Iterable[Tensor], square: Tensor, limit: float) -> None:
    """Scale gradients in place so that the norm whose square is float64 () `square` is at most `limit`.

    The scale is computed on the device of the gradients, without synchronization.
    """
    norm = square.sqrt()
    torch._foreach_mul_(_values(gradients), torch.where(norm > limit, limit / norm, 1.0))


def square_sum(gradients: Iterable[Tensor]) -> Tensor:
    """Return the sum of squares of one or more dense or coalesced sparse gradients, in order.

    The sum is float64 (), on the device of the gradients.
    """
    return torch.stack([each.double().square().sum() for each in _values(gradients)]).sum()


def _values(gradients: Iterable[Tensor]) -> list[Tensor]:
    return [each.values() if each.is_sparse else each for each in gradients]


class RowAdam(torch.optim.SparseAdam):
    """SparseAdam for a model's `khop.models.NodeEmbedding`, used in addition to another optimizer.

    Rows that were not read on any rank since the last step, and their moments, do not change. A step first
    exchanges gradients and is therefore collective: every rank must call it, even if its batch has not read
    any rows.

    Args:
        model: Model with a `NodeEmbedding`.
        lr: Learning rate, default 0.001.
    Raises:
        ValueError: The model has no `NodeEmbedding`.
    Example:
        >>> table = khop.models.NodeEmbedding(5, 4)
        >>> optimizer = khop.RowAdam(table, lr=0.01)
        >>> table(torch.tensor([2])).sum().backward()
        >>> optimizer.step()
    """

    def __init__(self, model: nn.Module, lr: float = 1e-3) -> None:
        instance_of("model", model, nn.Module, "must be a torch.nn.Module")
        self._tables = [module for module in model.modules() if isinstance(module, NodeEmbedding)]
        if not self._tables:
            raise ValueError(
                "the model has no khop.models.NodeEmbedding: add one, or give "
                'a khop model embedding_update="sparse"; or leave RowAdam out'
            )
        self._is_exchanged = False
        super().__init__([table.weight for table in self._tables], lr=lr)

    def exchange(self) -> None:
        """Average the gradients over the ranks: the first half of a step, for separate use. Collective."""
        for table in self._tables:
            table.weight.grad = _averaged(table)
        self._is_exchanged = True

    def gradients(self) -> list[tuple[Tensor, Literal["whole", "sharded"]]]:
        """Return the exchanged gradients: of whole tables, or of the rows stored on this rank."""
        return [
            (table.weight.grad, "sharded" if table.is_sharded else "whole")
            for table in self._tables
            if table.weight.grad is not None
        ]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401
        """Exchange gradients, unless already done, and update the rows that were read.

        Args:
            closure: Function that computes the loss again, as in torch; default None.
        """
        if not self._is_exchanged:
            self.exchange()
        self._is_exchanged = False
        return super().step(closure)  # type: ignore[no-untyped-call]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard gradients that no step has used.

        Args:
            set_to_none: Has no effect; gradients are always set to None.
        """
        for table in self._tables:
            table.take_gradients()
            table.weight.grad = None
        self._is_exchanged = False


def _averaged(table: NodeEmbedding) -> Tensor:
    """Return the gradient of this rank's rows, averaged over the ranks, in the shape of `table.weight`.

    Gradients are added in the order of the ranks, so all ranks that store a row get identical bits.
    """
    ids, gradients = table.take_gradients()
    group = table.group()
    if group.world_size > 1:
        if table.is_sharded:
            ids, gradients = sent_to_owners(group, table.bounds, ids, gradients)
        else:
            ids, gradients = gathered_from_all(group, ids, gradients)
        ids, gradients = summed(ids, gradients / group.world_size)
    held = (ids - table.first).unsqueeze(0)
    shape = table.weight.shape
    return torch.sparse_coo_tensor(held, gradients, shape, is_coalesced=True, check_invariants=False)


class ModelOptimizer:
    """An optimizer of parameters, and RowAdam for `NodeEmbedding`; one step updates both.

    A model of embeddings alone, such as LightGCN with dot products, has RowAdam only. Weight decay applies to
    parameters only: it would change embedding rows that no batch reads.
    """

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float,
        weight_decay: float,
        settings: OptimizerSettings = ADAM,
    ) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        has_rows = any(isinstance(module, NodeEmbedding) for module in model.modules())
        if not parameters and not has_rows:
            raise ValueError(
                "the model has no parameter that requires gradients, so there is nothing to train: add one, "
                "or set requires_grad_(True)"
            )
        weights = settings.over(parameters, learning_rate, weight_decay) if parameters else None
        self._rows = RowAdam(model, learning_rate) if has_rows else None
        self.parts = tuple(part for part in (weights, self._rows) if part is not None)
        self._parameters, self._clip_norm = parameters, settings.clip_norm

    def zero_grad(self) -> None:
        """Reset all gradients."""
        for part in self.parts:
            part.zero_grad()

    def exchange(self) -> None:
        """Average the gradients of `NodeEmbedding` over the ranks. Collective if the model has any."""
        if self._rows is not None:
            self._rows.exchange()

    def clip(self, group: Group) -> None:
        """Clip the exchanged gradients if a maximum norm is set. Collective in this case."""
        if self._clip_norm is None:
            return
        whole = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        rows = [] if self._rows is None else self._rows.gradients()
        sharded = [gradient for gradient, place in rows if place == "sharded"]
        whole += [gradient for gradient, place in rows if place == "whole"]
        squares = [square_sum(whole)] if whole else []
        if sharded:
            squares.append(group.gather(square_sum(sharded)).sum())
        if squares:
            clip_gradients([*whole, *sharded], torch.stack(squares).sum(), self._clip_norm)

    def step(self) -> None:
        """Update parameters and rows with the exchanged gradients."""
        for part in self.parts:
            part.step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the weights, then the group of RowAdam."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> Mapping[Tensor, Mapping[str, Any]]:
        """State by parameter, and by the weight of each `NodeEmbedding`."""
        return {parameter: state for part in self.parts for parameter, state in part.state.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state and groups; parameters are numbered in the order of `param_groups`."""
        groups, start = list(state_dict["param_groups"]), 0
        for part in self.parts:
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            count = sum(len(group["params"]) for group in own)
            numbers = {start + number: number for number in range(count)}
            state = {numbers[n]: of for n, of in state_dict["state"].items() if n in numbers}
            renumbered = [group | {"params": [numbers[n] for n in group["params"]]} for group in own]
            part.load_state_dict({"state": state, "param_groups": renumbered})
            start += count


Course = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Plateau:
    """Reduction of the learning rate when the score on `val` stops improving.

    Args:
        factor: Factor of the learning rate at each reduction, above 0 and below 1; default 0.5.
        patience: Evaluations without improvement, since the best one or the last reduction; default 2.
    Raises:
        ValueError: `factor` is not between 0 and 1, or `patience` is below 1.
    Example:
        >>> schedule = khop.Schedule(plateau=khop.Plateau(factor=0.1, patience=3))
    """

    factor: float = 0.5
    patience: int = 2

    def __post_init__(self) -> None:
        if not 0 < real_number("factor", self.factor) < 1:
            raise ValueError(f"factor {self.factor}: must be above 0 and below 1")
        checked_field(self, "patience", whole_number, 1)


@dataclass(frozen=True)
class Schedule:
    """Learning rate over the updates of a run: warm-up, then constant or decaying to 0 at the end.

    Args:
        course: "constant" (default), "linear" or "cosine".
        warmup: Updates of linear warm-up, default 0.
        plateau: Additional reduction when the score stops improving; default None.
    Raises:
        ValueError: There is no such course, `warmup` is negative, or `plateau` is not a `Plateau`.
    Example:
        >>> schedule = khop.Schedule("linear", warmup=1)
        >>> [schedule.factor(updates=5, update=update) for update in range(5)]
        [0.5, 1.0, 0.75, 0.5, 0.25]
    """

    course: Course = "constant"
    warmup: int = 0
    plateau: Plateau | None = None

    def __post_init__(self) -> None:
        check_word("course", self.course, Course)
        if whole_number("warmup", self.warmup) < 0:
            raise ValueError(f"warmup {self.warmup}: must be 0 or more updates")
        if self.plateau is not None:
            instance_of("plateau", self.plateau, Plateau, "must be a khop.Plateau, or None")

    def factor(self, updates: int, update: int) -> float:
        """Return the factor of the learning rate in an update.

        Args:
            updates: Updates of the run.
            update: Number of the update, from 0.
        """
        if update < self.warmup:
            return (update + 1) / (self.warmup + 1)
        if self.course == "constant":
            return 1.0
        done = min((update - self.warmup) / max(updates - self.warmup, 1), 1.0)
        return 1.0 - done if self.course == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))

    def over(
        self, optimizer: torch.optim.Optimizer, updates: int, scale: Callable[[], float] = lambda: 1.0
    ) -> LambdaLR:
        """Return torch's scheduler for the optimizer's learning rate; call its step once per update.

        Args:
            optimizer: The optimizer.
            updates: Updates of the run.
            scale: Function that returns the factor of the plateau so far; by default 1.
        """
        return LambdaLR(optimizer, partial(self._scaled, updates, scale))

    def _scaled(self, updates: int, scale: Callable[[], float], update: int) -> float:
        return self.factor(updates, update) * scale()


def set_next(scheduler: LambdaLR) -> None:
    """Update the learning rate of the next update after the plateau factor has changed."""
    rates = zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    for group, base, factor in rates:
        group["lr"] = base * factor(scheduler.last_epoch)


CONSTANT = Schedule()


_Share = Annotated[float, Ge(0), Lt(1)]
_Least = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class AdamOptions:
    """Options of optimizers with two moments."""

    beta1: _Share = 0.9
    """Decay rate of the first moment of gradients"""
    beta2: _Share = 0.999
    """Decay rate of the second moment of gradients"""
    eps: _Least = 1e-8
    """Term added to the denominator for numerical stability"""


@dataclass(frozen=True)
class AmsgradOptions(AdamOptions):
    """Options of Adam."""

    amsgrad: bool = False
    """Divide by the largest mean of squared gradients so far instead of the current one (AMSGrad)"""


@dataclass(frozen=True)
class SgdOptions:
    """Options of gradient descent."""

    momentum: _Share = 0.0
    """Momentum"""
    dampening: _Least = 0.0
    """Dampening of the momentum"""
    nesterov: bool = False
    """Use Nesterov momentum"""


@dataclass(frozen=True)
class RmspropOptions:
    """Options of RMSprop."""

    alpha: _Share = 0.99
    """Decay rate of the second moment of gradients"""
    eps: _Least = 1e-8
    """Term added to the denominator for numerical stability"""
    momentum: _Share = 0.0
    """Momentum"""
    centered: bool = False
    """Normalize by the standard deviation of the gradients"""


@dataclass(frozen=True)
class AdagradOptions:
    """Options of Adagrad."""

    lr_decay: _Least = 0.0
    """Rate at which the learning rate decays per step"""
    initial_accumulator_value: _Least = 0.0
    """Initial value of the sum of squared gradients"""
    eps: _Least = 1e-10
    """Term added to the denominator for numerical stability"""


@dataclass(frozen=True)
class _Kind:
    """An optimizer of a run: a class of `torch.optim`, and the class of its options."""

    optimizer: type[torch.optim.Optimizer]
    Options: type

    def build(self, options: Any, context: object) -> OptimizerSettings:  # noqa: ANN401
        """Make the optimizer of a run."""
        values = asdict(options)
        betas = {"betas": (values.pop("beta1"), values.pop("beta2"))} if "beta1" in values else {}
        return OptimizerSettings(self.optimizer, {**betas, **values})


Adam = _Kind(torch.optim.Adam, AmsgradOptions)
AdamW = _Kind(torch.optim.AdamW, AmsgradOptions)
NAdam = _Kind(torch.optim.NAdam, AdamOptions)
RAdam = _Kind(torch.optim.RAdam, AdamOptions)
SGD = _Kind(torch.optim.SGD, SgdOptions)
RMSprop = _Kind(torch.optim.RMSprop, RmspropOptions)
Adagrad = _Kind(torch.optim.Adagrad, AdagradOptions)


# Arguments that the run sets, and arguments that only select torch's implementation.
_NO_OPTIONS = {*_SET_ELSEWHERE, *_WAYS_TO_COMPUTE}


def component_of_class(found: object) -> Component | None:
    """Return the component of an optimizer class, such as torch.optim:Adamax; None for other objects.

    Its options are the arguments whose default is a number, string, boolean or pair of numbers.
    """
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        return None
    options: list[Any] = [
        (name, tuple[float, ...] if isinstance(default, tuple) else type(default), field(default=default))
        for name, parameter in inspect.signature(found).parameters.items()
        if name not in _NO_OPTIONS and _is_plain(default := parameter.default)
    ]
    made: type = make_dataclass(f"{found.__name__}Options", options, frozen=True)
    return Component(made, _builder(found), lambda options, context: options, found)


def _builder(kind: type[torch.optim.Optimizer]) -> Callable[[Any, object], OptimizerSettings]:
    return lambda options, context: OptimizerSettings(kind, asdict(options))


def _is_plain(default: object) -> bool:
    if isinstance(default, tuple):
        return all(isinstance(number, float) for number in default)
    return isinstance(default, str | int | float)
