"""Tokens, certificates and custom samplers of servers that are real processes."""

from __future__ import annotations

import importlib
import json
import pickle
import signal
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

import khop
from khop.api.serve import service_of
from khop.servers.access import Access, Address, CallContext, Limits, ServerSecurity, secret_of, write_token
from khop.servers.codec import VERSION, Plain, header
from khop.servers.errors import NotAllowed, Unauthenticated
from khop.servers.flight_client import connected
from khop.servers.flight_server import served
from khop.servers.request_handler import QueueLimits, RequestHandler
from support.byte_service import Trap
from support.certificates import Authority
from support.commands import free_port
from support.resolved_names import resolve
from support.same_samples import assert_same_epoch
from support.server_processes import Starts
from support.small_folders import write_learnable_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_learnable_graph(tmp_path_factory.mktemp("graph") / "shop", nodes=2000)


def loader_of(graph: khop.Graph, sampler: khop.SamplerBase | None = None) -> khop.Loader:
    sampler = sampler or khop.NeighborSampler(graph, fanouts=[6, 4])
    return khop.Loader(sampler, graph.split("train"), 256, columns=["x"], seed_columns=["category"])


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[khop.Batch]:
    return list(loader_of(khop.open_graph(folder)))


OWN = """
from dataclasses import dataclass

import torch
import khop


@dataclass(frozen=True)
class First(khop.RuleBase):
    'The first edges of each row.'

    def reference(self, request):
        begin, end = request.rows.bounds(request.csc)
        counts = (end - begin).clamp(max=request.fanout)
        places = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return request.neighbors(counts, begin.repeat_interleave(counts) + places)


class Wider(khop.SamplerBase):
    def __init__(self, graph, fanouts, rule, factor):
        super().__init__(graph)
        self.arguments = {"fanouts": fanouts, "rule": rule, "factor": factor}
        self.inner = khop.NeighborSampler(graph, [factor * fanout for fanout in fanouts], rule=rule)

    @property
    def num_layers(self):
        return self.inner.num_layers

    def settings(self):
        return self.arguments

    def sample(self, seeds, key):
        return self.inner.sample(seeds, key)
"""


def test_a_sampler_and_a_rule_of_a_module_make_batches_on_a_server(
    folder: Path, start: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_draws.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "own_draws", ModuleType("own_draws"))  # gone after the test
    del sys.modules["own_draws"]
    own = importlib.import_module("own_draws")
    server = start(folder, "--module", tmp_path / "own_draws.py")
    here, there = khop.open_graph(folder), khop.connect([server.address], deadline=20)
    expected = list(loader_of(here, khop.NeighborSampler(here, [6, 4], rule=own.First())))
    uniform = loader_of(here, khop.NeighborSampler(here, [6, 4])).batch(0, 0)
    assert not torch.equal(uniform.sample.nodes["item"], expected[0].sample.nodes["item"])
    for sampler in (
        khop.NeighborSampler(there, [6, 4], rule=own.First()),
        own.Wider(there, [3, 2], own.First(), 2),
    ):
        assert_same_epoch(list(loader_of(there, sampler)), expected)


def test_a_server_of_a_graph_unpickles_nothing(folder: Path, tmp_path: Path) -> None:
    """A pickle may be a request, its header, in a field, behind the header, or sent in pieces."""
    trap = pickle.dumps(Trap(tmp_path / "trace"))
    head = struct.pack("<4sIQ", b"khop", VERSION, len(trap)) + trap
    fields: dict[str, Plain] = {"kind": "batch", "settings": trap.decode("latin1")}
    messages = [trap, head, header(fields, []), header(fields, []) + trap, trap + bytes(1 << 20)]
    handler = RequestHandler(service_of(folder), QueueLimits())
    server = served(handler, Address("127.0.0.1", 0), ServerSecurity())
    address = f"127.0.0.1:{server.port}"
    pool = connected([address], Access(), Limits(20, 10))
    try:
        for message in messages:
            with pytest.raises(ValueError, match="request"):
                pool.ask(CallContext("batch"), message, list)
        assert len(list(loader_of(khop.connect([address])).epoch(0))) > 0
    finally:
        pool.close()
        server.shutdown()
    assert not (tmp_path / "trace").exists()
    pickle.loads(trap)
    assert (tmp_path / "trace").exists()


@pytest.mark.long
def test_a_token_reads_the_graphs_that_it_lists(
    folder: Path, expected: list[khop.Batch], start: Starts, tmp_path: Path
) -> None:
    alice, bob, metrics = tmp_path / "alice", tmp_path / "bob", free_port()
    write_token(alice, ["shop"])
    write_token(bob, ["fraud"])
    server = start(folder, "--token-file", alice, "--token-file", bob, "--metrics", str(metrics))
    assert_same_epoch(list(loader_of(khop.connect([server.address], token_file=alice)).epoch(0)), expected)
    with pytest.raises(NotAllowed, match="graph 'shop': token 'bob' may read fraud"):
        khop.connect([server.address], token_file=bob)
    with pytest.raises(Unauthenticated):
        khop.connect([server.address])
    with pytest.raises(subprocess.CalledProcessError) as refused:
        server.status("--token-file", bob)
    status = server.status("--token-file", alice)
    assert int(str(status["answers"])) == len(expected)
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
        shown = [json.dumps(status), refused.value.stdout, refused.value.stderr, answer.read().decode()]
    assert f"khop_bytes_total {status['bytes']}\n" in shown[-1]
    arguments = Path(f"/proc/{server.process.pid}/cmdline").read_text()
    server.send(signal.SIGTERM)
    shown += [arguments, *server.process.communicate(timeout=60)]
    assert "shutting down" in shown[-1]
    for secret in (secret_of(alice), secret_of(bob)):
        assert not any(secret in text for text in shown)


@pytest.mark.long
def test_a_server_that_wants_certificates_of_clients_serves_those_of_its_authority_alone(
    folder: Path,
    expected: list[khop.Batch],
    start: Starts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client refuses a certificate of another authority or for another name, before it sends its token."""
    home, other = Authority.of(tmp_path / "home"), Authority.of(tmp_path / "other", "other")
    own, client, stranger = home.signed("server"), home.signed("client"), other.signed("stranger")
    token = tmp_path / "alice"
    write_token(token)
    tls = ("--tls-cert", own.cert, "--tls-key", own.key, "--client-ca", home.pair.cert, "--token-file", token)
    server = start(folder, *tls)

    def connected_with(**files: Path) -> khop.Graph:
        return khop.connect([server.address], token_file=token, ca=home.pair.cert, deadline=20, **files)

    assert_same_epoch(
        list(loader_of(connected_with(client_cert=client.cert, client_key=client.key)).epoch(0)), expected
    )
    with pytest.raises(Unauthenticated, match="client_cert"):
        connected_with()
    with pytest.raises(Unauthenticated, match="client_cert"):
        connected_with(client_cert=stranger.cert, client_key=stranger.key)
    with pytest.raises(Unauthenticated, match=r"its certificate is not trusted .*; give the CA"):
        khop.connect([server.address], token_file=token, ca=other.pair.cert, deadline=600)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        server.status("--token-file", token, "--ca", other.pair.cert)
    (sentence,) = refused.value.stderr.splitlines()
    assert f"{server.address}: its certificate is not trusted" in sentence
    resolve(monkeypatch, "graphs.test", ["127.0.0.1"])
    with pytest.raises(Unauthenticated, match=r"mismatch.*; .* connect with a name in the certificate"):
        khop.connect([f"graphs.test:{server.port}"], token_file=token, ca=home.pair.cert, deadline=600)
