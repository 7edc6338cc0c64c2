"""Network interfaces, and the name of a machine."""

from __future__ import annotations

from cli.doctor.support import by_name
from khop.cli.doctor.findings import FindingState, network
from khop.distributed.processes.launchers import LOOPBACK, Interface


def test_interfaces_say_what_they_are_for() -> None:
    among = [LOOPBACK, Interface("eth0", "10.0.0.5"), Interface("eth1", "8.8.8.8")]
    found = by_name(network(among, "localhost"))
    assert "--interface eth0" in found["eth0"].found
    assert "--allow-public" in found["eth1"].found
    assert found["host name"].state is FindingState.OK
    lost = by_name(network(among, "no-such-host.invalid"))["host name"]
    assert (lost.state, lost.remedy) == (
        FindingState.WRONG, 'echo "10.0.0.5 no-such-host.invalid" | sudo tee -a /etc/hosts',
    )  # fmt: skip
    assert by_name(network([LOOPBACK], "x"))["other machines"].state is FindingState.NOTE
    assert by_name(network(among[1:], "localhost"))["loopback"].state is FindingState.WRONG
