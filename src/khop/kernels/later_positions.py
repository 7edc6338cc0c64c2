"""Binary search for times in ranges of a sorted array."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


def later_positions(
    time_at: Callable[[Int64s], Int64s], begins: Int64s, ends: Int64s, times: Int64s
) -> Int64s:
    """Return the first position of each range with a later time than the given one, or the range's end.

    `time_at` gives the times of positions; they ascend in each range. It is called about log2 of the longest
    range times, once where all given times are later than the times of their ranges, as in a log.
    """
    low, high = begins.copy(), ends.copy()
    active = np.flatnonzero(low < high)
    is_last = time_at(high[active] - 1) <= times[active]
    low[active[is_last]] = high[active[is_last]]
    active = active[~is_last]
    while len(active):
        middle = (low[active] + high[active]) // 2
        is_later = time_at(middle) > times[active]
        high[active[is_later]] = middle[is_later]
        low[active[~is_later]] = middle[~is_later] + 1
        active = active[low[active] < high[active]]
    return low
