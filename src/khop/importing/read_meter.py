"""Progress of an import: rows that are read, then bytes that are written, with one total."""

from __future__ import annotations

from threading import Lock

from khop.graph.progress import Meter, ProgressCallback

ROW_BYTES = 16  # a row takes about as long to read as these bytes take to sort and write


class ReadMeter:
    """Rows that threads read, reported in the thread that asks for them."""

    def __init__(self, notice: ProgressCallback) -> None:
        self.meter = Meter(0, notice)
        self._what = ""
        self._rows = 0
        self._lock = Lock()
        self._is_over = False

    def expect(self, rows: int, bytes_to_write: int) -> None:
        """Set the total from the rows of all passes over tables and an estimate of the bytes to write."""
        self.meter.total = rows * ROW_BYTES + bytes_to_write

    def begin(self, what: str) -> None:
        """Report `what` as the current table."""
        self._what = what
        self.meter.at(what)

    def read(self, rows: int) -> None:
        """Count rows, on any thread."""
        with self._lock:
            self._rows += rows

    def report(self) -> None:
        """Report the rows that were read since the last report."""
        with self._lock:
            rows, self._rows = self._rows, 0
        if rows and not self._is_over:
            more = min(rows * ROW_BYTES, max(0, self.meter.total - self.meter.done))  # rows may be estimated
            self.meter.at(self._what, more)

    def end(self, bytes_to_write: int) -> Meter:
        """Return the meter for the bytes to write, which are known when all edges are read."""
        self._is_over = True
        self.meter.total = self.meter.done + bytes_to_write
        return self.meter
