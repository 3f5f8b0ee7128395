"""How rows are cut: leaves, the units of work, and blocks, what is featurized at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

# A leaf's rows: about 0.8 s of `syrk` for the first, within bounds; overheads are a few hundredths of that.
LEAF_FLOPS: Final = 4e10
SMALLEST_LEAF, LARGE_FIRST_LEAF, LARGEST_LEAF = 2**14, 2**17, 2**18


@final
@dataclass(frozen=True)
class Leaf:
    """Rows start..stop-1: a run of whole shards, the unit of work."""

    number: int
    start: int
    stop: int


def leaf_bounds(n: int, shard_rows: int, width: int) -> tuple[Leaf, ...]:
    """Cut n rows into leaves of whole shards. A leaf's bounds depend on its number, the shard size and the width
    alone: small first, so that small data spread over workers, then growing with the number."""
    base = min(max(LEAF_FLOPS / width**2, SMALLEST_LEAF), LARGE_FIRST_LEAF)
    leaves, start, number = [], 0, 0
    while start < n:
        rows = min(base * (1 + number / 16), LARGEST_LEAF)
        stop = start + max(1, round(rows / shard_rows)) * shard_rows
        leaves.append(Leaf(number, start, min(stop, n)))
        start, number = stop, number + 1
    return tuple(leaves)


def block_rows(width: int) -> int:
    """Rows featurized at a time: a buffer of about 16 MiB, within 256..2048 rows."""
    return int(np.clip(2**21 // width // 256 * 256, 256, 2048))
