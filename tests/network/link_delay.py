"""Carries packets between the TUN interfaces of two network namespaces, each after the same while.

    python link_delay.py INTERFACE SECONDS NAMESPACE NAMESPACE

Runs until it is killed. It stands for `tc qdisc ... netem delay` on kernels that are built without netem.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time
from collections import deque
from fcntl import ioctl
from pathlib import Path

_SET_INTERFACE = 0x400454CA  # TUNSETIFF
_TUN, _NO_HEADER = 0x0001, 0x1000
_NETWORK = 0x40000000  # CLONE_NEWNET
_LARGEST = 1 << 16


def opened(interface: str, namespace: str) -> int:
    """The interface's other side: what the namespace sends is read from it, what is written arrives there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as place:
        if libc.setns(place.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    ioctl(descriptor, _SET_INTERFACE, struct.pack("16sH", interface.encode(), _TUN | _NO_HEADER))
    return descriptor


def forward(ends: list[int], delay_s: float) -> None:
    """Carry packets both ways, for ever."""
    waiting: deque[tuple[float, int, bytes]] = deque()  # due at, to, the packet: all wait equally long
    other = dict(zip(ends, reversed(ends), strict=True))
    while True:
        rest = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(ends, [], [], rest)
        now = time.monotonic()
        for end in readable:
            try:
                waiting.append((now + delay_s, other[end], os.read(end, _LARGEST)))
            except OSError:  # the link is down; packets are lost then
                time.sleep(0.001)
        while waiting and waiting[0][0] <= now:
            _, to, packet = waiting.popleft()
            try:
                os.write(to, packet)
            except OSError:  # down, or its queue is full: lost, as on any network
                continue


if __name__ == "__main__":
    interface, delay_s, *namespaces = sys.argv[1:]
    ends = [opened(interface, namespace) for namespace in namespaces]
    print("forwarding", flush=True)
    forward(ends, float(delay_s))
