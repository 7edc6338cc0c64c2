"""Keys of dropout: every rank and step has its own, the same in every run."""

from __future__ import annotations

from khop.training.steps import dropout_seed


def test_ranks_and_steps_have_keys_of_their_own() -> None:
    keys = {dropout_seed(3, epoch, step, rank) for epoch in (0, 1) for step in (0, 1) for rank in (0, 1)}
    assert len({key.value for key in keys}) == 8
    assert dropout_seed(3, 1, 0, 1) == dropout_seed(3, 1, 0, 1)
