"""Scripts that use ordered results in unusual ways; each needs a function `results(count, prefetch)`."""

from __future__ import annotations

from textwrap import dedent

from support.scripts import run_script

# The script ends while results are left.
LEFT_OPEN = """
open_results = results(1000, 4)
next(open_results)
print("the end")
"""
# Results are consumed after the main thread has ended.
OUTLIVES = """
import threading, time

def consume():
    for result in results(8, 2):
        time.sleep(0.2)
    print("all of", result + 1)

threading.Thread(target=consume).start()
"""
# The next result is requested after the threads that make results have ended.
LATE = """
import threading, time
from khop.errors import PeerLost

late = results(8, 1)

def comes_late():
    while any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        time.sleep(0.01)
    try:
        list(late)
    except PeerLost as error:
        print(error)

first = threading.Thread(target=next, args=(late,))
first.start()
first.join()
threading.Thread(target=comes_late).start()
"""


def printed(setup: str, script: str) -> str:
    """Return the output of a script after `setup`; it must end well and print no error."""
    done = run_script(dedent(setup) + script)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()
