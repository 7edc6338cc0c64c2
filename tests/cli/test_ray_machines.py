"""Addresses of servers in a cluster of Ray, by a stand-in for Ray."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from khop.cli.commands.shared import ServeOptions
from khop.cli.server_process import ServeRequest
from khop.servers.access import Address, ServerSecurity

REQUEST = ServeRequest(Path("shop"), Address("0.0.0.0", 7311), None, ServerSecurity(), ServeOptions())
Cluster = Callable[..., ModuleType]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yield a function that imports `serve_on_ray` in a cluster, by machines that are alive or not."""

    def imported(*alive: bool) -> ModuleType:
        ray, util, exceptions = (ModuleType(name) for name in ("ray", "ray.util", "ray.exceptions"))
        vars(util)["get_node_ip_address"] = lambda: "10.0.0.6"
        vars(exceptions).update(ActorDiedError=type("ActorDiedError", (Exception,), {}))
        vars(exceptions).update(RayError=type("RayError", (Exception,), {}))
        vars(ray).update(util=util, exceptions=exceptions, nodes=lambda: [{"Alive": each} for each in alive])
        for module in (ray, util, exceptions):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.delitem(sys.modules, "khop.cli.serve_on_ray", raising=False)
        return importlib.import_module("khop.cli.serve_on_ray")

    yield imported
    sys.modules.pop("khop.cli.serve_on_ray", None)


@dataclass
class Server:
    """A server in a process of Ray that ends at once when it is asked to."""

    kind: type
    dropped: bool

    def __post_init__(self) -> None:
        self.drain = self.state = self

    def remote(self) -> object:
        return self.kind(1, "10.0.0.6:7311", has_ended=True, dropped=self.dropped)


@pytest.mark.parametrize("dropped", [(False, False), (False, True)])
def test_a_server_that_dropped_requests_is_known_at_the_end(
    cluster: Cluster, dropped: tuple[bool, ...]
) -> None:
    module = cluster(True)
    vars(module.ray).update(wait=lambda asked, **_: (asked, []), get=lambda state: state)
    running = module.State(1, "10.0.0.6:7311")
    replicas = [
        module._Replica(number, Server(module.State, each), None, state=running)
        for number, each in enumerate(dropped)
    ]
    assert module._drain(replicas) == (not any(dropped))


def listening(host: str) -> ServeRequest:
    return replace(REQUEST, listen=Address(host, 7312))


@pytest.mark.parametrize(
    ("host", "expected"),
    [("0.0.0.0", "10.0.0.6"), ("::", "10.0.0.6"), ("127.0.0.1", "127.0.0.1"), ("10.0.0.5", "10.0.0.5")],
)
def test_any_address_becomes_that_of_the_machine_on_the_same_port(
    cluster: Cluster, host: str, expected: str
) -> None:
    found = cluster(True)._on_this_machine(listening(host))
    assert found == listening(expected)


@pytest.mark.parametrize("alive", [(True,), (True, False, False)], ids=["one", "one of three"])
def test_a_cluster_of_one_machine_may_listen_on_the_loopback(
    cluster: Cluster, alive: tuple[bool, ...]
) -> None:
    cluster(*alive)._check_machines([listening("127.0.0.1")])


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_several_machines_may_listen_on_any_address(cluster: Cluster, host: str) -> None:
    cluster(True, True)._check_machines([listening(host)])


def test_several_machines_may_not_listen_on_the_loopback(cluster: Cluster) -> None:
    sentence = r"has 2 machines, and servers on 127\.0\.0\.1 are reached .*; give --listen 0\.0\.0\.0:PORT"
    with pytest.raises(ValueError, match=sentence):
        cluster(True, False, True)._check_machines([listening("127.0.0.1")])
