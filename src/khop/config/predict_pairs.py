"""Scores of a link-prediction run for pairs of ids, also of new nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.config.build import Run
from khop.config.contexts import exact_draws_of
from khop.config.joined_run import JoinedRun
from khop.config.link_pairs import PairRows, Pairs
from khop.config.link_run_task import LinkTask
from khop.config.parts import in_flight_of
from khop.importing.disk_estimate import table_rows
from khop.inference.chunks import Progress, unwatched
from khop.inference.collective_chunks import InferenceWork
from khop.inference.later_graph import Neighborhood
from khop.inference.pair_scores import pair_scores
from khop.inference.parquet_file import parquet
from khop.inference.predictions import Columns


@dataclass(frozen=True, eq=False)
class PairPredictions:
    """Scores of pairs, computed when they are asked for, in the order of their table."""

    task: LinkTask
    joined: JoinedRun
    pairs: Pairs
    progress: Progress

    def pieces(self) -> Iterator[Columns]:
        """Yield `source_id`, `destination_id` and `score` of consecutive pairs.

        A score is null where no node has one of the ids. The neighborhoods of `evaluation.batch_size` pairs
        are in memory at a time.
        """
        done, total = 0, table_rows(self.pairs.source)
        for rows in self.pairs:
            yield self._scored(rows)
            done += rows.nodes[0].numel()
            self.progress(done, max(done, total))

    def _scored(self, rows: PairRows) -> Columns:
        pyarrow, (sources, destinations) = parquet(), rows.nodes
        known = ((sources >= 0) & (destinations >= 0)).nonzero().squeeze(1)
        scores = torch.full((sources.numel(),), torch.nan)
        for at in known.split(self.joined.run.config.evaluation.batch_size):
            scores[at] = self._scores(sources[at], destinations[at]).to(scores.dtype)
        is_unknown = torch.ones_like(sources, dtype=torch.bool)
        is_unknown[known] = False
        return {
            "source_id": rows.ids[0],
            "destination_id": rows.ids[1],
            "score": pyarrow.array(scores.numpy(), mask=is_unknown.numpy()),
        }

    def _scores(self, sources: Tensor, destinations: Tensor) -> Tensor:
        source, _, destination = self.task.edge_type
        config = self.joined.run.config

        def computed(near: Neighborhood, graph: Graph) -> Tensor:
            pairs = near.local(source, sources), near.local(destination, destinations)
            evaluation = config.evaluation
            work = InferenceWork(
                evaluation.batch_size, unwatched, in_flight_of(config), chunk_edges=evaluation.batch_edges
            )
            draws, edge_type = exact_draws_of(config, graph), self.task.edge_type
            return pair_scores(self.task.model, graph, graph.features, edge_type, pairs, work, draws)

        seeds = {source: sources}
        seeds[destination] = torch.cat([seeds.get(destination, sources[:0]), destinations])
        return self.joined.near(seeds, computed)


def predict_pairs(
    run: Run,
    pairs: Any,  # noqa: ANN401
    later: Path | None = None,
    progress: Progress = unwatched,
) -> PairPredictions:
    """Open pairs of ids to score by the model of a link-prediction run, over all neighbors.

    `pairs` is a file, or a table of pandas, polars or Arrow, with the columns of ids that the table of the
    run's edge type had. Ids may be those of new nodes of `later`, a folder of later data. Messages pass over
    all edges of the graph and of the later data. ValueError for runs of other tasks, and for windows of
    time.
    """
    task = run.run_task
    if not isinstance(task, LinkTask):
        raise ValueError(
            f"--pairs: the task of the run is {run.config.task.kind}; only runs with the task "
            "link-prediction score pairs"
        )
    exact_draws_of(run.config, task.whole)  # an error comes before any work
    joined = JoinedRun.of(run, later)
    return PairPredictions(task, joined, Pairs.open(pairs, task.edge_type, joined), progress)
