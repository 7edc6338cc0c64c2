"""`python -m support.start_probe`: a process that says how it was started."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings


def state() -> dict[str, object]:
    """Return what a program can see of its start."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
    return {
        "argv": sys.argv[1:],
        "name": __name__,
        "spec": __spec__.name if __spec__ else None,
        "path": sys.path[:2],
        "cwd": os.getcwd(),
        "variable": os.environ.get("KHOP_PROBE"),
        "environ": sorted(os.environ),
        "is_child": os.getppid() == int(os.environ["KHOP_PARENT"]),
        "is_leader": os.getsid(0) == os.getpid(),
        "is_group_of_parent": os.getpgid(0) == os.getpgid(os.getppid()),
        "signals": [str(signal.getsignal(number)) for number in numbers],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "files": sorted(os.listdir("/proc/self/fd"))[:3],
        "stdin": sys.stdin.read(),
        "encodings": [sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors],
        "warnings": [str(each[:1] + each[2:3]) for each in warnings.filters if each[2] is UserWarning],
        "options": sys.warnoptions,
        "threads": len(os.listdir("/proc/self/task")),
        "is_torch_loaded": "torch" in sys.modules,
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["wait"]:
        print("ready", flush=True)
        time.sleep(60)
    if sys.argv[1:] == ["spawn"]:  # with the lowest file descriptors as its pipes
        from khop.distributed.processes.spawning import RankProcess  # imports torch

        child = RankProcess(target=print, args=("spawned",))
        child.start()
        child.join()
        sys.exit(child.exitcode)
    print(json.dumps(state()))
    print("to stderr", file=sys.stderr)
    sys.exit(3)
