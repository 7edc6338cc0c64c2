"""Recommendations of a run: its model, its edges before a cut-off, and its rule."""

from __future__ import annotations

from khop.api.recommend import Candidates, Recommender
from khop.config.build import Run
from khop.config.contexts import exact_draws_of
from khop.config.link_run_task import LinkTask
from khop.inference.exact_draws import ExactDraws


def recommender_of(run: Run, split: str, k: int, candidates: Candidates) -> Recommender:
    """Check that a run can recommend, and return its recommender over the edges of a split, or "all".

    ValueError for runs of other tasks, for windows of time, and for edges that are not in this process.
    """
    task = run.run_task
    if not isinstance(task, LinkTask):
        raise ValueError(
            f"recommend: the task of the run is {run.config.task.kind}; only runs with the task "
            "link-prediction recommend"
        )
    draws_for(run)  # an error comes before any work
    if run.graph.servers is not None or run.graph.rank_edges is not None:
        raise ValueError(
            "recommend: edges are held by servers or in parts by ranks; recommend from the folder in one "
            "process"
        )
    graph = {"train": task.split.train, "val": task.split.val, "test": task.split.test}.get(split, task.whole)
    return Recommender.checked(task.model, graph, task.edge_type, k, candidates)


def draws_for(run: Run) -> ExactDraws:
    """Return the rule and the fanouts of the run's training, by which rows are computed."""
    return exact_draws_of(run.config, run.run_task.whole)
