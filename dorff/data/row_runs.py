"""Runs of row numbers: which rows of a store were dropped, or lie in a source.

A run is (first, one past the last). Runs are in order and apart, so that a set of many
rows takes little memory where they lie together.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt

Runs = tuple[tuple[int, int], ...]
"""Runs of rows, (first, one past the last), in order and apart."""

MAX_RUNS: Final = 100_000
"""Runs of dropped rows that a store's metadata may list."""


def merge_runs(*parts: Sequence[Sequence[int]]) -> Runs:
    """Return the union of runs of rows."""
    merged: list[tuple[int, int]] = []
    for first, stop in sorted((int(a), int(b)) for runs in parts for a, b in runs):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif first < stop:
            merged.append((first, stop))
    return tuple(merged)


def subtract_runs(first: int, stop: int, runs: Runs) -> Runs:
    """Return the rows first..stop-1 that are in none of the runs."""
    left, start = [], first
    for begin, end in runs:
        if start < min(begin, stop):
            left.append((start, min(begin, stop)))
        start = max(start, end)
    if start < stop:
        left.append((start, stop))
    return tuple(left)


def mark_rows(runs: Runs, start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Return which of the rows start..stop-1 are in the runs."""
    marked = np.zeros(stop - start, dtype=bool)
    for first, end in clip_runs(runs, start, stop):
        marked[first - start : end - start] = True
    return marked


def clip_runs(runs: Runs, start: int, stop: int) -> Runs:
    """Return the parts of the runs that are in start..stop-1.

    There may be many runs, and one call for each block of rows: a bisection finds them.
    """
    begin = bisect_right(runs, start, key=itemgetter(1))
    end = bisect_left(runs, stop, key=itemgetter(0))
    near = runs[begin:end]
    return tuple((max(first, start), min(last, stop)) for first, last in near)


def count_rows(runs: Runs) -> int:
    """Return how many rows the runs have."""
    return sum(stop - first for first, stop in runs)


def iterate_runs(runs: Runs, step: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the runs, cut at multiples of `step`."""
    for first, stop in runs:
        start = first
        while start < stop:
            end = min(stop, (start // step + 1) * step)
            yield start, end
            start = end
