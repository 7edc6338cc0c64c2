"""The baseline of own features: a run with the same task, and a model that does not see the graph."""

from __future__ import annotations

from khop.config.build import Run
from khop.config.contexts import TaskContext
from khop.config.gpu import without_later_placement
from khop.config.read import RawRun, checked
from khop.config.run_type import built
from khop.config.values import RunConfig

_SHAPE = ("hidden", "layers", "column", "dropout", "norm", "residual")  # settings of both models


def own_features(run: Run, raw: RawRun) -> Run:
    """Return a run with the task, splits, seed and training of `run`, and a multilayer perceptron as model.

    It reads the input column of each node alone: no neighbors, no embeddings. `raw` has the permission to
    import components that the run names. ValueError if no node type of the task has the column.
    """
    column, types = run.config.model.column, run.run_task.node_types
    if not any(column in run.graph.schema.columns.get(node_type, {}) for node_type in types):
        raise ValueError(
            f"--baselines: {', '.join(types)} has no column {column!r}, so there are no own features; "
            "leave --baselines out"
        )
    config = checked(RawRun(_values(run.config), raw.source, permission=raw.permission))
    graph = without_later_placement(run.graph)  # no neighbors: nothing for a GPU to draw
    return Run(config, graph, built(config, "task", TaskContext(config, graph)))


def _values(config: RunConfig) -> dict[str, object]:
    """Return the settings of the baseline. GraphSAGE of no neighbors is a multilayer perceptron."""
    found = config.model_dump(mode="json", exclude_none=True)
    no_neighbors = [0] * len(config.sampler.fanouts)
    model = {name: value for name, value in found["model"].items() if name in _SHAPE}
    time = {name: found["sampler"][name] for name in ("time",) if name in found["sampler"]}
    evaluation = found["evaluation"] | {"fanouts": no_neighbors if time else []}
    return {
        **{name: value for name, value in found.items() if name != "out"},
        "model": {"kind": "sage", "embedding": 0, **model},
        "sampler": {"fanouts": no_neighbors, **time},
        "evaluation": evaluation,
    }
