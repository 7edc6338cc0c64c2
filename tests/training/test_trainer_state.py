"""The state of a run: what an epoch's end makes of it, and states that contradict themselves."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.training.trainer_state import TrainerState, trainer_state_of

FOLDER = Path("checkpoint")


@given(scores=st.lists(st.none() | st.sampled_from([0.1, 0.2, 0.3]), max_size=12))
def test_the_best_score_is_the_first_of_the_highest(scores: list[float | None]) -> None:
    state = TrainerState(loss_sum=3.0, seeds=4, step=2, traffic={"rows": 1.0})
    for score in scores:
        state = state.ended(score)
    known = [(score, -epoch) for epoch, score in enumerate(scores) if score is not None]
    assert (state.epoch, state.step) == (len(scores), 0 if scores else 2)
    assert state.seeds == (0 if scores else 4)
    if known:
        best, epoch = max(known)
        assert (state.best_score, state.best_epoch) == (best, -epoch)
        assert state.stale == sum(score is not None for score in scores[-epoch + 1 :])
    else:
        assert (state.best_score, state.stale) == (None, 0)


SOUND = TrainerState(epoch=2, step=3, best_epoch=1, loader={"epoch": 2, "step": 3})


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 9},
        {"epoch": -1},
        {"best_epoch": 4},
        {"epoch": 3},
        {"seeds": 1.5},
        {"schedule": [1]},
        {"loader": {"epoch": 2, "step": 4}},
    ],
    ids=str,
)
def test_a_state_that_contradicts_itself_or_the_run_is_refused(changes: dict[str, object]) -> None:
    SOUND.check(5, 2, FOLDER)
    with pytest.raises(ValueError, match="contradict the rest of the state"):
        replace(SOUND, **changes).check(5, 9, FOLDER)  # type: ignore[arg-type]


def test_lost_records_of_epochs_are_named() -> None:
    with pytest.raises(ValueError, match=r"is after 2 epochs, metrics\.jsonl has 1"):
        SOUND.check(5, 1, FOLDER)


def test_a_saved_state_is_read_for_the_same_settings_alone() -> None:
    saved = asdict(replace(SOUND, facts={"seed": "1"}))
    assert trainer_state_of(saved, {"seed": "1"}, FOLDER) == replace(SOUND, facts={"seed": "1"})
    before = {name: value for name, value in saved.items() if name != "linear"}  # of earlier versions
    assert trainer_state_of(before, {"seed": "1"}, FOLDER).linear == {}
    with pytest.raises(ValueError, match="seed was 1 and is 2"):
        trainer_state_of(saved, {"seed": "2"}, FOLDER)
    with pytest.raises(ValueError, match=r"it is not from a khop\.Trainer"):
        trainer_state_of({"epoch": 1}, {}, FOLDER)
