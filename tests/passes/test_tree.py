"""The merge tree on real files: what a change of the data costs; and always the bits of a fresh pass."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import final

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff.data import Dataset, open_dataset
from dorff.engine import SerialEngine, Task
from dorff.kernels.scalar import FloatArray
from dorff.moments import Moments
from dorff.passes import Leaf, Pass, PassSums, Tree, leaf_bounds, load_pass
from dorff.passes import blocks as leaf_sizes
from dorff.passes.blocks import window_start
from dorff.plan import freeze_constants, make_plan
from dorff.spec.job import Job
from dorff.store import Receipt
from tests.cases import LAW

SHARD = 32
WIDTH = 8 + 1 + 1
_times = count(1)


@pytest.fixture(autouse=True, scope="module")
def one_shard_a_leaf() -> Iterable[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SMALLEST_LEAF", "LARGE_FIRST_LEAF", "LARGEST_LEAF"):
            patch.setattr(leaf_sizes, name, SHARD)
        yield


@final
class World:
    """A store that changes, the state of its fits, and what they cost."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rng = folder, np.random.default_rng(3)
        self.store = folder / "rows.zarr"
        group = zarr.open_group(str(self.store), mode="w")
        for name in "xy":
            group.create_array(name, shape=(0, 1), chunks=(SHARD, 1), dtype="float64", compressors=None)
        self.append(rows)
        job = Job.model_validate({
            "data": {"store": str(self.store)},
            "features": {"count": 8, "sampler": {"type": "orthogonal"}}, "solve": {"ridge": 1e-6},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}},
            "state": str(folder / "state"), "model": str(folder / "model"), "cluster": {"type": "serial"},
        })  # fmt: skip
        self.this = freeze_constants(make_plan(job))
        self.first = 0

    @property
    def n(self) -> int:
        return self.dataset.n

    @property
    def dataset(self) -> Dataset:
        return open_dataset(self.store)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return leaf_bounds(self.n, SHARD, WIDTH, self.first)

    def append(self, rows: int) -> None:
        group = zarr.open_group(str(self.store))
        for name in "xy":
            array = group[name]
            assert isinstance(array, zarr.Array)
            n = array.shape[0]
            array.resize((n + rows, 1))
            array[n:] = self.rng.standard_normal((rows, 1))
        for number in range(n // SHARD, -(-(n + rows) // SHARD)):
            self.touch(number)

    def touch(self, shard: int) -> None:
        """A time of change that no file had before: those of the disk may be the same for two changes."""
        for name in "xy":
            now = 10**18 + next(_times) * 10**9
            os.utime(self.store / name / "c" / str(shard) / "0", ns=(now, now))

    def rewrite(self, shard: int) -> None:
        array = zarr.open_group(str(self.store))["y"]
        assert isinstance(array, zarr.Array)
        stop = min((shard + 1) * SHARD, array.shape[0])
        array[shard * SHARD : stop] = self.rng.standard_normal((stop - shard * SHARD, 1))
        self.touch(shard)

    def tree(self, *, kept: int, this: Pass | None = None) -> Tree:
        return Tree(PassSums.at(this or self.this), self.dataset, self.leaves, kept=kept)

    def fit(self, *, kept: int) -> tuple[FloatArray, list[int]]:
        """The sums, and the leaves computed for them."""
        tree = self.tree(kept=kept)
        found = bits(tree)
        tree.tidy()
        return found, sorted(tree.computed)

    def fresh(self) -> FloatArray:
        """The sums of the same plan and rows, from nothing."""
        place = self.folder / "fresh" / self.this.directory.name  # which is part of what its files say they are
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name in ("plan.json", "arrays.npz"):
            shutil.copy(self.this.directory / name, place)
        return bits(self.tree(kept=-1, this=load_pass(place, self.this.hash)))

    @property
    def nodes(self) -> list[Path]:
        return sorted((self.this.directory / "nodes").glob("*.moments"))

    def receipt(self, number: int) -> Path:
        return self.this.receipts / f"{number:06d}.json"


def run(tree: Tree, *, shuffle: int | None = None) -> list[Task]:
    ran: list[Task] = []

    def done(task: Task, result: Receipt | bool) -> Sequence[Task]:
        ran.append(task)
        return tree.done(task, result)

    SerialEngine(shuffle=shuffle).run(tree.start(), done)
    return ran


def bits(tree: Tree) -> FloatArray:
    """Runs the tree; every number of its total."""
    for _ in range(3):
        run(tree)
        if (total := tree.total(Moments)) is not None:
            (sums,) = total.values()
            assert not tree.missing() and sums.n == sum(one.stop - one.start for one in tree.receipts.values())
            return np.concatenate([piece.copy() for piece in sums.pieces()])
    raise AssertionError("sums were missing three times")


def test_leaves_grow_small_first_then_again() -> None:
    """10^9 rows in less than 10^4 / 2 leaves, 10^12 in some 2 10^5; bounds do not depend on n."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SMALLEST_LEAF", 2**14), ("LARGE_FIRST_LEAF", 2**17), ("LARGEST_LEAF", 2**18)):
            patch.setattr(leaf_sizes, name, value)
        billion, trillion = leaf_bounds(10**9, 1000, 2**14), leaf_bounds(10**12, 16384, 2**14)
        million = leaf_bounds(10**6, 1000, 2**14)
    assert million[:-1] == billion[: len(million) - 1]
    assert 3800 < len(billion) < 4096 and 150_000 < len(trillion) < 250_000
    for leaves in (billion, trillion):
        sizes = [leaf.stop - leaf.start for leaf in leaves[:-1]]
        assert sizes == sorted(sizes) and all(a.stop == b.start for a, b in pairwise(leaves))
        assert leaves[0].start == 0 and all(leaf.full for leaf in leaves[:-1]) and not leaves[-1].full


def test_a_window_keeps_numbers_and_bounds() -> None:
    whole = leaf_bounds(1000, SHARD, WIDTH)
    assert leaf_bounds(1000, SHARD, WIDTH, 10 * SHARD) == whole[10:]
    cut = leaf_bounds(1000, SHARD, WIDTH, 10 * SHARD + 5)
    assert cut[0] == replace(whole[10], start=10 * SHARD + 5, full=False) and cut[1:] == whole[11:]
    assert leaf_bounds(40, SHARD, WIDTH, 33) == (Leaf(1, 33, 40, full=False),)
    assert leaf_bounds(64, SHARD, WIDTH)[-1].full


@given(n=st.integers(1, 2000), wanted=st.integers(1, 2500))
@LAW
def test_a_window_starts_with_the_leaf_of_its_first_row(n: int, wanted: int) -> None:
    start = window_start(n, wanted, SHARD, WIDTH)
    leaves = leaf_bounds(n, SHARD, WIDTH, start)
    assert leaves[0].start == start and (start == 0 if wanted >= n else leaves[0].start <= n - wanted < leaves[0].stop)
    assert all(leaf.full for leaf in leaves[:-1])


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[Leaf]], Tree]:
    """Trees of which nothing is asked but their shape."""
    world = World(tmp_path_factory.mktemp("unread"), 5)
    return lambda leaves: Tree(PassSums.at(world.this), world.dataset, leaves, kept=0)


@given(first=st.integers(0, 900), n=st.integers(1, 1000))
@LAW
def test_roots_cover_each_leaf_once_and_are_as_large_as_can_be(
    unread: Callable[[Sequence[Leaf]], Tree], first: int, n: int
) -> None:
    leaves = leaf_bounds(n, SHARD, WIDTH, min(first, n - 1))
    roots = unread(leaves).roots()
    covered = [number for level, index in roots for number in range(index << level, (index + 1) << level)]
    assert covered == [leaf.number for leaf in leaves]
    cut = {leaf.number for leaf in leaves if not leaf.full}
    assert all((0, number) in roots for number in cut)
    full = [node for node in roots if node[0] or node[1] not in cut]
    assert not any(a[0] == b[0] and a[1] // 2 == b[1] // 2 for a, b in pairwise(full)), "two roots that are one node"
    assert len(full) <= 2 * len(leaves).bit_length()


KEPT = (-1, 0, 1, 2)


@pytest.mark.parametrize("kept", KEPT)
def test_an_append_costs_the_new_leaves_and_the_last_one_if_it_was_partly_filled(kept: int, tmp_path: Path) -> None:
    world = World(tmp_path, 5 * SHARD + 7)
    assert world.fit(kept=kept)[1] == [0, 1, 2, 3, 4, 5]
    for rows, computed in ((9, [5]), (2 * SHARD - 16, [5, 6]), (3 * SHARD, [7, 8, 9]), (1, [10]), (SHARD, [10, 11])):
        world.append(rows)
        found, fresh = world.fit(kept=kept)
        assert fresh == computed and np.array_equal(found, world.fresh())
    assert world.fit(kept=kept)[1] == []


@pytest.mark.parametrize("kept", KEPT)
def test_a_window_slides_by_leaving_leaves_out(kept: int, tmp_path: Path) -> None:
    """Bitwise a fresh pass over its rows; what it costs is what the sums that are kept hold of leaves left behind."""
    world = World(tmp_path, 11 * SHARD)
    world.fit(kept=kept)
    most = {-1: 16, 0: 0, 1: 1, 2: 3}[kept]
    for first in (1, 2, 5, 6):
        world.first = first * SHARD
        world.append(SHARD)
        found, fresh = world.fit(kept=kept)
        new = world.n // SHARD - 1
        assert fresh[-1] == new and len(fresh) - 1 <= most and np.array_equal(found, world.fresh())
        assert all(int(path.stem) >= first for path in world.this.receipts.glob("*.json"))
    world.first += 5
    assert world.fit(kept=kept)[1][0] == 6 and np.array_equal(world.fit(kept=kept)[0], world.fresh())


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("way", ["deleted receipt", "damaged receipt", "touched shard"])
def test_a_lost_receipt_or_a_touched_shard_costs_one_leaf(kept: int, way: str, tmp_path: Path) -> None:
    world = World(tmp_path, 7 * SHARD + 3)
    before, _ = world.fit(kept=kept)
    nodes = world.nodes
    for number in (2, 4, 7):
        if way == "deleted receipt":
            world.receipt(number).unlink()
        elif way == "damaged receipt":
            world.receipt(number).write_bytes(world.receipt(number).read_bytes()[:-9])
        else:
            world.touch(number)
    tree = world.tree(kept=kept)
    assert [leaf.number for leaf in tree.missing()] == [2, 4, 7]
    tags = [task.tag for task in run(tree)]
    assert sorted(tags) == [(0, 2), (0, 4), (0, 7)] and not tree.rewritten and not tree.missing()
    assert np.array_equal(bits(tree), before)
    tree.tidy()
    assert world.nodes == nodes


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("lost", [False, True])
def test_a_rewritten_shard_costs_its_node_and_is_reported(kept: int, lost: bool, tmp_path: Path) -> None:
    world = World(tmp_path, 9 * SHARD + 3)
    before, _ = world.fit(kept=kept)
    world.rewrite(5)
    world.touch(1)
    if lost:
        world.receipt(6).unlink()
    tree = world.tree(kept=kept)
    found = bits(tree)
    node = {-1: range(8), 0: [5], 1: [4, 5], 2: [4, 5, 6, 7]}[kept]
    assert tree.computed == {1, 5, *node, *([6] if lost else [])} and tree.rewritten == {5}
    assert not np.array_equal(found, before) and np.array_equal(found, world.fresh())
    tree.tidy()
    assert len(world.nodes) == len({*tree.roots(), *((kept, index) for index in range(9 >> max(kept, 0)) if kept >= 0)})


def test_all_receipts_gone_or_all_files_touched_is_a_whole_pass(tmp_path: Path) -> None:
    """And no more is on the disk meanwhile than in the first one: sums are merged as they come."""
    world = World(tmp_path, 16 * SHARD)
    before, _ = world.fit(kept=2)
    for number in range(16):
        world.touch(number)
    tree, most = world.tree(kept=2), 0

    def done(task: Task, result: Receipt | bool) -> Sequence[Task]:
        nonlocal most
        most = max(most, len(world.nodes))
        return tree.done(task, result)

    SerialEngine().run(tree.start(), done)
    assert len(tree.computed) == 16 and not tree.rewritten and np.array_equal(bits(tree), before)
    assert most <= 4 + 1 + 3 + 3


def test_another_level_kept_loses_nothing(tmp_path: Path) -> None:
    """The planner chooses it by the disk that is free; from one fit to the next it may be another."""
    world = World(tmp_path, 8 * SHARD)
    world.fit(kept=2)
    for kept in (0, 1, 2, 0):
        world.append(SHARD)
        found, fresh = world.fit(kept=kept)
        assert len(fresh) == 1 and np.array_equal(found, world.fresh())
    world.rewrite(3)
    found, fresh = world.fit(kept=1)
    assert set(fresh) <= {0, 1, 2, 3} and np.array_equal(found, world.fresh())


def test_rows_that_change_while_they_are_read_are_read_again(tmp_path: Path) -> None:
    world = World(tmp_path, 6 * SHARD + 5)
    tree = world.tree(kept=1)
    before = bits(tree)
    assert tree.revalidate() == []
    world.rewrite(2)
    world.touch(4)
    assert tree.revalidate() == [2, 4] and [leaf.number for leaf in tree.missing()] == [2, 4]
    found = bits(tree)
    assert tree.rewritten == {2} and not np.array_equal(found, before) and np.array_equal(found, world.fresh())
    assert tree.revalidate() == [] and world.fit(kept=1)[1] == []


def test_what_a_zombie_writes_late_changes_nothing(tmp_path: Path) -> None:
    """Its files of rows since rewritten, or of a leaf since merged; its receipts over newer ones."""
    world = World(tmp_path, 8 * SHARD)
    run(world.tree(kept=0))
    late = {path: path.read_bytes() for path in [*world.nodes, *world.this.receipts.glob("*.json")]}
    world.rewrite(3)
    world.append(5)
    world.fit(kept=0)
    clean = world.nodes
    for path, content in late.items():
        path.write_bytes(content)
    found, fresh = world.fit(kept=0)
    assert fresh == [3] and np.array_equal(found, world.fresh()) and world.nodes == clean
    merged = world.folder / "merged"
    other = World(merged, 4 * SHARD)
    run(other.tree(kept=0))
    leaf = other.nodes[1]
    name, content = leaf.name, leaf.read_bytes()
    other.fit(kept=2)
    leaf.with_name(name).write_bytes(content)
    assert other.fit(kept=2)[1] == [] and leaf not in other.nodes


@pytest.mark.parametrize("kept", KEPT)
def test_the_order_does_not_matter_and_no_task_runs_twice(kept: int, tmp_path: Path) -> None:
    world = World(tmp_path, 13 * SHARD + 1)
    world.fit(kept=kept)
    for number in (0, 3, 4, 5, 6, 7, 12):
        world.receipt(number).unlink()
    world.rewrite(9)
    kept_files = {path: path.read_bytes() for path in world.this.directory.rglob("*") if path.is_file()}
    fresh = world.fresh()
    for seed in range(2):
        shutil.rmtree(world.this.directory)
        for path, content in kept_files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        tree = world.tree(kept=kept)
        tags = [task.tag for task in run(tree, shuffle=seed)]
        assert len(tags) == len(set(tags)) and tree.rewritten == {9}
        assert np.array_equal(bits(tree), fresh)


def test_tidy_leaves_what_a_running_writer_needs_and_removes_where_leaves_stopped(tmp_path: Path) -> None:
    world = World(tmp_path, 3 * SHARD)
    stopped = world.this.directory / "checkpoints" / "000001.json"
    stopped.parent.mkdir(parents=True)
    stopped.write_text("{}")
    world.fit(kept=1)
    half = world.nodes[0].with_name(f".x.{0:032x}")  # another writer may be at it
    half.write_bytes(b"")
    world.fit(kept=1)
    assert not stopped.exists() and half.exists()


ACTIONS = ("append", "rewrite", "touch", "lose receipt", "old receipt", "lose node", "damage node", "slide", "level")


@given(st.lists(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 99)), max_size=5), min_size=1, max_size=3))
@settings(LAW, max_examples=12)
def test_whatever_happens_the_bits_are_those_of_a_fresh_pass(
    tmp_path_factory: pytest.TempPathFactory, nights: list[list[tuple[str, int]]]
) -> None:
    world, kept = World(tmp_path_factory.mktemp("law"), 5 * SHARD + 3), 1
    receipts: dict[Path, bytes] = {}
    world.fit(kept=kept)
    for night in nights:
        rewritten: set[int] = set()
        for action, at in night:
            kept = at % 4 - 1 if action == "level" else kept
            happens(world, action, at, receipts, rewritten)
        receipts |= {path: path.read_bytes() for path in world.this.receipts.glob("*.json")}
        tree = world.tree(kept=kept)
        known = set(tree.receipts)
        assert np.array_equal(bits(tree), world.fresh())
        assert tree.rewritten <= rewritten and not rewritten & known
        tree.tidy()
        assert world.tree(kept=kept).missing() == [] and tree.revalidate() == []


def happens(world: World, action: str, at: int, receipts: dict[Path, bytes], rewritten: set[int]) -> None:
    """One thing that befalls a store or a state; `at` says where."""
    first, last = world.leaves[0].number, world.leaves[-1].number
    number, nodes = first + at % (last + 1 - first), world.nodes
    if action == "append":
        world.append(1 + at % 70)
    elif action == "rewrite":
        world.rewrite(number)
        rewritten.add(number)
    elif action == "touch":
        world.touch(number)
    elif action == "lose receipt":
        world.receipt(number).unlink(missing_ok=True)
    elif action == "old receipt" and receipts:
        path = sorted(receipts)[at % len(receipts)]
        path.write_bytes(receipts[path])
    elif action == "slide":
        world.first = number * SHARD + at % 2 * 5 * (number < last)
    elif nodes and action == "lose node":
        nodes[at % len(nodes)].unlink()
    elif nodes and action == "damage node":
        raw = bytearray(nodes[at % len(nodes)].read_bytes())
        raw[at * len(raw) // 100] ^= 1
        nodes[at % len(nodes)].write_bytes(raw)
