"""A run folder is new, is never overwritten and can be opened again."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import khop
from khop.cli.arguments import recorded_run
from khop.cli.run_folder import LAUNCH, new_run_folder, restarted_folder, write_config, write_whole
from khop.run.check import checked
from khop.run.read import RawRun
from khop.run.values import RunConfig


def run_of(**values: object) -> RunConfig:
    return checked(RawRun({"graph": "graphs/shop", **values}, "run.toml"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_runs_without_a_name_are_numbered() -> None:
    assert [new_run_folder(run_of()) for _ in range(3)] == [Path(f"runs/shop-{n}") for n in (1, 2, 3)]


def test_runs_that_start_together_get_folders_of_their_own() -> None:
    run = run_of()
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: new_run_folder(run), range(40)))
    assert sorted(folders) == sorted(Path(f"runs/shop-{n}") for n in range(1, 41))


def test_a_folder_that_is_asked_for_is_made_or_taken_if_empty() -> None:
    Path("empty").mkdir()
    assert new_run_folder(run_of(out="empty")) == Path("empty")
    assert new_run_folder(run_of(out="a/b")) == Path("a/b")
    assert Path("a/b").is_dir()


def test_a_restarted_attempt_takes_the_folder_of_its_launch_alone() -> None:
    for name, launch in (("ours", "job-7"), ("theirs", "job-6"), ("full", None), ("empty", None)):
        Path(name).mkdir()
        if launch is not None:
            Path(name, LAUNCH).write_text(launch)
    Path("full/metrics.jsonl").write_text("keep")
    found = {
        name: restarted_folder(run_of(out=name), "job-7") for name in ("ours", "theirs", "full", "empty")
    }
    assert found == {"ours": Path("ours"), "theirs": None, "full": None, "empty": None}


def test_an_existing_file_is_never_overwritten() -> None:
    Path("full").mkdir()
    Path("full/notes").write_text("keep")
    with pytest.raises(
        ValueError, match=r"^out is 'full': the folder is not empty; name another, or leave it out"
    ):
        new_run_folder(run_of(out="full"))
    with pytest.raises(ValueError, match=r"^out is 'full/notes': is a file; name another folder$"):
        new_run_folder(run_of(out="full/notes"))
    assert Path("full/notes").read_text() == "keep"


def test_the_config_in_the_folder_is_the_run_without_its_folder() -> None:
    run = run_of(out="a", training={"epochs": 3}, model={"layers": 2})
    write_config(new_run_folder(run), run)
    assert Path("a/config.toml").read_text().startswith(f"# khop {khop.__version__};")
    assert checked(recorded_run(Path("a"), ())) == run.model_copy(update={"out": None})
    assert [path.name for path in Path("a").iterdir()] == ["config.toml"]


def test_a_file_is_put_in_place_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_space(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:2])
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    Path("curve.png").write_bytes(b"old")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(Path, "write_bytes", out_of_space)
        with pytest.raises(OSError, match="No space left"):
            write_whole(Path("curve.png"), b"new picture")
    assert [(path.name, path.read_bytes()) for path in Path().iterdir()] == [("curve.png", b"old")]
    write_whole(Path("curve.png"), b"new picture")
    assert Path("curve.png").read_bytes() == b"new picture"


def test_a_folder_that_is_no_run_is_named() -> None:
    with pytest.raises(ValueError, match=r"^nowhere: not a run folder, it has no config\.toml; give"):
        recorded_run(Path("nowhere"), ())
