"""Servers of the parts of a graph as real processes: their batches, and what happens when one is gone."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

import khop
from khop.api.partition import partition_graph
from khop.errors import PeerLost
from khop.servers.access import Role, write_token
from khop.servers.errors import MachineFailed, ServerError
from support.commands import free_port
from support.same_samples import assert_same_epoch
from support.server_processes import Server, Starts, servers, until_lost
from support.small_folders import write_learnable_graph


@dataclass
class Parts:
    """Servers of two parts, on ports that are known beforehand."""

    folder: Path
    start: Starts
    addresses: tuple[str, str]
    running: list[Server] = field(default_factory=list)

    @property
    def token(self) -> Path:
        return self.folder.parent / "between"

    def started(
        self, part: int, *, at: int | None = None, folder: str = "shop-2", ask_by: str = "between"
    ) -> Server:
        """Start a server of a part, at the address of a part, that asks others by some token."""
        home = self.folder.parent
        listed = ", ".join(f'["{address}"]' for address in self.addresses)
        owners = home / f"owners-{ask_by}.toml"
        owners.write_text(f'parts = [{listed}]\ntoken_file = "{ask_by}"\n')
        tokens = ["--token-file", self.token, "--token-file", home / "alice"]
        words = ["--part", str(part), "--owners", owners, *tokens]
        return self.start(home / folder, *words, listen=self.addresses[part if at is None else at])

    def loader(self, *, attempt: float = 5.0, deadline: float = 30.0, servers: int = 2) -> khop.Loader:
        alice = self.folder.parent / "alice"
        addresses = self.addresses[:servers]
        return loader_of(khop.connect(addresses, token_file=alice, attempt=attempt, deadline=deadline))


def loader_of(graph: khop.Graph) -> khop.Loader:
    sampler = khop.NeighborSampler(graph, fanouts=[5, 3])
    return khop.Loader(
        sampler, graph.split("train"), 64, shuffle=True, columns=["x"], seed_columns=["category"]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("graph")
    whole = write_learnable_graph(home / "whole", nodes=2000)
    partition_graph(whole, home / "shop-2", 2)
    partition_graph(whole, home / "other-2", 2, method="random")
    write_token(home / "between", role=Role.SERVER)
    write_token(home / "alice")
    write_token(home / "stranger", role=Role.SERVER)
    return home / "shop-2"


@pytest.fixture
def parts(folder: Path) -> Iterator[Parts]:
    with servers() as start:
        yield Parts(folder, start, (f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[khop.Batch]:
    return list(loader_of(khop.open_graph(folder)).epoch(0))


@pytest.mark.long
def test_the_owner_of_a_part_is_killed_and_comes_back(parts: Parts, expected: list[khop.Batch]) -> None:
    parts.running = [parts.started(0), parts.started(1)]
    found = []
    with ThreadPoolExecutor(1) as background:  # batches after the kill may need the part before one comes
        for batch in parts.loader(attempt=20.0, deadline=240.0).epoch(0):
            found.append(batch)
            if batch.step == 5:
                parts.running[1].kill()
                again = background.submit(lambda: (time.sleep(0.5), parts.started(1))[1])
        parts.running[1] = again.result()
    assert_same_epoch(found, expected)
    assert {batch.traffic["server"] for batch in found} == {0, 1}


@pytest.mark.long
def test_the_owner_of_a_part_is_replaced_under_load_without_a_lost_batch(
    parts: Parts, expected: list[khop.Batch]
) -> None:
    """SIGTERM: it finishes what it has begun, while the other server and two clients need its part."""
    parts.running = [parts.started(0), parts.started(1)]

    def replaced() -> Server:
        parts.running[1].send(signal.SIGTERM)
        assert parts.running[1].process.wait(60) == 0
        return parts.started(1)

    found: list[list[khop.Batch]] = [[], []]
    with ThreadPoolExecutor(3) as background:
        other = background.submit(lambda: list(parts.loader(attempt=20.0, deadline=240.0).epoch(0)))
        for batch in parts.loader(attempt=20.0, deadline=240.0).epoch(0):
            found[0].append(batch)
            if batch.step == 5:
                again = background.submit(replaced)
        found[1] = other.result()
        parts.running[1] = again.result()
    for batches in found:
        assert_same_epoch(batches, expected)
    assert_same_epoch(list(parts.loader().epoch(0)), expected)
    assert int(str(parts.running[1].status("--token-file", parts.token)["service_hop"])) > 0


@pytest.mark.long
def test_two_owners_of_a_part_share_its_requests_and_replace_each_other(
    parts: Parts, expected: list[khop.Batch], tmp_path: Path
) -> None:
    first, others = parts.addresses[0], [parts.addresses[1], f"127.0.0.1:{free_port()}"]
    owners = tmp_path / "owners.toml"
    owners.write_text(f"parts = [['{first}'], {others}]\ntoken_file = '{parts.token}'\n")
    words = ("--owners", owners, "--token-file", parts.token)
    parts.start(parts.folder, "--part", "0", *words, listen=first)
    running = [parts.start(parts.folder, "--part", "1", *words, listen=address) for address in others]
    loader, found = loader_of(khop.connect([first], token_file=parts.token, deadline=60.0)), []
    answers = []
    for batch in loader.epoch(0):
        found.append(batch)
        if batch.step == 5:
            answers = [int(str(each.status("--token-file", parts.token)["answers"])) for each in running]
            running[0].kill()
    assert_same_epoch(found, expected)
    assert min(answers) > 5
    assert sum(batch.traffic["server_retries"] for batch in found) == 0  # the client noticed nothing


@pytest.mark.long
def test_all_owners_of_a_part_gone_is_an_error_that_names_them(parts: Parts) -> None:
    parts.running = [parts.started(0), parts.started(1)]
    batches = parts.loader(attempt=2.0, deadline=6.0).epoch(0)
    step = next(batches).step
    parts.running[1].kill()
    began, lost = time.monotonic(), list[PeerLost]()
    for batch in until_lost(batches, lost):
        step, began = batch.step, time.monotonic()
    # The promise is exact under the clock of test_pool.py; these processes share two cores with other tests.
    assert time.monotonic() - began <= 6.0 + 2.0 + 20.0
    for words in ("part 1", *parts.addresses, "--resume", f"epoch 0, step {step + 1}"):
        assert words in str(lost[0])


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "second", "error", "words"),
    [
        ({"ask_by": "alice"}, {}, MachineFailed, 'only tokens with `role = "server"`'),
        ({"ask_by": "stranger"}, {}, MachineFailed, "the request has a wrong token"),
        ({}, {"folder": "other-2"}, MachineFailed, "start all servers with parts of one partitioned graph"),
        (
            {},
            {"part": 0},
            MachineFailed,
            "the server has part 0, and owners.toml names it as an owner of part 1",
        ),
    ],
    ids=["token of a client", "wrong token", "another partitioning", "another part"],
)
def test_a_server_that_does_not_fit_is_refused_with_a_sentence(
    parts: Parts,
    first: dict[str, str],
    second: dict[str, Any],
    error: type[ServerError],
    words: str,
) -> None:
    parts.started(0, **first)
    parts.started(**{"part": 1, "at": 1, **second})
    with pytest.raises(error, match=re.escape(words)) as refused:
        parts.loader(servers=1).batch(0, 0)
    assert f"part 1 ({parts.addresses[1]})" in str(refused.value)
