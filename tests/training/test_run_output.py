"""The folder of a run: what is saved is read again, and a run that is there is not written over.

Logs and checkpoints of a run: when one is due, and what a full disk leaves for later.

Lines of updates: at once where the loss is known, else once the device has passed it, in order.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from khop.distributed.processes.group import ALONE, Group
from khop.errors import PeerLost
from khop.training.checkpoint import StateCopy, load_checkpoint
from khop.training.optimizer_settings import ModelOptimizer
from khop.training.run_log import RunLog
from khop.training.run_loggers import (
    MlflowLog,
    TensorBoard,
    WandbLog,
    _NumberLog,
    check_logger,
    check_tensorboard,
)
from khop.training.run_output import (
    BEST,
    LAST,
    CheckpointWriter,
    DeviceLoss,
    DeviceValues,
    RunOutput,
    StepLog,
    wait_for,
)
from khop.training.settings import CheckpointPolicy
from khop.training.step_clock import STAGES, GatheredStep, RankStep, Unwatched
from khop.training.traffic import epoch_record, of_ranks, step_record, summed, values_of
from khop.training.trainer_state import TrainerState
from support.recorders import NoStreams, Passed
from support.small_runs import STEPS, SmallRun
from support.watched_ranks import ranks


def output_of(folder: Path, rank: int = 0) -> RunOutput:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = ModelOptimizer(model, 0.01, 0.0)
    return RunOutput(folder, CheckpointPolicy(), model, optimizer, Group(rank), print)


def test_records_and_state_are_read_as_they_were_saved(tmp_path: Path) -> None:
    output = output_of(tmp_path)
    output.begin(TrainerState(), 2)
    output.end_epoch({"epoch": 0, "loss": 0.5})
    output.save(TrainerState(epoch=1), BEST, LAST)
    output.close()
    assert sorted(path.name for path in output.folder.iterdir()) == [BEST, LAST]
    checkpoint, records = output_of(tmp_path).read()
    assert (checkpoint.folder, checkpoint.training["epoch"]) == (output.folder / LAST, 1)
    assert records == output.records == [{"epoch": 0, "loss": 0.5}]


def test_a_run_that_is_there_is_written_on_only_where_it_is_resumed(tmp_path: Path) -> None:
    first = output_of(tmp_path)
    first.begin(TrainerState(), 2)
    first.end_epoch({"epoch": 0, "loss": 0.5})
    first.save(TrainerState(epoch=1), LAST)
    first.close()
    again = output_of(tmp_path)
    with pytest.raises(ValueError, match="it already contains a run; resume it, or choose another folder"):
        again.begin(TrainerState(epoch=1), 2)
    checkpoint, again.records = again.read()
    (first.folder / LAST).rename(first.folder / f"{LAST}-1")  # by a kill in the middle of a checkpoint
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match="it already contains a run"):
        again.begin(TrainerState(epoch=1), 2)
    (first.folder / f"{LAST}-1").rename(first.folder / LAST)
    again.source = checkpoint.folder
    again.begin(TrainerState(epoch=1), 2)
    again.close()


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    output = output_of(tmp_path, rank=1)
    output.begin(TrainerState(), 2)
    output.end_epoch({"epoch": 0, "loss": 0.5})
    output.save(TrainerState(epoch=1), LAST)
    output.close()
    assert not output.is_due()
    assert list(tmp_path.iterdir()) == []


SNAPSHOT = StateCopy({"w": torch.ones(2)}, {}, [{"params": ["w"]}], {"epoch": 1}, [])


def test_a_checkpoint_is_due_after_its_steps(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(steps=2, minutes=None), print)
    writer.begin([], TrainerState(), 5, None)
    due = []
    for step in range(2):
        due.append(writer.is_due())
        writer.log_step({"step": step})
    assert [*due, writer.is_due()] == [False, False, True]
    writer.save({LAST: SNAPSHOT})
    writer.close()
    assert not writer.is_due()
    assert (tmp_path / "steps.jsonl").read_text().count("\n") == 2
    assert (tmp_path / "checkpoints" / LAST).is_dir()


def test_what_a_disk_does_not_take_is_written_with_the_next_checkpoint(tmp_path: Path) -> None:
    warned: list[str] = []
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(), warned.append)
    writer.begin([], TrainerState(), 5, None)
    (tmp_path / "checkpoints").write_text("a file where the folder has to be")
    writer.save({LAST: SNAPSHOT})
    writer.save({})
    assert len(warned) == 1
    assert warned[0].endswith("; the run continues")
    with pytest.raises(OSError, match="checkpoints"):
        writer.close()
    (tmp_path / "checkpoints").unlink()
    writer.close()
    assert (tmp_path / "checkpoints" / LAST).is_dir()


def snapshot(epoch: int, evaluations: int = 0) -> StateCopy:
    return replace(SNAPSHOT, training={"epoch": epoch, "evaluations": [{}] * evaluations})


def best_epochs(folder: Path) -> dict[str, int]:
    found = sorted((folder / "checkpoints").glob(f"{BEST}*"))
    return {path.name: load_checkpoint(path).training["epoch"] for path in found}  # type: ignore[misc]


def test_best_checkpoints_that_a_disk_refused_are_written_in_order(tmp_path: Path) -> None:
    """Each is better than those before. Of four, three are to be kept, and no more are in memory."""
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(best=3), lambda warning: None)
    writer.begin([], TrainerState(), 5, None)
    (tmp_path / "checkpoints").write_text("a file where the folder has to be")
    for epoch in range(1, 5):
        writer.save({BEST: snapshot(epoch), LAST: snapshot(epoch)})
    assert [of.training["epoch"] for _, of in writer._best] == [2, 3, 4]
    writer._wait()
    (tmp_path / "checkpoints").unlink()
    writer.close()
    assert best_epochs(tmp_path) == {"best": 4, "best-1": 3, "best-2": 2}


def test_unwritten_checkpoints_keep_their_places(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(best=3), lambda warning: None)
    writer.begin([], TrainerState(), 5, None)
    writer.save({BEST: snapshot(1), LAST: snapshot(1)})
    writer._wait()
    folder = tmp_path / "checkpoints"
    folder.rename(tmp_path / "aside")
    folder.write_text("a file where the folder has to be")
    for epoch, name in enumerate(("best-1", "best", "best-1", "best-2"), 2):  # of scores 2, 1, 4, 3, 2.5
        writer.save({name: snapshot(epoch), LAST: snapshot(epoch)})
    writer._wait()
    folder.unlink()
    (tmp_path / "aside").rename(folder)
    writer.close()
    assert best_epochs(tmp_path) == {"best": 3, "best-1": 4, "best-2": 5}


def test_a_run_that_keeps_one_best_checkpoint_leaves_others_as_they_are(tmp_path: Path) -> None:
    """They are of the same run, which kept two before."""
    for best in (2, 1):
        writer = CheckpointWriter(tmp_path, CheckpointPolicy(best=best), print)
        writer.begin([], TrainerState(epoch=2), 5, None)
        for epoch in (1, 2):
            writer.save({BEST: snapshot(epoch), LAST: snapshot(epoch)})
        writer.close()
        assert best_epochs(tmp_path) == {"best": 2, "best-1": 1}


def test_a_run_that_is_killed_after_a_best_checkpoint_has_no_evaluation_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between writing `best` and `last`, and between renames: what the resumed run repeats is removed."""
    policy = CheckpointPolicy(best=3)
    writer = CheckpointWriter(tmp_path, policy, print)
    writer.begin([], TrainerState(), 5, None)
    for epoch in range(1, 4):
        writer.save({BEST: snapshot(epoch), LAST: snapshot(epoch)})
    writer._wait()
    write = StateCopy.write

    def killed(self: StateCopy, folder: Path, *arguments: int) -> None:
        if folder.name == LAST:
            raise OSError(5, "killed", str(folder))
        write(self, folder, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StateCopy, "write", killed)
        writer.save({BEST: snapshot(3, evaluations=1), LAST: snapshot(3, evaluations=1)})
        with pytest.raises(OSError, match="killed"):
            writer.close()
    folder = tmp_path / "checkpoints"
    assert best_epochs(tmp_path) == {"best": 3, "best-1": 3, "best-2": 2, "best-3": 1}
    resumed = CheckpointWriter(tmp_path, policy, print)
    resumed.begin([], TrainerState(epoch=3), 5, folder / LAST)
    assert best_epochs(tmp_path) == {"best": 3, "best-1": 2, "best-2": 1}
    (folder / BEST).rename(folder / "best-3")  # a kill in the middle of the renames leaves a gap
    resumed.begin([], TrainerState(epoch=2), 5, folder / LAST)  # `last` is damaged, and last-1 is used
    assert best_epochs(tmp_path) == {"best": 2, "best-1": 1}
    resumed.save({BEST: snapshot(3), LAST: snapshot(3)})
    resumed.close()
    assert best_epochs(tmp_path) == {"best": 3, "best-1": 2, "best-2": 1}


def test_what_no_disk_can_mend_ends_the_run_at_its_first_checkpoint(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(), print)
    writer.begin([], TrainerState(), 5, None)
    writer.log_step({"step": 0})
    writer.save({LAST: replace(SNAPSHOT, groups=[{"eps": torch.ones(2)}])})
    with pytest.raises(
        ValueError, match=r"last: the checkpoint cannot be written: .*Tensor.*as Python numbers"
    ):
        writer.save({LAST: SNAPSHOT})
    with pytest.raises(ValueError, match="cannot be written"):
        writer.close()
    assert (tmp_path / "steps.jsonl").read_text().count("\n") == 1


def test_memory_that_is_exhausted_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise MemoryError

    warned: list[str] = []
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(), warned.append)
    writer.begin([], TrainerState(), 5, None)
    with monkeypatch.context() as patch:
        patch.setattr("khop.training.checkpoint.encoded", refused)
        writer.save({LAST: SNAPSHOT})
        writer._wait()
    assert warned == ["the checkpoint could not be written, because memory is exhausted; the run continues"]
    writer.close()
    assert (tmp_path / "checkpoints" / LAST).is_dir()


def test_lost_lines_are_restored_and_reported(tmp_path: Path) -> None:
    warned: list[str] = []
    writer = CheckpointWriter(tmp_path, CheckpointPolicy(), warned.append)
    writer.begin([{"epoch": 0, "loss": 1.0}], TrainerState(epoch=1), 3, None)
    assert '"loss": 1.0' in (tmp_path / "metrics.jsonl").read_text()
    assert [line.split(":")[0] for line in warned] == [
        str(tmp_path / f"{n}.jsonl") for n in ("metrics", "steps")
    ]


@dataclass
class Lines(Unwatched):
    """The updates that an observer is told of."""

    seen: list[tuple[int, int, float]] = field(default_factory=list)

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        self.seen.append((epoch, step, loss))


def gathered(loss_sum: float, seeds: int, *requests: int) -> GatheredStep:
    """Values of one rank; `requests` are the number of a signal, and 1 for a checkpoint."""
    signal_number, wants_checkpoint = requests or (0, 0)
    own = RankStep(loss_sum, seeds, signal_number, 0.0, bool(wants_checkpoint))
    return GatheredStep(own.values(dict.fromkeys(STAGES, 0.0), {"rows": 2})[None], {"rows": 2})


def log_of(observer: Unwatched) -> StepLog:
    return StepLog(None, observer, Path("last"), ALONE)


def late(loss: Tensor, behind: int) -> DeviceValues:
    return DeviceLoss(loss, NoStreams(), behind).with_values(ALONE, torch.empty(0))


def test_known_values_are_logged_at_once() -> None:
    lines = Lines()
    log = log_of(lines)
    state = log.add(TrainerState(step=1), gathered(6.0, 3, 15, 1))
    assert lines.seen == [(0, 0, 2.0)]
    assert (state.loss_sum, state.seeds, state.traffic) == (6.0, 3, {"rows": 2})
    assert log.requests() == (15, True)
    assert log.requests() == (0, False)


def test_losses_of_a_device_are_logged_behind_and_when_all_are_wanted() -> None:
    lines, shared = Lines(), torch.zeros((), dtype=torch.float64)
    log, state = log_of(lines), TrainerState()
    for step in range(4):
        shared.fill_(10.0 * (step + 1))  # the memory of a step's loss is that of the next one's
        state = log.add(replace(state, step=step + 1), gathered(0.0, 10), late(shared, behind=2))
    assert lines.seen == [(0, 0, 1.0), (0, 1, 2.0)]
    assert (state.loss_sum, state.seeds, state.traffic) == (30.0, 20, {"rows": 4})
    state = log.settled(state)
    assert lines.seen[2:] == [(0, 2, 3.0), (0, 3, 4.0)]
    assert (state.loss_sum, state.seeds, state.traffic) == (100.0, 40, {"rows": 8})
    assert log.settled(state) == state


def test_requests_of_late_updates_come_in_the_same_update_whenever_they_are_read() -> None:
    """Rank 0 settles its state for a checkpoint where the other does not."""
    found: list[list[tuple[int, bool]]] = []
    for settles in (True, False):
        log, state, of_updates = log_of(Unwatched()), TrainerState(), []
        for step in range(6):
            own = gathered(0.0, 1, 2 if step == 3 else 0, step in (1, 2, 3))
            loss = torch.zeros((), dtype=torch.float64)
            state = log.add(replace(state, step=step + 1), own, late(loss, behind=2))
            state = log.settled(state) if settles else state
            of_updates.append(log.requests())
            if of_updates[-1][1]:
                log.saved()  # a checkpoint of this update has what updates before it asked for
        state = log.settled(state)
        found.append([*of_updates, log.requests(is_settled=True)])
    nothing = (0, False)
    assert found == [[nothing, nothing, nothing, (0, True), nothing, (2, False), nothing]] * 2


def test_a_loss_that_is_not_finite_names_its_step() -> None:
    log, loss = log_of(Lines()), torch.tensor(torch.nan, dtype=torch.float64)
    state = log.add(TrainerState(epoch=2, step=5), gathered(0.0, 1), late(loss, behind=1))
    with pytest.raises(ValueError, match="loss is nan in epoch 2, step 4"):
        log.settled(state)


@pytest.mark.parametrize("where", ["host", "device"])
def test_an_observer_that_raises_does_not_lose_the_loss_it_was_given(where: str) -> None:
    class Stopping(Unwatched):
        def stepped(self, epoch: int, step: int, loss: float) -> None:
            raise KeyboardInterrupt

    log, loss = log_of(Stopping()), torch.tensor(6.0, dtype=torch.float64)
    ended = TrainerState(step=1)
    with pytest.raises(KeyboardInterrupt):
        log.add(ended, gathered(6.0, 3), late(loss, behind=0) if where == "device" else None)
    assert log.settled(ended).loss_sum == 6.0


def test_a_device_that_waits_for_a_lost_rank_is_waited_for_until_the_deadline() -> None:
    class Never(Passed):
        def query(self) -> bool:
            return False

    with ranks(2, silent=(1,)) as (first, _):
        group = Group(0, 2, deadline_s=0.01, watch=first)
        wait_for(Passed(), group)
        with pytest.raises(PeerLost, match=r"rank 1 \(host host-1\) no longer responds"):
            wait_for(Never(), group)
        with pytest.raises(PeerLost):  # what NCCL leaves in memory after an abort is not used
            wait_for(Passed(), group)


# metrics.jsonl holds one whole line per epoch.


def test_records_come_back_in_order(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    assert log.records() == []
    records = [{"epoch": epoch, "loss": 1 / (epoch + 3), "name": "é"} for epoch in range(3)]
    for record in records:
        log.append(record)
    assert log.records() == records
    assert log.path.read_text().count("\n") == 3


def test_a_disk_that_is_full_keeps_the_lines_before(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    log.append({"epoch": 0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: lines could not be written.*metrics\.jsonl"):
            log.append({"epoch": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.records() == [{"epoch": 0}]
    log.append({"epoch": 2})
    assert log.records() == [{"epoch": 0}, {"epoch": 1}, {"epoch": 2}]


def test_lines_that_are_held_come_with_the_next_flush(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "steps.jsonl")
    log.hold({"step": 0})
    assert log.records() == []
    log.append({"step": 1})
    assert log.records() == [{"step": 0}, {"step": 1}]


def test_a_half_written_line_does_not_count_and_goes_with_the_next_cut(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    for epoch in range(3):
        log.append({"epoch": epoch})
    with log.path.open("a") as file:
        file.write('{"epoch": 3, "lo')
    assert [record["epoch"] for record in log.records()] == [0, 1, 2]
    assert log.replace([{"epoch": 0}, {"epoch": 1}]) == 0
    log.append({"epoch": 2, "again": True})
    assert log.records() == [{"epoch": 0}, {"epoch": 1}, {"epoch": 2, "again": True}]
    assert list(tmp_path.iterdir()) == [log.path]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    log.path.write_bytes(b'{"epoch": 0}\n{"epoch"\xba 1}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl: line 2 is damaged; restore the file"):
        log.records()


def test_lines_that_differ_are_replaced_and_counted(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    log.path.write_bytes(b'{"epoch": 0}\n{"epoch": 7}\n{"epoch": 2}\n')
    assert log.replace([{"epoch": 0}, {"epoch": 1}]) == 1
    assert log.path.read_bytes() == b'{"epoch": 0}\n{"epoch": 1}\n'
    assert log.replace([]) == 0
    assert log.path.read_bytes() == b""


def test_of_damaged_lines_of_steps_the_whole_ones_are_kept(tmp_path: Path) -> None:
    """Two steps an epoch, five updates; lines 2 and 4 are damaged, and a newline is lost."""
    log = RunLog(tmp_path / "steps.jsonl")
    lines = [b'{"epoch": %d, "step": %d}' % divmod(update, 2) for update in range(6)]
    damaged = [lines[0], b'{"epoch": 0, "step"z 1}', lines[2], b'{"epoch": 9, "step": 1}']
    log.path.write_bytes(b"\n".join([*damaged, lines[4] + lines[5], b""]))
    assert log.keep(5, 2) == 3
    assert log.records() == [{"epoch": 0, "step": 0}, {"epoch": 1, "step": 0}]


# Loggers get the losses of updates and the numbers of epochs, as the logs of the run have them.


class Noted(_NumberLog):
    """Keeps what a tool would be given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, dict[str, float]]] = []

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        self.seen.append((update, dict(numbers)))


def expected(run: Path) -> list[tuple[int, dict[str, float]]]:
    """The numbers in the logs of a run: of updates from 1, and of each epoch after its last update."""
    steps, epochs = (
        [json.loads(line) for line in (run / name).read_text().splitlines()]
        for name in ("steps.jsonl", "metrics.jsonl")
    )
    found = [(number, {"step/loss": record["loss"]}) for number, record in enumerate(steps, 1)]
    for record in epochs:
        numbers = {
            k: v for k, v in record.items() if isinstance(v, int | float) and k not in ("epoch", "step")
        }
        place = max(at for at, (update, _) in enumerate(found) if update == record["step"]) + 1
        found.insert(place, (record["step"], {f"epoch/{name}": value for name, value in numbers.items()}))
    return found


def test_losses_and_scores_are_those_of_the_logs(tmp_path: Path) -> None:
    noted = Noted()
    SmallRun(tmp_path, observer=noted).trainer().fit()
    assert noted.seen == expected(tmp_path)


def test_a_tool_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.training.run_loggers.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="wandb is not installed: pip install wandb"):
        WandbLog()
    with pytest.raises(ValueError, match="mlflow is not installed: pip install mlflow-skinny"):
        MlflowLog()
    with pytest.raises(ValueError, match="logger 'comet': must be one of wandb, mlflow"):
        check_logger("comet")  # type: ignore[arg-type]
    assert {"wandb", "mlflow"} & set(sys.modules) <= {"wandb", "mlflow"}


@pytest.mark.long
def test_mlflow_reads_the_numbers_and_settings_from_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    mlflow.set_tracking_uri(f"file:{tmp_path}/mlruns")
    with closing(MlflowLog({"model.hidden": 16}, {"run_name": "one"})) as log:
        SmallRun(tmp_path / "run", observer=log).trainer().fit()
    client = mlflow.MlflowClient(f"file:{tmp_path}/mlruns")
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.data.params) == ("one", {"model.hidden": "16"})
    for name in ("step/loss", "epoch/loss", "epoch/val_accuracy"):
        points = sorted((p.step, p.value) for p in client.get_metric_history(run.info.run_id, name))
        assert points == [(update, of[name]) for update, of in expected(tmp_path / "run") if name in of]
    assert mlflow.active_run() is None


@pytest.mark.long
def test_wandb_keeps_an_offline_run_of_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    monkeypatch.chdir(tmp_path)
    options = {"mode": "offline", "dir": str(tmp_path), "project": "test"}
    with closing(WandbLog({"model.hidden": 16}, options)) as log:
        run = wandb.run
        SmallRun(tmp_path / "run", observer=log).trainer().fit()
        assert run.config["model.hidden"] == 16
        summary = {name: run.summary[name] for name in ("epoch/loss", "epoch/val_accuracy")}
    for name, value in summary.items():  # wandb counts the last update in a thread of its own
        assert value in [of[name] for _, of in expected(tmp_path / "run") if name in of]
    assert wandb.run is None
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def curves(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def points(read: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read.Scalars(name)]


def test_curves_are_those_of_the_logs(tmp_path: Path) -> None:
    with closing(TensorBoard(tmp_path / "curves", 'graph = "toy"')) as observer:
        SmallRun(tmp_path, observer=observer).trainer().fit()
    read = curves(tmp_path / "curves")
    steps, epochs = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("steps.jsonl", "metrics.jsonl")
    )
    assert points(read, "step/loss") == [
        (number, pytest.approx(record["loss"], rel=1e-6)) for number, record in enumerate(steps, 1)
    ]
    for name in ("loss", "val_accuracy", "train_accuracy"):
        assert points(read, f"epoch/{name}") == [
            (record["step"], pytest.approx(record[name], rel=1e-6)) for record in epochs
        ]
    for stage in STAGES:
        assert [step for step, _ in points(read, f"seconds/{stage}")] == list(range(1, 3 * STEPS + 1))
    (text,) = read.Tensors("config/text_summary")
    assert b'graph = "toy"' in text.tensor_proto.string_val[0]


def test_a_run_that_continues_shows_every_update_once(tmp_path: Path) -> None:
    run = SmallRun(tmp_path)
    with closing(TensorBoard(tmp_path / "curves", "")) as observer:
        SmallRun(tmp_path, observer=observer).with_(epochs=2).trainer().fit()
        observer.stepped(2, 0, 9.0)  # an update after the last checkpoint: killed, and made again
    with closing(TensorBoard(tmp_path / "curves", "")) as observer:
        again = SmallRun(run.out, observer=observer).trainer()
        again.resume()
        again.fit()
    read = curves(tmp_path / "curves")
    assert [step for step, _ in points(read, "step/loss")] == list(range(1, 3 * STEPS + 1))
    assert 9.0 not in [loss for _, loss in points(read, "step/loss")]
    assert [step for step, _ in points(read, "epoch/loss")] == [5, 10, 15]


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    with closing(TensorBoard(tmp_path / "curves", "")) as observer:
        observer.started(1, 5)
    assert not (tmp_path / "curves").exists()


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tensorboard()
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "tensorboard")
    with pytest.raises(ValueError, match=r"not installed: pip install tensorboard$"):
        check_tensorboard()


# What ranks tell of their batches becomes lines of the logs.


COUNTS = {"collectives": 3, "seconds": 0.1234567891, "remote_rows": 10, "host_cache_rows": 4}


def test_a_step_has_a_number_per_rank_and_an_epoch_their_sums() -> None:
    told = torch.tensor([values_of(COUNTS), values_of({**COUNTS, "host_cache_rows": 1})], dtype=torch.float64)
    counted = of_ranks(COUNTS, told)
    assert counted == {
        "collectives": [3, 3],
        "host_cache_rows": [4, 1],
        "remote_rows": [10, 10],
        "seconds": [0.123457, 0.123457],
    }
    assert step_record({"waiting": [0.1, 0.2]}, counted) == {
        "seconds": {"waiting": [0.1, 0.2], "exchanging": [0.123457, 0.123457]},
        "traffic": {"collectives": [3, 3], "host_cache_rows": [4, 1], "remote_rows": [10, 10]},
    }
    epoch = summed(summed({}, counted), counted)
    assert epoch == {"collectives": 12, "host_cache_rows": 10, "remote_rows": 40}
    epoch["device_cache_rows"] = 2
    assert epoch_record(epoch) == {"traffic": {**epoch, "hit_rate": 0.3, "device_hit_rate": 0.05}}


def test_whole_numbers_are_whole() -> None:
    """A line says 3 and not 3.0."""
    counted = of_ranks({"collectives": 3}, torch.tensor([[3.0]], dtype=torch.float64))
    assert repr(counted["collectives"]) == "[3]"
    assert repr(summed({}, counted)) == "{'collectives': 3}"


def test_where_nothing_was_exchanged_nothing_is_said() -> None:
    counted = of_ranks({}, torch.empty(2, 0, dtype=torch.float64))
    assert step_record({"waiting": [0.1]}, counted) == {"seconds": {"waiting": [0.1]}}
    assert summed({}, counted) == {}
    assert epoch_record({}) == {}
    assert step_record({"waiting": [0.1]}, {"overflows": [1, 0]}) == {"seconds": {"waiting": [0.1]}}
    assert epoch_record({"overflows": 1}) == {"overflows": 1}


def test_without_rows_of_others_there_is_no_hit_rate() -> None:
    assert epoch_record({"remote_rows": 0, "host_cache_rows": 0}) == {
        "traffic": {"remote_rows": 0, "host_cache_rows": 0}
    }


def test_a_cache_of_a_whole_graph_has_the_rate_of_all_rows() -> None:
    counts = {"needed_rows": 40, "device_cache_rows": 10}
    counted = of_ranks(counts, torch.tensor([values_of(counts)], dtype=torch.float64))
    assert step_record({"waiting": [0.1]}, counted) == {
        "seconds": {"waiting": [0.1]},
        "traffic": {"device_cache_rows": [10], "needed_rows": [40]},
    }
    assert epoch_record(summed({}, counted)) == {"traffic": {**counts, "device_hit_rate": 0.25}}
