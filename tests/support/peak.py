"""The most anonymous memory that some work adds to a process of its own."""

from __future__ import annotations

import subprocess
import sys

# VmHWM counts pages of files too, and those are the system's to drop.
WATCH = """
import sys, threading, torch, khop
torch.set_num_threads(1)
def anonymous():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) * 1024
{before}
most, done = [0], threading.Event()
def watch():
    while not done.wait(0.002):
        most[0] = max(most[0], anonymous())
begun = anonymous()
watcher = threading.Thread(target=watch)
watcher.start()
{work}
done.set()
watcher.join()
print(most[0] - begun)
"""


def peak_bytes(work: str, *arguments: object, before: str = "") -> int:
    """Run lines of Python, with `arguments` as sys.argv[1:]; `before` runs first and does not count."""
    script = WATCH.format(work=work, before=before)
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])
