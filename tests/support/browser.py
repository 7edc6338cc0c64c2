"""A real browser without a window: Chromium, led through its driver by the WebDriver protocol."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NEEDS_BROWSER = pytest.mark.skipif(
    None in (shutil.which("chromium"), shutil.which("chromedriver")),
    reason="Chromium or its driver is not installed; make test-all installs both",
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_OVERFLOW = """
const room = document.documentElement.clientWidth;
const clips = e => ['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX);
const scrolls = e => e && (clips(e) || scrolls(e.parentElement));
const right = e => Math.round(e.getBoundingClientRect().right);
return [...document.body.querySelectorAll('*')]
  .filter(e => right(e) > room + 1 && e.getBoundingClientRect().width > 0
    && getComputedStyle(e).position !== 'fixed' && !scrolls(e.parentElement))
  .map(e => e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + right(e))
"""


class Browser:
    """One window of a browser."""

    def __init__(self, address: str) -> None:
        self._address = address

    def open(self, url: str) -> None:
        """Load a page and wait until it is complete."""
        self.call("url", url=url)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """Set the colors that the reader prefers: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def run(self, script: str) -> Any:  # noqa: ANN401
        """Return the result of a function's body in the page."""
        return self.call("execute/sync", script=script, args=[])

    def overflow(self) -> list[str]:
        """Return the elements that are wider than the page, and not in an element that scrolls."""
        wide = self.run("return document.documentElement.scrollWidth > document.documentElement.clientWidth")
        return [*(["the page scrolls sideways"] if wide else []), *self.run(_OVERFLOW)]

    def errors(self) -> list[str]:
        """Return the messages of the console since the last call."""
        return [entry["message"] for entry in self.call("se/log", type="browser")]

    def picture(self, path: Path, whole: bool = True) -> None:
        """Write a picture of the page as PNG."""
        shot = self._devtools("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, name: str, **values: object) -> Any:  # noqa: ANN401
        """Send a command of WebDriver."""
        return post(f"{self._address}/{name}", values)

    def _devtools(self, command: str, values: dict[str, object]) -> Any:  # noqa: ANN401
        return self.call("goog/cdp/execute", cmd=command, params=values)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Yield a browser with a new profile in an empty folder; it ends with the block."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    assert driver, "apt-get install chromium chromium-driver"
    assert chromium, "apt-get install chromium chromium-driver"
    command = [driver, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            port = next(
                found[1] for line in lines if (found := re.search(r"successfully on port (\d+)", line))
            )
            options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            address = f"http://127.0.0.1:{port}/session"
            session = post(address, {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            try:
                yield Browser(f"{address}/{session}")
            finally:
                urllib.request.urlopen(
                    urllib.request.Request(f"{address}/{session}", method="DELETE"), timeout=60
                )
        finally:
            process.terminate()


def post(address: str, values: dict[str, object]) -> Any:  # noqa: ANN401
    """Send JSON and return the value of the answer; RuntimeError with the driver's message."""
    body = json.dumps(values).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(error.read().decode()) from None
