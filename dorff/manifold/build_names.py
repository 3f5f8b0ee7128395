"""Which files that are cut by shard have a part of which shard, turned about: by shard, some shards at a time.

As many names as there are files times shards are never held at once, nor are they in one file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from dorff.manifold.build_files import IntArray
from dorff.manifold.build_spec import BuildTask, GraphSpec

CUTS: Final = "cuts"  # the stage whose only file says, in part 0, which shard each file of names begins with
MOST: Final = 2**20  # names in a file, and those of one shard more


def cuts_of(spec: GraphSpec, files: Iterable[BuildTask], part: int, count: int) -> IntArray:
    """The first shard of each file of names, of `count` shards that are named, ascending, in this part of files."""
    held = np.zeros(count, np.int64)
    for one in files:
        held[spec.numbers(one, part)[0]] += 1
    block = (np.cumsum(held) - held) // MOST
    return np.append(0, np.flatnonzero(np.diff(block)) + 1)


def turned(
    spec: GraphSpec, task: BuildTask, files: Iterable[BuildTask], part: int, first: int, count: int
) -> tuple[list[npt.NDArray[np.int64]], IntArray]:
    """What a file of names holds: of each shard (k, 2) the number of a file that names it and its part there, from
    `first` on; and the shards that are named at all."""
    cuts = np.append(spec.numbers(BuildTask(CUTS, task.generation, 0), 0)[0], count)
    start, stop = cuts[task.number : task.number + 2]
    rows = [np.empty((0, 3), np.int64)]
    for one in files:
        names = spec.numbers(one, part)[0]
        a, b = np.searchsorted(names, (start, stop))
        if a < b:
            rows.append(np.column_stack([names[a:b], np.full(b - a, one.number), first + np.arange(a, b)]))
    table = np.concatenate(rows)
    table = table[np.argsort(table[:, 0], kind="stable")]
    parts = np.split(table[:, 1:].astype("<i8"), np.searchsorted(table[:, 0], np.arange(start + 1, stop)))
    return parts, np.unique(table[:, 0])


def naming(spec: GraphSpec, stage: str, generation: int, shard: int) -> list[tuple[int, int]]:
    """The files that name a shard, and the part of each, as the files of names of this stage say. DamagedError."""
    cuts = spec.numbers(BuildTask(CUTS, generation, 0), 0)[0]
    block = int(np.searchsorted(cuts, shard, "right")) - 1
    names = spec.numbers(BuildTask(stage, generation, block), shard - int(cuts[block]))[0]
    return [(number, part) for number, part in names.reshape(-1, 2).tolist()]
