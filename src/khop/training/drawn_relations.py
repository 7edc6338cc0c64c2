"""Notice that a model averages drawn neighbors by relation, where exact inference averages all of them."""

from __future__ import annotations

import warnings

from torch import nn

from khop.models.rgcn import RGCN
from khop.training.batch_loader import BatchLoader, SamplingLoader


def notice_drawn_relations(model: nn.Module, loader: BatchLoader) -> None:
    """Warn if an R-GCN over a column of relations is trained on few neighbors without weights of a rule."""
    columns = [each.relations for each in model.modules() if isinstance(each, RGCN) and each.relations]
    if not columns or not isinstance(loader, SamplingLoader):
        return
    averaged = loader.graph_sampler.averaged_types
    for column in columns:
        if averaged.isdisjoint(column.counts):
            continue
        name = column.column
        warnings.warn(
            f"R-GCN averages the drawn edges of each relation of {name!r}: with limited fanouts, rare "
            "relations count less in training than in exact inference; draw by "
            f"rule=khop.RelationMean({name!r}), in a run --rule relation-mean --rule-column {name}",
            stacklevel=2,
        )
