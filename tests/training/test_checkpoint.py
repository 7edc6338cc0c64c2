"""A checkpoint brings back what was saved, bit for bit, or says what is wrong with it."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import khop
from khop.training.checkpoint import StateCopy, load_checkpoint, restore_model, restore_optimizer
from khop.training.replace_folder import (
    FILES,
    STATE,
    checked_state,
    encoded,
    existing_folder,
    read_files,
    replace_folder,
)
from support.commands import PROGRAM
from support.small_runs import sign_again


def network(width: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def trained(steps: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(steps)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.01)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.arange(8.0).reshape(4, 2)).square().sum().backward()
    optimizer.step()


def saved(folder: Path, steps: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = trained(steps)
    StateCopy.of(model, optimizer, {"epoch": steps}).write(folder)
    return model, optimizer


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_training_continues_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    model, optimizer = saved(tmp_path / "last")
    again = network()
    optimizer_again = torch.optim.Adam(again.parameters(), lr=9.0)

    checkpoint = load_checkpoint(tmp_path / "last")
    restore_model(again, checkpoint)
    restore_optimizer(again, optimizer_again, checkpoint)
    assert checkpoint.training == {"epoch": 3}
    assert_same(state_of(again), state_of(model))
    for _ in range(2):
        step(model, optimizer)
        step(again, optimizer_again)

    assert_same(state_of(again), state_of(model))
    assert optimizer_again.param_groups[0]["betas"] == (0.9, 0.999)
    assert optimizer_again.param_groups[0]["lr"] == 0.1


def test_parameter_groups_keep_their_settings(tmp_path: Path) -> None:
    def grouped(model: nn.Sequential, first: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            [{"params": model[2].parameters(), "lr": first}, {"params": model[0].parameters()}]
        )

    model = network()
    optimizer = grouped(model, 0.5)
    step(model, optimizer)
    StateCopy.of(model, optimizer, {}).write(tmp_path / "last")
    again = network()
    optimizer_again = grouped(again, 0.7)
    restore_model(again, load_checkpoint(tmp_path / "last"))
    restore_optimizer(again, optimizer_again, load_checkpoint(tmp_path / "last"))
    step(model, optimizer)
    step(again, optimizer_again)
    assert_same(state_of(again), state_of(model))
    assert [group["lr"] for group in optimizer_again.param_groups] == [0.5, 0.001]


def test_tied_weights_and_views_are_saved_each_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    StateCopy.of(model, torch.optim.Adam(model.parameters()), {}).write(tmp_path / "last")
    assert_same(dict(load_checkpoint(tmp_path / "last").model), state_of(model))


def test_a_checkpoint_is_safetensors_and_json_and_nothing_that_runs_code(tmp_path: Path) -> None:
    saved(tmp_path / "last")
    names = {path.name for path in (tmp_path / "last").iterdir()}
    assert names == {"model.safetensors", "optimizer.safetensors", "state.json"}
    assert json.loads((tmp_path / "last" / "state.json").read_text())["khop"] == khop.__version__


@pytest.mark.parametrize("limit", [0, 100, 1000])
def test_a_disk_that_is_full_leaves_the_checkpoint_before(tmp_path: Path, limit: int) -> None:
    before, _ = saved(tmp_path / "last", steps=1)
    model, optimizer = trained(steps=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(
            OSError, match="File too large: the checkpoint could not be written; the previous one"
        ):
            StateCopy.of(model, optimizer, {"epoch": 2}).write(tmp_path / "last")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    checkpoint = load_checkpoint(tmp_path / "last")
    assert checkpoint.training == {"epoch": 1}
    assert_same(dict(checkpoint.model), state_of(before))


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="last: no checkpoint exists; train first, or give another run folder"
    ):
        load_checkpoint(tmp_path / "last")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "last")
    (tmp_path / "last" / name).unlink()
    with pytest.raises(ValueError, match=f"{name}: missing from the checkpoint; use another checkpoint"):
        load_checkpoint(tmp_path / "last")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, name: str, share: float) -> None:
    saved(tmp_path / "last")
    path = tmp_path / "last" / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content.rstrip()) * share)])
    with pytest.raises(ValueError, match=f"{name}: cut short or damaged; use another checkpoint"):
        load_checkpoint(tmp_path / "last")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_flipped_bit_is_noticed(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "last")
    flip(tmp_path / "last" / name, -3, 2)
    with pytest.raises(ValueError, match=f"{name}: cut short or damaged"):
        load_checkpoint(tmp_path / "last")


def flip(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def accepted_flips(folder: Path, bits: Callable[[int], Iterable[int]]) -> list[tuple[int, int]]:
    """Positions and bits of state.json that can be flipped without an error that names it."""
    path = folder / "state.json"
    content = path.read_bytes()
    accepted = []
    for position in range(len(content)):
        for bit in bits(position):
            path.write_bytes(content)
            flip(path, position, bit)
            if not (problem_of(folder) or "").startswith(f"{path}: "):
                accepted.append((position, bit))
    return accepted


def problem_of(folder: Path) -> str | None:
    try:
        load_checkpoint(folder)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.long
def test_a_flip_anywhere_in_state_json_is_noticed(tmp_path: Path) -> None:
    """865 of 1,810 were accepted once, some of which changed the learning rate."""
    saved(tmp_path / "last")
    flips = random.Random(12)
    assert accepted_flips(tmp_path / "last", lambda _: [flips.randrange(8)]) == []


@pytest.mark.long
def test_every_flip_of_state_json_is_noticed(tmp_path: Path) -> None:
    saved(tmp_path / "last")
    assert accepted_flips(tmp_path / "last", lambda _: range(8)) == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_file_that_grew_is_named(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "last")
    with (tmp_path / "last" / name).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(ValueError, match=f"{name}: cut short or damaged"):
        load_checkpoint(tmp_path / "last")


@pytest.mark.core(1)
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_file_of_another_checkpoint_is_noticed(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "last", steps=2)
    saved(tmp_path / "other", steps=3)
    (tmp_path / "other" / name).replace(tmp_path / "last" / name)
    with pytest.raises(ValueError, match=r"\.safetensors: cut short or damaged"):
        load_checkpoint(tmp_path / "last")


def test_a_damaged_checkpoint_is_replaced_by_the_one_before_with_a_warning(tmp_path: Path) -> None:
    for steps in (1, 2, 3):
        model, optimizer = trained(steps)
        StateCopy.of(model, optimizer, {"epoch": steps}).write(tmp_path / "last", keep=3)
    flip(tmp_path / "last" / "model.safetensors", 40, 1)
    flip(tmp_path / "last-1" / "state.json", 200, 0)
    with pytest.warns(UserWarning, match="is used instead") as warned:
        checkpoint = load_checkpoint(tmp_path / "last")
    before = tmp_path / "last-2"
    assert [str(warning.message) for warning in warned] == [
        f"{tmp_path}/last/model.safetensors: cut short or damaged; {before} is used instead",
        f"{tmp_path}/last-1/state.json: cut short or damaged; {before} is used instead",
    ]
    assert warned[0].filename == __file__
    assert (checkpoint.training, checkpoint.folder) == ({"epoch": 1}, before)


def test_tensors_that_are_none_are_refused_though_their_checksum_is_right(tmp_path: Path) -> None:
    saved(tmp_path / "last")
    sign_again(tmp_path / "last", model=b"not a tensor" * 9)
    with pytest.raises(ValueError, match=r"model\.safetensors: cut short or damaged"):
        load_checkpoint(tmp_path / "last")


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "last")
    path = tmp_path / "last" / "state.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(ValueError, match=r"state\.json: format 3, but this version of khop reads format 2"):
        load_checkpoint(tmp_path / "last")


def test_a_state_without_a_digest_in_its_place_is_damaged(tmp_path: Path) -> None:
    saved(tmp_path / "last")
    path = tmp_path / "last" / "state.json"
    state = json.loads(path.read_text())
    for entries in (state, {name: state[name] for name in state if name != "digest"}):
        path.write_text(json.dumps(entries))  # in another layout: the digest is not where it has to be
        with pytest.raises(ValueError, match=r"state\.json: cut short or damaged"):
            load_checkpoint(tmp_path / "last")


@pytest.mark.core(2)
@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '"text"',
        "{}",
        '{"format": 2, "files": 3, "groups": [], "training": 1}',
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_state_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    saved(tmp_path / "last")
    (tmp_path / "last" / "state.json").write_text(content)
    with pytest.raises(ValueError, match=r"state\.json: cut short or damaged"):
        load_checkpoint(tmp_path / "last")


def test_a_model_of_other_shapes_is_refused_with_the_shapes(tmp_path: Path) -> None:
    saved(tmp_path / "last")
    checkpoint = load_checkpoint(tmp_path / "last")
    wider = network(5)
    before = state_of(wider)
    with pytest.raises(
        ValueError, match=r"different shapes 0\.weight is \(3, 2\) instead of \(5, 2\), .* and 3 more"
    ):
        restore_model(wider, checkpoint)
    assert_same(state_of(wider), before)


def test_a_model_of_other_names_is_refused_with_the_names(tmp_path: Path) -> None:
    saved(tmp_path / "last")
    checkpoint = load_checkpoint(tmp_path / "last")
    other = nn.ModuleDict({"0": nn.Linear(2, 3), "extra": nn.Linear(1, 1)})
    with pytest.raises(
        ValueError, match=r"missing keys extra\.weight, extra\.bias; unexpected keys 1\.bias, 1\.num"
    ):
        restore_model(other, checkpoint)


def test_an_optimizer_of_other_parameters_is_refused(tmp_path: Path) -> None:
    model, _ = saved(tmp_path / "last")
    checkpoint = load_checkpoint(tmp_path / "last")
    fewer = torch.optim.Adam(list(model.parameters())[:2])
    with pytest.raises(ValueError, match="the optimizer's parameters differ from the checkpoint's"):
        restore_optimizer(model, fewer, checkpoint)


def test_moments_of_other_shapes_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "last")
    checkpoint = load_checkpoint(tmp_path / "last")
    wider = network(5)
    with pytest.raises(ValueError, match=r"the optimizer's \S+/exp_avg\w* .*3.* does not fit any parameter"):
        restore_optimizer(wider, torch.optim.Adam(wider.parameters()), checkpoint)


def test_the_way_to_compute_updates_is_that_of_this_device(tmp_path: Path) -> None:
    model = network()
    fused = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    step(model, fused)
    StateCopy.of(model, fused, {}).write(tmp_path / "last")
    plain = torch.optim.Adam(model.parameters(), lr=9.0)
    restore_optimizer(model, plain, load_checkpoint(tmp_path / "last"))
    assert plain.param_groups[0]["fused"] is None
    assert plain.param_groups[0]["lr"] == 0.1
    step(model, plain)


@pytest.mark.long
@pytest.mark.parametrize("is_compiled", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("part", ["whole", "layer"])
def test_a_compiled_model_and_a_plain_one_load_each_others_checkpoints(
    tmp_path: Path, is_compiled: tuple[bool, bool], part: str
) -> None:
    def made(compiled: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network()
        if compiled and part == "layer":
            model[0] = torch.compile(model[0], backend="eager")  # type: ignore[assignment]
        elif compiled:
            model = torch.compile(model, backend="eager")  # type: ignore[assignment]
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    model, optimizer = made(is_compiled[0])
    step(model, optimizer)
    StateCopy.of(model, optimizer, {}).write(tmp_path / "last")
    checkpoint = load_checkpoint(tmp_path / "last")
    assert not any("_orig_mod" in name for name in (*checkpoint.model, *checkpoint.optimizer))
    again, optimizer_again = made(is_compiled[1])
    restore_model(again, checkpoint)
    restore_optimizer(again, optimizer_again, checkpoint)
    for each in ((model, optimizer), (again, optimizer_again)):
        step(*each)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


# A folder is replaced whole or not at all, whenever its writer dies.


OLD = {"a": b"old a", "b": b"old b", "c": b"old c"}
NEW = {"a": b"new a" * 10, "b": b"new b" * 10}

# A writer that SIGKILLs itself right before its n-th operation on the file system.
WRITER = """
import os, signal, sys
from pathlib import Path
from khop.training.replace_folder import replace_folder

folder, deadline = Path(sys.argv[1]), int(sys.argv[2])
operations = 0

def watch(event, arguments):
    global operations
    if event in {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}:
        operations += 1
        if operations == deadline:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
replace_folder(folder, {"a": b"new a" * 10, "b": b"new b" * 10})
"""


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in existing_folder(folder).iterdir()}


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """What a full disk is to a writer: an error in the middle of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_holds_exactly_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "last"
    for files in (OLD, NEW, {}):
        replace_folder(folder, files)
        assert held(folder) == files
        assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.long
def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    outcomes = []
    for deadline in range(1, 100):
        folder = tmp_path / str(deadline) / "last"
        replace_folder(folder, OLD)
        command = [*PROGRAM, WRITER, str(folder), str(deadline)]
        code = subprocess.run(command, check=False).returncode
        assert held(folder) in (OLD, NEW)
        outcomes.append(held(folder))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        replace_folder(folder, {"c": b"next"})  # what a dead writer left is in nobody's way
        assert held(folder) == {"c": b"next"}
        assert list(folder.parent.iterdir()) == [folder]
    assert code == 0
    assert len(outcomes) > 10
    assert outcomes == sorted(outcomes, key=lambda files: files == NEW)


def test_the_old_one_counts_while_the_new_one_is_not_in_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    replace_folder(folder, OLD)
    folder.rename(tmp_path / ".last.old")
    assert held(folder) == OLD
    replace_folder(folder, NEW)
    assert held(folder) == NEW


@pytest.mark.parametrize("limit", [0, 3, 49])
def test_a_disk_that_is_full_leaves_the_old_one(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "last"
    replace_folder(folder, OLD)
    with file_size_limit(limit), pytest.raises(OSError, match="File too large"):
        replace_folder(folder, NEW)
    assert held(folder) == OLD
    assert list(tmp_path.iterdir()) == [folder]


TENSORS = {"model.safetensors": b"weights", "optimizer.safetensors": b"moments"}
CONTENT = {"training": {"epoch": 3}, "groups": [{"params": ["a", "b"], "lr": 0.1}], "records": [{"loss": 1}]}


def written(folder: Path) -> dict[str, bytes]:
    for name, content in encoded(TENSORS, CONTENT).items():
        (folder / name).write_bytes(content)
    return read_files(folder)


def test_state_comes_back_as_it_was_encoded(tmp_path: Path) -> None:
    files = written(tmp_path)
    assert tuple(files) == FILES
    state = checked_state(tmp_path, files)
    assert {name: state[name] for name in CONTENT} == CONTENT


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, name: str) -> None:
    files = written(tmp_path)
    for at in range(len(files[name])):
        content = bytearray(files[name])
        content[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match=rf"{name}: (cut short or damaged|format)"):
            checked_state(tmp_path, files | {name: bytes(content)})


@pytest.mark.parametrize("state", [b"", b"[]", b"{}", b'{"format": 2}', b"[" * 100_000, b"\xff"])
def test_other_content_is_damage(tmp_path: Path, state: bytes) -> None:
    with pytest.raises(ValueError, match=r"state\.json: cut short or damaged"):
        checked_state(tmp_path, {**TENSORS, STATE: state})


def test_a_later_format_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format 9, but this version of khop reads format 2"):
        checked_state(tmp_path, {**TENSORS, STATE: b'{"format": 9}'})
    with pytest.raises(ValueError, match="no checkpoint exists"):
        read_files(tmp_path / "nowhere")
    written(tmp_path)
    (tmp_path / STATE).unlink()
    with pytest.raises(ValueError, match=r"state\.json: missing from the checkpoint"):
        read_files(tmp_path)
