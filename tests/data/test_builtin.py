"""The graphs that come with khop."""

from __future__ import annotations

import subprocess
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from khop.api.open_graph import open_graph
from khop.data import builtin
from khop.data.builtin import SNAPSHOT, builtin_folder, builtin_names
from khop.data.debian.graph import EDGE_TYPES, LINKED, SECTIONS, UNITED
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.verify import verify_folder
from support.commands import PROGRAM

DATA = files("khop.data.debian") / SNAPSHOT
# As docs/debian.md says.
NODES = {"package": 63_436, "virtual": 34_689, "source": 34_169, "maintainer": 2_115, "tag": 598}
LINKS = 590_602
SPLITS = {"train": 38_061, "val": 12_687, "test": 12_688}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def plain(cache: Path) -> GraphFolder:
    return open_folder(builtin_folder("debian", cache))


@pytest.fixture(scope="module")
def typed(cache: Path) -> GraphFolder:
    return open_folder(builtin_folder("debian-typed", cache))


def test_the_plain_graph_has_one_node_type_one_symmetric_edge_type_features_and_a_label(
    plain: GraphFolder,
) -> None:
    assert plain.schema.node_types == ("package",)
    assert plain.schema.edge_types == (LINKED,)
    assert plain.schema.reverse_of == {LINKED: LINKED}
    assert plain.num_nodes("package") == NODES["package"]
    assert plain.num_edges(LINKED) == LINKS
    assert plain.schema.column("package", "x").shape == (512,)
    assert plain.schema.column("package", "section").num_classes == len(SECTIONS) == 58


def test_every_section_has_packages_and_every_package_a_section_and_a_word(plain: GraphFolder) -> None:
    columns = plain.columns()["package"]
    assert columns["section"].bincount().min() > 0
    assert columns["section"].bincount().numel() == 58
    assert columns["x"].sum(dim=1).min() > 0


def test_packages_are_linked_where_one_relation_of_the_typed_graph_joins_them(
    plain: GraphFolder, typed: GraphFolder
) -> None:
    count = plain.num_nodes("package")
    united = [_edges(typed, ("package", relation, "package")) for relation in UNITED]
    sources, destinations = torch.cat(united, dim=1)
    both = torch.cat([sources * count + destinations, destinations * count + sources]).unique()
    sources, destinations = _edges(plain, LINKED)
    assert torch.equal((sources * count + destinations).sort().values, both)


def test_the_typed_graph_has_every_type_each_with_its_reverse(typed: GraphFolder) -> None:
    assert {node_type: typed.num_nodes(node_type) for node_type in typed.schema.node_types} == NODES
    forward = set(EDGE_TYPES)
    for edge_type, reverse in typed.schema.reverse_of.items():
        assert (edge_type in forward) != (reverse in forward)
    assert set(typed.schema.reverse_of) == set(typed.schema.edge_types) > forward


def test_both_graphs_have_the_same_packages_and_splits(plain: GraphFolder, typed: GraphFolder) -> None:
    for column in ("x", "section"):
        assert torch.equal(plain.columns()["package"][column], typed.columns()["package"][column])
    for split, count in SPLITS.items():
        ids = plain.split(split)["package"]
        assert torch.equal(ids, typed.split(split)["package"])
        assert ids.numel() == count
    assert torch.cat([plain.split(split)["package"] for split in SPLITS]).unique().numel() == NODES["package"]


def test_the_split_is_fixed_for_good(plain: GraphFolder) -> None:
    digest = sha256(plain.split("test")["package"].numpy().tobytes()).hexdigest()
    assert digest == "2760c423e75c3df98c69d15f8ec1038643f91134217012e039ddd58ce030987b"


def test_the_graphs_pass_verification(plain: GraphFolder, typed: GraphFolder) -> None:
    assert verify_folder(plain.path) == []
    assert verify_folder(typed.path) == []


def test_a_second_use_finds_the_folder_and_writes_nothing(plain: GraphFolder, cache: Path) -> None:
    before = (plain.path / "graph.json").stat()
    assert builtin_folder("debian", cache, _refuse_notice) == plain.path
    assert (plain.path / "graph.json").stat() == before


def test_without_a_cache_folder_it_is_the_users(
    cache: Path, plain: GraphFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KHOP_CACHE", str(cache))
    assert builtin_folder("debian") == plain.path
    monkeypatch.delenv("KHOP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (cache / "khop").symlink_to(cache)
    assert builtin_folder("debian").name == plain.path.name


def test_a_built_in_graph_opens_by_its_name(
    cache: Path, plain: GraphFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KHOP_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    opened = open_graph("debian")
    assert opened.folder is not None
    assert opened.folder.path == plain.path
    (tmp_path / "debian").mkdir()
    with pytest.raises(ValueError, match=r"names both a built-in graph and a folder; give '\./debian'"):
        open_graph("debian")
    for folder in ("./debian", Path("debian")):
        with pytest.raises(ValueError, match="not a graph folder"):
            open_graph(folder)


@pytest.mark.long
def test_two_processes_at_once_both_get_the_graph(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from khop.data.builtin import builtin_folder\n"
        "print('ready', flush=True); input()\n"
        "print(builtin_folder('debian', pathlib.Path(sys.argv[1])))"
    )
    command = [*PROGRAM, program, str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert answers[0] == answers[1]
    assert verify_folder(Path(answers[0])) == []
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [Path(answers[0]).name]


def test_a_second_writer_uses_the_record_of_the_first(
    plain: GraphFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def overtaken(folder: Path, *_: object) -> Path:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(plain.path)
        raise ValueError(f"{folder}: was written by another process at the same time")

    monkeypatch.setattr(builtin, "write_debian", overtaken)
    assert open_folder(builtin_folder("debian", tmp_path)).fingerprint == plain.fingerprint


def test_a_graph_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builtin, "write_debian", _refuse_graph)
    with pytest.raises(ValueError, match="no such graph"):
        builtin_folder("debian", tmp_path)


def test_a_damaged_snapshot_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builtin, "SNAPSHOT_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"debian\.npz: checksum differs .* Install khop again"):
        builtin_folder("debian", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="built-in graph 'ubuntu': there are debian, debian-typed"):
        builtin_folder("ubuntu", tmp_path)
    assert builtin_names() == ("debian", "debian-typed")


def test_the_snapshot_is_small() -> None:
    assert len(DATA.read_bytes()) <= 4_000_000


def _edges(folder: GraphFolder, edge_type: tuple[str, str, str]) -> torch.Tensor:
    csc = folder.csc(edge_type)
    destinations = torch.repeat_interleave(csc.indptr.diff())
    return torch.stack([csc.indices.long(), destinations])


def _refuse_graph(*_: object) -> Path:
    raise ValueError("no such graph")


def _refuse_notice(what: str, done: int, total: int) -> None:
    raise AssertionError(f"writes {what}")
