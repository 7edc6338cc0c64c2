"""The families of components that a run names. Loads none of them."""

from __future__ import annotations

from collections.abc import Mapping

from khop.components import Family

MODELS = Family(
    "khop.models",
    {
        "sage": "khop.config.builtin:Sage",
        "rgcn": "khop.config.builtin:Rgcn",
        "gat": "khop.config.builtin:Gat",
        "gin": "khop.config.builtin:Gin",
        "gcn": "khop.config.builtin:Gcn",
        "hgt": "khop.config.builtin:Hgt",
        "lightgcn": "khop.config.builtin:LightGcn",
    },
)
LINK_PREDICTION = "link-prediction"
TASKS = Family(
    "khop.tasks",
    {
        "node-classification": "khop.config.builtin:NodeClassification",
        "node-regression": "khop.config.builtin:NodeRegression",
        "multi-label": "khop.config.builtin:MultiLabel",
        "edge-classification": "khop.config.builtin:EdgeClassification",
        "edge-regression": "khop.config.builtin:EdgeRegression",
        LINK_PREDICTION: "khop.config.builtin:LinkPrediction",
    },
)
SAMPLERS = Family(
    "khop.samplers",
    {
        "neighbor": "khop.config.builtin:Neighbor",
        "saint-node": "khop.config.builtin:SaintNode",
        "saint-edge": "khop.config.builtin:SaintEdge",
        "saint-walk": "khop.config.builtin:SaintWalk",
        "cluster": "khop.config.builtin:Cluster",
        "shadow": "khop.config.builtin:Shadow",
    },
)
RULES = Family(
    "khop.rules",
    {
        "uniform": "khop.config.builtin:Uniform",
        "weighted": "khop.config.builtin:Weighted",
        "sum": "khop.config.builtin:Sum",
        "symmetric-sum": "khop.config.builtin:SymmetricSum",
        "relation-mean": "khop.config.builtin:RelationMean",
        "labor": "khop.config.builtin:Labor",
        "top-k": "khop.config.builtin:TopK",
    },
)
OPTIMIZERS = Family(
    "khop.optimizers",
    {
        "adam": "khop.config.optimizers:Adam",
        "adamw": "khop.config.optimizers:AdamW",
        "nadam": "khop.config.optimizers:NAdam",
        "radam": "khop.config.optimizers:RAdam",
        "sgd": "khop.config.optimizers:Sgd",
        "rmsprop": "khop.config.optimizers:Rmsprop",
        "adagrad": "khop.config.optimizers:Adagrad",
    },
    "khop.config.build_optimizer:component_of_class",
)
# By the path of its table: the family, and the kind of a table that names none.
FAMILIES = {
    "task": (TASKS, "node-classification"),
    "sampler": (SAMPLERS, "neighbor"),
    "sampler.rule": (RULES, None),
    "model": (MODELS, "sage"),
    "optimizer": (OPTIMIZERS, "adam"),
}
# By the path of its table: the object that a component builds, and methods by which it is known.
MADE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "task": ("khop.config.run_task.RunTask", ("loader", "scores")),
    "sampler": ("khop.Sampler", ("sample", "needs", "with_threads")),
    "sampler.rule": ("khop.Rule", ("plan", "check", "needs", "most")),
    "model": ("torch.nn.Module", ("forward", "state_dict")),
    "optimizer": ("khop.OptimizerSettings", ()),  # its type is checked
}
