"""How many sums of a tree are on the disk at once, whatever order its tasks end in, against what the plan counts."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from pass_specs import spec_of

from dorff.engine import Task
from dorff.passes import FoldRule, Leaf, PassSums, Tree
from dorff.passes.blocks import most_sums
from dorff.passes.frozen import Place
from dorff.passes.leaf import merge_nodes
from dorff.plan import costs
from dorff.spec.job import Job
from dorff.store import Receipt


class Rows:
    """Rows that never change."""

    path = "rows"

    def stamp(self, start: int, stop: int) -> str:
        return f"{start} {stop}"


def most_files(place: Place, leaves: int, kept: int, workers: int, *, late: int, merges: bool, seed: int) -> int:
    """The most files there are, half written ones among them, two tasks a worker being under way: `late` leaves, far
    from one another, or all `merges`, end after all others, which end in a random order."""
    rng, nodes, rows = np.random.default_rng(seed), place.directory / "nodes", Rows()
    nodes.mkdir()
    tree = Tree(PassSums.at(place), rows, [Leaf(number, number, number + 1) for number in range(leaves)], kept=kept)
    last = {(0, int(number)) for number in np.linspace(0, leaves - 1, late + 2)[1:-1]}
    waiting, running, most = deque(tree.start()), list[Task](), 0
    while waiting or running:
        while waiting and len(running) < 2 * workers:
            running.append(waiting.popleft())
        slow = [task.tag in last or (merges and task.function is merge_nodes) for task in running]
        early = np.flatnonzero(~np.array(slow)) if not all(slow) else [0]
        task = running.pop(int(rng.choice(early)))
        result: Receipt | bool = True
        if task.function is merge_nodes:
            _left, _right, into, _kind = task.arguments
            Path(into).touch()
        else:
            number = task.tag[1]
            result = Receipt(
                plan=place.hash, number=number, start=number, stop=number + 1, digest=f"{number:016x}",
                stamp=rows.stamp(number, number + 1), rows_used=1, rows_dropped=0, rows_read=1, low=(), high=(),
                seconds=0.0, syrk_seconds=0.0,
            )  # fmt: skip
            place.node(0, number, result.key).touch()
        most = max(most, len(os.listdir(nodes)) + min(len(running), workers - 1))
        waiting.extendleft(tree.done(task, result))
    assert not tree.missing()
    return most


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4, 16])
@pytest.mark.parametrize(
    ("leaves", "kept"), [(3, 0), (7, -1), (15, -1), (31, 1), (40, 2), (63, -1), (255, 5), (256, 8), (500, -1)]
)
def test_sums_on_the_disk_are_no_more_than_the_plan_counts(
    leaves: int, kept: int, workers: int, tmp_path: Path
) -> None:
    most = 0
    for run, (late, merges) in enumerate([(0, False), (0, False), (1, False), (2 * workers - 1, False), (0, True)]):
        (home := tmp_path / str(run)).mkdir()
        most = max(most, most_files(Place(home, "plan"), leaves, kept, workers, late=late, merges=merges, seed=run))
    held = leaves >> kept if kept >= 0 else 0
    assert most <= held + most_sums(leaves, workers)
    if leaves > 200:  # and not by being far above
        assert most_sums(leaves, workers) < 2.1 * (most - held)


@pytest.mark.parametrize(("by_rows", "workers"), [(False, 1), (True, 1), (True, 3)])
def test_sums_that_are_kept_take_a_quarter_of_the_free_disk_and_are_planned(
    by_rows: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves, width, patterns, folds = 1000, 100, 2, 3
    node = 4 * width * (width + 1) * patterns * folds
    job, levels = cast(Job, SimpleNamespace(state=".")), []
    for kept in (2000, 400, 100, 3):
        monkeypatch.setattr(costs, "free_bytes", lambda _path, free=4 * kept * node: free)
        spec = spec_of(folds=FoldRule(folds, by_rows))
        level, disk = costs._disk_bytes(job, leaves, spec, patterns, 4 * width * (width + 1), workers)
        least = node if by_rows else node * min(folds, 2**level) // folds
        assert (leaves >> level) <= kept < (leaves >> level - 1 if level else kept + 1)
        assert disk >= ((leaves >> level) + most_sums(leaves, workers)) * least
        levels.append(level)
    assert levels == [0, 2, 4, 8]
