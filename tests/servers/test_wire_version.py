"""Messages change together with their version, and another version is refused with one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import khop
from khop.api.partition import partition_graph
from khop.graph.features.store import Rows
from khop.servers.codec import VERSION
from khop.servers.errors import WrongVersion
from khop.servers.messages import CLIENT_REQUESTS, PART_REQUESTS
from support.dated_shop import write_dated_shop
from support.named_shop import write_named_shop
from support.server_processes import ENVIRONMENT, servers
from support.small_folders import write_learnable_graph
from support.small_typed_folders import write_typed_graph
from support.wire_fields import recorded_fields

RECORD = Path(__file__).with_name("wire.txt")
OTHER = VERSION - 1
OF_OTHER = f"""
import sys
import khop.servers.codec
khop.servers.codec.VERSION = {OTHER}
"""
SERVER = "from khop.cli.start import run; run()"


@pytest.mark.long
def test_fields_of_messages_change_with_the_version_alone(tmp_path: Path) -> None:
    """If this fails, raise VERSION in servers/codec.py, and write the fields anew as the message says."""
    typed = write_typed_graph(tmp_path / "typed", renumbered=True)
    dated, named = write_dated_shop(tmp_path / "dated"), write_named_shop(tmp_path / "named")
    parts = []
    for path in (typed, dated, named):
        partition_graph(path, tmp_path / f"{path.name}-2", 2, method="random")
        parts.append(tmp_path / f"{path.name}-2")
    found = [f"version {VERSION}", *sorted(recorded_fields([typed, dated, named], parts))]
    kinds = {*CLIENT_REQUESTS, *PART_REQUESTS}
    missing = [kind for kind in kinds if f"request {kind}.kind str" not in found]
    assert not missing  # in the record
    fresh = RECORD.with_suffix(".new")
    fresh.write_text("".join(f"{line}\n" for line in found))
    recorded = RECORD.read_text().splitlines()
    difference = sorted(set(recorded) ^ set(found))
    assert not difference, f"raise VERSION if it is that of {RECORD}, and rename {fresh} to it"
    fresh.unlink()


@contextmanager
def server_of_other_version(graph: Path) -> Iterator[str]:
    """Start a server that speaks another version of the messages; yield its address."""
    code = OF_OTHER + SERVER  # by -c, not PROGRAM: a fork has imported the version already
    words = [sys.executable, "-c", code, "serve", str(graph), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_a_server_of_another_version_is_refused_by_a_client(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")
    graph = write_learnable_graph(tmp_path / "graph")
    sentence = (
        rf"127.0.0.1:\d+ has version {OTHER} of wire, but this khop has version {VERSION}; install the "
        "same khop on clients and servers$"
    )
    with server_of_other_version(graph) as address:
        with pytest.raises(WrongVersion, match=sentence):
            khop.connect([address])
        words = [sys.executable, "-m", "khop", "servers", "status", address]
        status = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=False)
        assert status.returncode == 0, status.stderr  # counters need no messages


@pytest.mark.long
def test_one_server_of_another_version_among_several_ends_the_loop_with_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")
    graph = write_learnable_graph(tmp_path / "graph")
    with servers() as start, server_of_other_version(graph) as other:
        remote = khop.connect([start(graph).address, other], deadline=20)
        loader = khop.Loader(khop.NeighborSampler(remote, [2]), remote.split("train"), 8)
        with pytest.raises(WrongVersion, match=r"install the same khop on clients and servers$"):
            list(loader.epoch(0))


def test_a_request_in_another_version_is_refused_by_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")
    graph = write_learnable_graph(tmp_path / "graph")
    with servers() as start:
        remote = khop.connect([start(graph).address], deadline=20)
        monkeypatch.setattr("khop.servers.codec.VERSION", OTHER)
        sentence = (
            f"request: has message version {OTHER}, but this khop reads version {VERSION}; install "
            "the same khop on clients and servers"
        )
        with pytest.raises(WrongVersion, match=sentence):
            remote.features.gather({"item": Rows(torch.arange(2), ("x",))})
