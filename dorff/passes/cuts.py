"""How rows are cut: leaves, the units of work, and blocks, what is featurized at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np

# A leaf's rows: about 0.8 s of `syrk` for the first, within bounds; overheads are a few hundredths of that.
LEAF_FLOPS: Final = 4e10
SMALLEST_LEAF, LARGE_FIRST_LEAF, LARGEST_LEAF = 2**14, 2**17, 2**18
GROW_AGAIN: Final = 4096  # from this number on, so that 10^12 rows are some 2 10^5 leaves


@final
@dataclass(frozen=True)
class Leaf:
    """Rows start..stop-1: a run of whole shards, the unit of work. One that is not `full` is cut short by the first
    row of the data or by the last."""

    number: int
    start: int
    stop: int
    full: bool = True


def leaf_bounds(n: int, shard_rows: int, width: int, first: int = 0) -> tuple[Leaf, ...]:
    """Cut rows first..n-1 into leaves of whole shards.

    A leaf's bounds depend on its number, the shard size and the width alone: small first, so that small data spread
    over workers, then growing with the number. Leaves that end before row `first` are left out, the others keep their
    numbers.
    """
    return tuple(
        Leaf(number, max(start, first), min(stop, n), full=first <= start and stop <= n)
        for number, (start, stop) in enumerate(_spans(n, shard_rows, width))
        if stop > first
    )


def window_start(n: int, wanted: int, shard_rows: int, width: int) -> int:
    """The row that a window of the last `wanted` of n rows begins with: the first of a leaf, so that the window slides
    by whole leaves; it holds `wanted` rows at least, or all there are."""
    return max((start for start, _ in _spans(n, shard_rows, width) if start <= n - wanted), default=0)


def _spans(n: int, shard_rows: int, width: int) -> Iterator[tuple[int, int]]:
    """The first row of each leaf and that of the next, up to row n."""
    base = min(max(LEAF_FLOPS / width**2, SMALLEST_LEAF), LARGE_FIRST_LEAF)
    start, number = 0, 0
    while start < n:
        rows = min(base * (1 + number / 16), LARGEST_LEAF) * max(1.0, number / GROW_AGAIN)
        stop = start + max(1, round(rows / shard_rows)) * shard_rows
        yield start, stop
        start, number = stop, number + 1


def block_rows(width: int) -> int:
    """Rows featurized at a time: a buffer of about 16 MiB, within 256..2048 rows."""
    return int(np.clip(2**21 // width // 256 * 256, 256, 2048))


def product_rows(width: int) -> int:
    """Rows featurized at a time for products: a buffer of 16 MiB that stays in the last cache, within 8..2048 rows."""
    return int(np.clip(2**21 // width // 8 * 8, 8, 2048))


def most_sums(leaves: int, workers: int) -> int:
    """The most sums that are on the disk while those of so many leaves are added up, besides the level that is kept:
    each of two tasks a worker that are under way, however late, keeps those beside its path up the tree waiting, and
    the two that it adds; each worker writes one."""
    tasks, levels = min(2 * workers, leaves), leaves.bit_length()
    return min(2 * leaves, levels + tasks * (levels - tasks.bit_length() + 2)) + workers
