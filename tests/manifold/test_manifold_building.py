"""Graphs built out of core: what is built, the same bits always, kills, damage, appended rows, graphs of users."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr
from cases import trig_map
from distributed import Client
from pass_specs import constants_of, spec_of

from dorff.data import Dataset, open_dataset
from dorff.data.edges import write_graph
from dorff.engine import Engine, SerialEngine, Task
from dorff.engine.base import Done
from dorff.engine.clusters import local_cluster
from dorff.engine.dask import DaskEngine
from dorff.errors import IncompleteError, InputError, LeaseError
from dorff.graphs import KNN, Given, Graph, Identity, local_graph, neighbours, own_scale
from dorff.graphs.neighbourhood import check_edges, edge_weights
from dorff.kernels.scalar import FloatArray
from dorff.manifold import build_edges, build_knn, build_spec
from dorff.manifold.build_knn import _landmarks
from dorff.manifold.build_spec import (
    BuildTask,
    _cuts,
    _kind,
    _table,
    load_layout,
    load_spec,
    packed,
    read_parts,
    write_parts,
)
from dorff.manifold.building import NEAREST, build
from dorff.manifold.leaves import Shards, _degrees, _record
from dorff.passes import Pass
from dorff.plan import graph_sizes
from dorff.plan.graph_sizes import Sizes
from dorff.store import Lease

SMALL = Sizes(partition_rows=64, input_bytes=8 * 3 * 256, shard_rows=50, edge_run=100)
CHUNK = 32


@final
class World:
    """A store of rows, a pass that scales them, and a folder for graphs."""

    def __init__(self, folder: Path, X: FloatArray, *, nan: str = "refuse") -> None:
        self.folder, self.store = folder, folder / "rows.zarr"
        group = zarr.open_group(str(self.store), mode="w")
        group.create_array("x", shape=(0, X.shape[1]), chunks=(CHUNK, X.shape[1]), dtype="float64", compressors=None)
        self.append(X)
        d = X.shape[1]
        features = trig_map(np.ones((1, d)), np.linspace(0.1, 0.4, d), np.linspace(0.5, 1.5, d))
        self.this = Pass(folder, "p", spec_of(nan=nan, seed=3), constants_of(features, np.zeros(1)))

    @property
    def array(self) -> zarr.Array[Any]:
        found = zarr.open_group(str(self.store))["x"]
        assert isinstance(found, zarr.Array)
        return found

    def append(self, X: FloatArray) -> None:
        array, n = self.array, self.array.shape[0]
        array.resize((n + len(X), X.shape[1]))
        array[n:] = X

    @property
    def dataset(self) -> Dataset:
        return open_dataset(self.store, targets=None)

    @property
    def X(self) -> FloatArray:
        return np.asarray(self.array[:], np.float64)

    def scaled(self) -> FloatArray:
        return (self.X - self.this.features.center) / self.this.features.scale

    def build(
        self, graph: Graph, *, sizes: Sizes = SMALL, engine: Engine | None = None, to: str = "graphs",
        columns: list[int] | None = None, lease: Lease | None = None,
    ) -> Shards:  # fmt: skip
        engine = SerialEngine() if engine is None else engine
        return build(
            graph, self.dataset, self.this, columns, engine, self.folder / to, lambda *told: None, sizes=sizes,
            lease=lease,
        )  # fmt: skip

    def files(self, to: str = "graphs") -> dict[str, bytes]:
        """What a folder of one build holds, without the build's own name."""
        root = self.folder / to
        found = {str(path.relative_to(root)): contents(path) for path in root.rglob("*") if path.is_file()}
        assert len({name.split("/")[0] for name in found}) == 1
        return {name.partition("/")[2]: content for name, content in found.items()}


def contents(path: Path) -> bytes:
    """Of a file; of a record without how long it took and the build's own name."""
    if path.suffix != ".json":
        return path.read_bytes()
    try:
        record = json.loads(path.read_bytes())["record"]
    except ValueError:  # damaged
        return path.read_bytes()
    return json.dumps({**record, "seconds": 0.0}).encode()


def manifold_rows(n: int, d: int = 3, *, seed: int = 0, noise: float = 0.05) -> FloatArray:
    """Rows near a curved surface of two dimensions."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(-1, 1, (n, 2))
    curved = np.column_stack([t, np.sin(3 * t[:, 0]), np.cos(2 * t[:, 1]), t[:, 0] * t[:, 1]])
    turn = np.random.default_rng(99).standard_normal((curved.shape[1], d))
    return curved @ turn + noise * rng.standard_normal((n, d))


def whole(shards: Shards, n: int, *, once: bool = False) -> sp.csr_array:
    """W (n, n), or its lower half, after a look at each shard's shape."""
    parts, seen = [], np.empty(0, np.int64)
    for shard in range(shards.count):
        i, j, w = shards.adjacency(shard)
        rows, first = np.unique(i, return_index=True)
        assert (np.lexsort((j, i)) == np.arange(len(i))).all() and (np.diff(i * n + j) > 0).all()
        np.testing.assert_array_equal(shards.holding(rows), shard)
        if not once and len(rows):
            np.testing.assert_allclose(shards.degrees(rows), np.add.reduceat(w, first), rtol=1e-12)
        parts.append((i, j, w))
        seen = np.concatenate([seen, rows])
    assert len(np.unique(seen)) == len(seen)
    i, j, w = (np.concatenate([part[at] for part in parts]) for at in range(3))
    return sp.csr_array((w, (i, j)), shape=(n, n))


def same(A: sp.csr_array, B: sp.csr_array) -> None:
    assert abs(A - B).nnz == 0 and A.nnz == B.nnz


@final
class Killed(Engine):
    """Ends after so many tasks, as a driver does that is killed; or does something else then."""

    threads = 1

    def __init__(self, tasks: int, then: Callable[[], None] | None = None) -> None:
        self.left, self.then = tasks, then

    def run(self, tasks: Iterable[Task], done: Done) -> None:
        def counted(task: Task, result: Any) -> Iterable[Task]:
            if not self.left:
                if self.then is None:
                    raise KeyboardInterrupt
                self.then()
            self.left -= 1
            return done(task, result)

        SerialEngine().run(tasks, counted)


# What is built


@pytest.mark.parametrize("graph", [KNN(5), KNN(4, "binary"), KNN(6, 0.3)])
@pytest.mark.parametrize("d", [2, 7])
def test_one_partition_is_the_exact_graph(tmp_path: Path, graph: KNN, d: int) -> None:
    world = World(tmp_path, manifold_rows(300, d))
    shards = world.build(graph, sizes=Sizes())
    assert shards.count == 1
    same(whole(shards, 300), local_graph(world.scaled(), graph))


def test_of_some_columns(tmp_path: Path) -> None:
    world = World(tmp_path, manifold_rows(200, 6))
    W = whole(world.build(KNN(4), sizes=Sizes(), columns=[4, 1]), 200)
    same(W, local_graph(world.scaled()[:, [4, 1]], KNN(4)))


def test_many_partitions_are_one_symmetric_graph(tmp_path: Path) -> None:
    world = World(tmp_path, manifold_rows(900))
    shards = world.build(KNN(5))
    same(sp.csr_array(sp.tril(whole(shards, 900))), whole(shards.of_owned(), 900, once=True))
    assert shards.count > 12 and len(pickle.dumps(shards)) < 3000
    W = whole(shards, 900)
    same(W, W.T.tocsr())
    assert W.diagonal().max() == 0 and W.data.min() > 0
    assert np.diff(W.indptr).min() >= 5  # each row lists five
    assert shards.edges == W.nnz // 2
    rows = np.array([899, 3, 3, 450, 7])
    np.testing.assert_array_equal(shards.inputs(rows), world.X[rows])
    np.testing.assert_allclose(shards.degrees(rows), W.sum(axis=1)[rows], rtol=1e-12)


def test_recall(tmp_path: Path) -> None:
    """Of the true neighbours on a noisy surface in ten dimensions, nine of ten at least are found."""
    n, k = 5000, 10
    world = World(tmp_path, manifold_rows(n, 10, noise=0.02))
    shards = world.build(KNN(k, "binary"), sizes=Sizes(partition_rows=256))
    assert shards.count >= 18
    found, exact = whole(shards, n), local_graph(world.scaled(), KNN(k, "binary"))
    assert found.multiply(exact > 0).sum() / exact.sum() >= 0.9


def test_partitions_too_large_are_cut(tmp_path: Path) -> None:
    """All rows equal, so that all are at home with one landmark: a shard holds no more for that."""
    world = World(tmp_path, np.ones((600, 3)))
    shards = world.build(KNN(3))
    assert max(len(np.unique(shards.adjacency(one)[0])) for one in range(shards.count)) <= 256
    W = whole(shards, 600)
    same(W, W.T.tocsr())
    assert np.diff(W.indptr).min() >= 3


@pytest.mark.parametrize("d", [2, 7])
def test_lists_by_parts_are_exact(tmp_path: Path, d: int) -> None:
    """One partition of five times the candidates that are held, some of them equal."""
    X = manifold_rows(600, d)
    X[300:320] = X[5]
    world, graph = World(tmp_path, X), KNN(5)
    shards = world.build(graph, sizes=replace(SMALL, partition_rows=1000, input_bytes=8 * d * 128))
    assert shards.count == 10
    same(whole(shards, 600), local_graph(world.scaled(), graph))


@pytest.mark.slow
@pytest.mark.parametrize("append", ["rebuild", "link"])
def test_more_candidates_than_are_looked_at(tmp_path: Path, append: str) -> None:
    """Partitions of many windows: rows list rows of their own window alone."""
    X, graph = manifold_rows(160), KNN(3, append=append)
    sizes = replace(SMALL, partition_rows=1000, input_bytes=8 * 3 * 8)
    world = World(tmp_path, X[:155])
    world.build(graph, sizes=sizes)
    world.append(X[155:])
    shards = world.build(graph, sizes=sizes)
    W = whole(shards, 160)
    same(W, W.T.tocsr())
    assert np.diff(W.indptr).min() >= 3
    i, j = W.nonzero()
    assert 16 < np.abs(i - j).max() < 64


def test_a_row_alone(tmp_path: Path) -> None:
    shards = World(tmp_path, np.ones((1, 3))).build(KNN(3))
    assert shards.edges == 0 and len(shards.adjacency(0)[0]) == 0 and shards.degrees(np.array([0])) == [0]


def test_rows_that_are_not_finite(tmp_path: Path) -> None:
    X = manifold_rows(300)
    X[[3, 150, 151], [0, 1, 2]] = np.nan, np.inf, np.nan
    with pytest.raises(InputError, match=r"row \d+ \(shard \d\), column x.*: expected a finite number, got .*data.nan"):
        World(tmp_path / "refuse", X).build(KNN(4))
    world = World(tmp_path / "drop", X, nan="drop")
    shards = world.build(KNN(4), sizes=replace(SMALL, partition_rows=300, input_bytes=2**20))
    kept = np.isfinite(X).all(axis=1)
    W = whole(shards, 300)
    same(W[kept][:, kept], local_graph(world.scaled()[kept], KNN(4)))
    assert np.diff(W.indptr)[~kept].max() == 0
    assert shards.holding(np.array([3, 4])).tolist()[0] == -1


# The same always


@pytest.mark.process
def test_any_order_and_any_engine(tmp_path: Path) -> None:
    world = World(tmp_path, manifold_rows(500))
    world.build(KNN(4))
    files = world.files()
    assert any(name.endswith(".parquet") for name in files)
    for seed in range(2):
        world.build(KNN(4), engine=SerialEngine(shuffle=seed), to=f"shuffled{seed}")
        assert world.files(f"shuffled{seed}") == files
    with local_cluster(2) as cluster, Client(cluster) as client:
        world.build(KNN(4), engine=DaskEngine(client), to="dask")
    assert world.files("dask") == files


@pytest.mark.parametrize("given", [False, True])
def test_killed_anywhere_and_run_again(tmp_path: Path, given: bool) -> None:
    world = World(tmp_path, manifold_rows(300))
    graph: Graph = KNN(3)
    if given:
        write_graph(tmp_path / "g.zarr", local_graph(world.scaled(), KNN(3)))
        graph = Given(tmp_path / "g.zarr")
    shards = world.build(graph)
    files, stamp = world.files(), shards.stamp(0, shards.count)
    for tasks in range(0, 100, 4):
        try:
            world.build(graph, engine=Killed(tasks), to=f"k{tasks}")
        except KeyboardInterrupt:
            again = world.build(graph, to=f"k{tasks}")
            assert world.files(f"k{tasks}") == files
            assert again.stamp(0, again.count) == stamp
        else:
            assert tasks > 15
            return
    raise AssertionError


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    world = World(tmp_path, manifold_rows(300))
    first = world.build(KNN(3))
    assert world.build(KNN(3), engine=Killed(0)) == first


# Damage


def damage(file: Path) -> None:
    """Change a bit of every eighth byte of a file."""
    content = np.fromfile(file, "u1")
    content[4::8] ^= 1
    content.tofile(file)


def forget() -> None:
    """As a new process: nothing is remembered of files."""
    for known in (load_spec, _cuts, _landmarks, load_layout, _table, _kind, _record, _degrees):
        known.cache_clear()


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        ("landmarks/*.parts", 1),
        ("assign/*.parts", 4),
        ("assign/*.rows", 4),
        ("groups/*.parts", 4),
        ("lists/*.parts", 9),
    ],
)  # fmt: skip
@pytest.mark.parametrize("harm", [damage, Path.unlink])
def test_what_was_damaged_before_it_is_needed_is_made_again(
    tmp_path: Path, name: str, tasks: int, harm: Callable[[Path], None]
) -> None:
    world = World(tmp_path, manifold_rows(300))
    world.build(KNN(3))
    with pytest.raises(KeyboardInterrupt):
        world.build(KNN(3), engine=Killed(tasks), to="damaged")
    for file in (tmp_path / "damaged").glob(f"*/*-000/{name}"):
        harm(file)
    forget()
    world.build(KNN(3), to="damaged")
    assert world.files("damaged") == world.files()


@pytest.mark.parametrize(
    "name", ["collect/*.parquet", "collect/*.parts", "assign/*.rows", "assign/*.parts", "done.json"]
)
@pytest.mark.parametrize("harm", [damage, Path.unlink])
def test_damage_of_a_graph_in_use_is_noticed_and_mended(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    world = World(tmp_path, manifold_rows(300))
    shards = world.build(KNN(3))
    files, W, X = world.files(), whole(shards, 300), world.X

    def use() -> None:
        same(whole(shards, 300), W)
        np.testing.assert_array_equal(shards.inputs(np.arange(300)), X)

    for file in sorted((tmp_path / "graphs").glob(f"*/*-000/{name}"))[:1]:
        harm(file)
    forget()
    with pytest.raises(IncompleteError, match="run the job again"):
        use()
    assert world.build(KNN(3)) == shards
    use()
    assert world.files() == files


@pytest.mark.parametrize("name", ["collect/*.parquet", "collect/*.parts", "assign/*.rows"])
@pytest.mark.parametrize("harm", [Path.unlink, lambda file: os.truncate(file, 9)])
def test_files_lost_in_a_power_cut_are_made_again_before_they_are_read(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    world = World(tmp_path, manifold_rows(300))
    shards = world.build(KNN(3))
    files = world.files()
    harm(next((tmp_path / "graphs").glob(f"*/*-000/{name}")))
    forget()
    assert world.build(KNN(3)) == shards and world.files() == files


def test_lost_records_are_made_again(tmp_path: Path) -> None:
    world = World(tmp_path, manifold_rows(300))
    shards = world.build(KNN(3))
    files, W = world.files(), whole(shards, 300)
    for file in (tmp_path / "graphs").glob("*/*-000/*/*.json"):
        damage(file)
    assert world.build(KNN(3)) == shards and world.files() == files
    for name in ("*/graph.json", "*/*-000/generation.json"):
        for file in (tmp_path / "graphs").glob(name):
            damage(file)
        forget()
        again = world.build(KNN(3))
        assert again.path != shards.path
        same(whole(again, 300), W)
        assert world.files() == files


def test_every_byte_of_a_part_counts(tmp_path: Path) -> None:
    file, parts = tmp_path / "parts", [np.arange(3), np.empty(0), np.ones(2, np.float32)]
    write_parts(file, parts)
    content = file.read_bytes()
    assert read_parts(file, range(3)) == [part.tobytes() for part in parts]
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 8]) + content[at + 1 :])
        with pytest.raises(ValueError):
            read_parts(file, range(3))
        file.write_bytes(content[:at])
        with pytest.raises(ValueError):
            read_parts(file, range(3))


@pytest.mark.parametrize(
    ("values", "kind"),
    [([0, 255, 3], "|u1"), ([0.5, 2.0**90, -1], "<f4"), ([0.1], "<f8"), ([-0.0], "<f4"), ([256], "<f4")],
)  # fmt: skip
def test_copies_lose_nothing(values: list[float], kind: str) -> None:
    X = np.array([values], np.float64)
    assert packed(X).dtype.str == kind
    assert packed(X).astype(np.float64).tobytes() == X.tobytes()


# Rows that change


def test_rows_that_change_make_another_graph(tmp_path: Path) -> None:
    world = World(tmp_path, manifold_rows(200))
    before = world.build(KNN(3))
    stamp = before.stamp(0, before.count)
    world.array[5] = [9.0, 9.0, 9.0]
    after = world.build(KNN(3))
    same(whole(after, 200), whole(world.build(KNN(3), to="fresh"), 200))
    assert after.stamp(0, 1) != before.stamp(0, 1) or after.count != before.count
    assert len(world.files()) > 0  # one build: that of the old rows is gone
    np.testing.assert_array_equal(after.inputs(np.array([5])), [[9.0, 9.0, 9.0]])
    world.array[5] = manifold_rows(200)[5]
    again = world.build(KNN(3))
    assert again.stamp(0, again.count) == stamp


@pytest.mark.parametrize("tasks", [1, 3, 7, 12])
def test_rows_that_change_meanwhile(tmp_path: Path, tasks: int) -> None:
    """The graph is of the rows as they are at the end."""
    world = World(tmp_path, manifold_rows(300))

    def change() -> None:
        world.array[7] = [4.0, 4.0, 4.0]

    found = world.build(KNN(3), engine=Killed(tasks, change))
    same(whole(found, 300), whole(world.build(KNN(3), to="fresh"), 300))
    np.testing.assert_array_equal(found.inputs(np.arange(300)), world.X)
    assert world.files() == world.files("fresh")


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_killed_while_rows_that_changed_are_read_again(tmp_path: Path, given: bool) -> None:
    """No graph of the old rows stays, wherever the run is killed that finds them changed."""
    for tasks in range(9):
        world = World(tmp_path / str(tasks), manifold_rows(200))
        graph = Given(edges_file(world.folder / "e.parquet", range(199), range(1, 200))) if given else KNN(3)
        world.build(graph)
        world.array[70] = [9.0, 9.0, 9.0]
        with pytest.raises(KeyboardInterrupt):
            world.build(graph, engine=Killed(tasks))
        forget()
        found = world.build(graph)
        np.testing.assert_array_equal(found.inputs(np.array([70])), [[9.0, 9.0, 9.0]])
        same(whole(found, 200), whole(world.build(graph, to="fresh"), 200))
        assert world.files() == world.files("fresh")


def test_rows_that_change_where_a_record_was_lost(tmp_path: Path) -> None:
    """What was made of the old rows is known without it."""
    world = World(tmp_path, manifold_rows(200))
    world.build(KNN(3))
    for record in (tmp_path / "graphs").glob("*/*-000/assign/*.json"):
        record.unlink()
    world.array[70] = [9.0, 9.0, 9.0]
    forget()
    world.build(KNN(3))
    world.build(KNN(3), to="fresh")
    assert world.files() == world.files("fresh")


def test_rows_that_change_and_change_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of change are restored too, so that old records seem right; and a task was killed before it left one."""
    world = World(tmp_path, manifold_rows(200))
    shards = world.build(KNN(3))
    W, X, kept, step = whole(shards, 200), world.X, tmp_path / "kept", NEAREST["assign"]
    shutil.copytree(world.store, kept)
    world.array[70] = [9.0, 9.0, 9.0]

    def killed(*arguments: Any) -> Any:
        step.make(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setitem(NEAREST, "assign", step._replace(make=killed))
        world.build(KNN(3))
    shutil.rmtree(world.store)
    shutil.copytree(kept, world.store)
    forget()
    again = world.build(KNN(3))
    same(whole(again, 200), W)
    np.testing.assert_array_equal(again.inputs(np.arange(200)), X)


def test_workers_that_outlive_a_driver(tmp_path: Path) -> None:
    """They remember landmarks, though no row was dealt to them yet that the next driver knows of."""
    world = World(tmp_path, manifold_rows(200))
    with pytest.raises(KeyboardInterrupt):
        world.build(KNN(3), engine=Killed(1))
    for record in (tmp_path / "graphs").glob("*/*-000/assign/*.json"):
        record.unlink()
    world.array[:] = world.X[::-1] + 1
    with pytest.raises(KeyboardInterrupt):
        world.build(KNN(3), engine=Killed(0))
    world.build(KNN(3))
    world.build(KNN(3), to="fresh")
    assert world.files() == world.files("fresh")


@pytest.mark.parametrize("tasks", range(0, 30, 5))
def test_a_folder_that_vanishes(tmp_path: Path, tasks: int) -> None:
    world = World(tmp_path, manifold_rows(300))

    def remove() -> None:
        for folder in (tmp_path / "graphs").glob("*"):
            shutil.rmtree(folder)

    with pytest.raises(IncompleteError, match="was deleted, by another run maybe; run the job again"):
        world.build(KNN(3), engine=Killed(tasks, remove))
    forget()
    shards = world.build(KNN(3))
    remove()
    forget()
    with pytest.raises(IncompleteError, match="was deleted"):
        whole(shards, 300)


def test_nothing_is_deleted_without_the_lease(tmp_path: Path) -> None:
    world, lease = World(tmp_path, manifold_rows(200)), Lease.take(tmp_path / "lease")
    first = world.build(KNN(3), lease=lease)
    assert not any((tmp_path / "graphs").glob("*/*-000/lists"))
    lists = next(Path(first.path).glob("*-000")) / "lists"
    lists.mkdir()
    files = world.files()
    lease.release()
    world.array[5] = [9.0, 9.0, 9.0]
    with pytest.raises(LeaseError):
        world.build(KNN(3), lease=lease)
    assert {name for name in files if "collect" in name} <= set(world.files())
    world.array[5] = manifold_rows(200)[5]
    with pytest.raises(LeaseError):
        world.build(KNN(3), lease=lease)
    assert lists.is_dir()
    with Lease.take(tmp_path / "lease") as other:
        assert world.build(KNN(3), lease=other).edges == first.edges
    assert not lists.exists()


def test_old_builds_go_before_a_new_one_begins(tmp_path: Path) -> None:
    world, graphs = World(tmp_path, manifold_rows(200)), tmp_path / "graphs"
    first = Path(world.build(KNN(3)).path)
    other = Path(world.build(KNN(4)).path)
    late, new = (graphs / f"{'0123' * 4}-0000-{'abcd' * 2}{end}" for end in "01")
    for folder in (late, new):
        (folder / "000" / "lists").mkdir(parents=True)
    os.utime(late, (0, 0))
    world.append(manifold_rows(50, seed=1))
    with pytest.raises(KeyboardInterrupt):
        world.build(KNN(3), engine=Killed(0))
    assert not first.exists() and not late.exists() and other.exists() and new.exists()
    assert len([*graphs.iterdir()]) == 3


# What is held


def test_counts_of_few_partitions_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, manifold_rows(900))
    sizes = replace(SMALL, partition_rows=20)  # 45 partitions
    world.build(KNN(3), sizes=sizes)
    monkeypatch.setattr(build_knn, "_TILE", 1)
    world.build(KNN(3), sizes=sizes, to="one")
    assert world.files() == world.files("one")


@pytest.mark.parametrize("given", [False, True])
def test_names_in_many_files(tmp_path: Path, given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, graph = manifold_rows(500), Given(random_graph(500)) if given else KNN(4, append="link")
    stamps = []
    for to, most in (("one", 2**20), ("many", 5)):
        monkeypatch.setattr(build_edges, "MOST", most)
        world = World(tmp_path / to, X)
        if not given:
            world = World(tmp_path / to, X[:450])
            world.build(graph)
            world.append(X[450:])
        shards = world.build(graph)
        stamps.append([whole(shards, 500), shards.count])
        names = [*world.folder.glob(f"graphs/*/*/{'gather' if given else 'sources'}/*.parts")]
        assert (len(names) > 8) == (most == 5)
    same(stamps[0][0], stamps[1][0])
    assert stamps[0][1] == stamps[1][1]


def test_names_are_never_held_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of a task: not those of all names of all files (10 MB), but of those of a file of names."""
    count, files = 4000, [BuildTask("lists", 0, number) for number in range(100)]
    monkeypatch.setattr(build_edges, "MOST", 2**14)
    spec = load_spec(Path(World(tmp_path, manifold_rows(20)).build(KNN(3)).path))
    for one in files:
        write_parts(spec.path(one), [np.arange(count)])
    cuts = build_edges.cuts_of(spec, files, 0, count)
    write_parts(spec.path(BuildTask("cuts", 0, 0)), [cuts])
    tracemalloc.start()
    try:
        for number in range(len(cuts)):
            parts, named = build_edges.turned(spec, BuildTask("sources", 0, number), files, 0, count)
            write_parts(spec.path(BuildTask("sources", 0, number)), parts)
        assert tracemalloc.get_traced_memory()[1] < 5 * 24 * 2**14
    finally:
        tracemalloc.stop()
    assert len(cuts) == 25 and named[-1] == count - 1
    for shard in (0, 163, 164, count - 1):
        assert build_edges.naming(spec, "sources", 0, shard) == [(number, 1 + shard) for number in range(100)]


def test_what_is_told(tmp_path: Path) -> None:
    world, told = World(tmp_path, manifold_rows(300)), list[tuple[str, int, int]]()
    for _ in range(2):
        build(
            KNN(3),
            world.dataset,
            world.this,
            None,
            SerialEngine(),
            tmp_path / "g",
            lambda *a: told.append(a),
            sizes=SMALL,
        )
    for words in {words for words, _, _ in told}:
        counts = [(done, of) for name, done, of in told if name == words]
        assert counts[-1][0] == counts[-1][1] and len({of for _, of in counts}) == 1
        assert [done for done, _ in counts[:-1]] == [*range(counts[0][1] + 1)][: len(counts) - 1]


def test_files_that_were_only_touched_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, manifold_rows(200))
    shards, files = world.build(KNN(3)), world.files()
    for file in (world.store / "x" / "c").rglob("*"):
        os.utime(file)
    assert world.build(KNN(3)) == shards
    now = world.files()
    assert {k for k in files if files[k] != now[k]} == {k for k in now if "landmarks/" in k or "assign/" in k} - {
        k for k in now if not k.endswith("json")
    }


def test_rebuild_is_the_graph_of_all_rows(tmp_path: Path) -> None:
    world = World(tmp_path, manifold_rows(200))
    world.build(KNN(3))
    world.append(manifold_rows(70, seed=1))
    whole_again = World(tmp_path / "other", world.X)
    same(whole(world.build(KNN(3)), 270), whole(whole_again.build(KNN(3)), 270))
    world.files()  # one build


def linked(X: FloatArray, cuts: list[int], k: int, weights: str | float = "heat") -> sp.csr_array:
    """The link rule, with one partition: rows list rows of their own generation and older ones."""
    A = sp.lil_array((len(X), len(X)))
    index, distance = np.full((len(X), k), -1), np.zeros((len(X), k))
    for start, stop in pairwise([0, *cuts]):
        index[start:stop], distance[start:stop] = neighbours(X[:stop], k, queries=np.arange(start, stop))
    scale = own_scale(index, distance)
    for i, at in np.argwhere(index >= 0):
        j = index[i, at]
        A[i, j] = edge_weights(distance[i, at : at + 1], scale[i : i + 1], scale[j : j + 1], weights)[0]
    return ((A + A.T) / 2).tocsr()


@pytest.mark.parametrize("weights", ["heat", "binary"])
def test_linked_rows(tmp_path: Path, weights: str) -> None:
    X, cuts = manifold_rows(150), [80, 83, 150]
    graph, sizes = KNN(4, weights, append="link"), replace(SMALL, partition_rows=1000, input_bytes=2**20)
    world = World(tmp_path, X[:80])
    world.build(graph, sizes=sizes)
    for start, stop in pairwise(cuts):
        world.append(X[start:stop])
        shards = world.build(graph, sizes=sizes)
    assert shards.count == 3
    W = linked(world.scaled(), cuts, 4, weights)
    found = whole(shards, 150)
    assert (found - W).max() < 1e-12 and found.nnz == W.nnz
    np.testing.assert_array_equal(shards.inputs(np.array([149, 2, 81])), X[[149, 2, 81]])


def test_links_keep_what_there_was(tmp_path: Path) -> None:
    X, graph = manifold_rows(500), KNN(4, append="link")
    world = World(tmp_path, X[:400])
    old = world.build(graph)
    stamps = [[which.stamp(one, one + 1) for one in range(old.count)] for which in (old, old.of_owned())]
    world.append(X[400:])
    for tasks in range(0, 60, 11):  # killed on the way too
        with suppress(KeyboardInterrupt):
            world.build(graph, engine=Killed(tasks))
    new = world.build(graph)
    assert new.count > old.count
    W, before = whole(new, 500), whole(old, 400)
    same(W, W.T.tocsr())
    same(W[:400][:, :400], before)
    assert np.diff(W.indptr).min() >= 4
    assert [new.of_owned().stamp(one, one + 1) for one in range(old.count)] == stamps[1]
    changed = [new.stamp(one, one + 1) != stamps[0][one] for one in range(old.count)]
    touched = np.unique(new.holding(np.unique(W[400:].indices)))
    assert changed == [one in touched for one in range(old.count)]
    world.array[3] = [1.0, 2.0, 3.0]  # an old row: all begins anew
    again = world.build(graph)
    assert again.generation == 0
    np.testing.assert_array_equal(again.inputs(np.array([3])), [[1.0, 2.0, 3.0]])
    assert again.of_owned().stamp(0, 1) != stamps[1][0]


def test_other_graphs_are_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path, manifold_rows(100))
    one, other = world.build(KNN(3)), world.build(KNN(4))
    parts = world.build(KNN(3), columns=[0, 1])
    assert len({one.path, other.path, parts.path}) == 3
    for shards in (one, other, parts):
        whole(shards, 100)


# Graphs that users give


def random_graph(n: int, seed: int = 0) -> sp.csr_array:
    A = sp.random_array((n, n), density=4 / n, rng=np.random.default_rng(seed), format="csr")
    A.setdiag(0)
    A.eliminate_zeros()
    return (A + A.T).tocsr()


def edges_file(path: Path, i: Any, j: Any, w: Any = None) -> Path:
    columns = {"i": np.asarray(i, np.int64), "j": np.asarray(j, np.int64)}
    if w is not None:
        columns["w"] = np.asarray(w, np.float64)
    pq.write_table(pa.table(columns), path)
    return path


def csr_store(path: Path, W: sp.csr_array) -> Path:
    group = zarr.open_group(str(path), mode="w")
    for name in ("indptr", "indices", "data"):
        group.create_array(name, data=getattr(W, name))
    return path


@pytest.mark.parametrize("kind", ["memory", "upper", "both", "csr", "parquet"])
def test_given_graphs(tmp_path: Path, kind: str) -> None:
    world, W = World(tmp_path, manifold_rows(330)), random_graph(330)
    entries = sp.coo_array(sp.triu(W))
    source: Any = W
    if kind == "upper":
        order = np.random.default_rng(0).permutation(entries.nnz)
        source = edges_file(tmp_path / "e.parquet", entries.col[order], entries.row[order], entries.data[order])
    elif kind == "csr":
        source = csr_store(tmp_path / "g.zarr", W)
    elif kind in ("both", "parquet"):
        source = tmp_path / ("g.zarr" if kind == "both" else "g.parquet")
        write_graph(source, W)
    shards = world.build(Given(source))
    assert shards.count == 7
    same(whole(shards, 330), W)
    assert shards.alone == (W.sum(axis=1) == 0).sum()
    rows = np.array([329, 0, 17, 17, 160])
    np.testing.assert_array_equal(shards.inputs(rows), world.X[rows])
    assert shards.edges == entries.nnz
    assert world.build(Given(source), engine=Killed(0)) == shards


def test_given_edges_of_rows_left_out(tmp_path: Path) -> None:
    X, W = manifold_rows(200), random_graph(200)
    X[[60, 199]] = np.nan
    world = World(tmp_path, X, nan="drop")
    W = W.tolil()
    whole_graph = W.tocsr()
    W[[60, 199]] = 0
    W[:, [60, 199]] = 0
    shards = world.build(Given(whole_graph))
    same(whole(shards, 200), W.tocsr())
    assert shards.alone == (W.tocsr().sum(axis=1) == 0).sum() >= 2


@pytest.mark.parametrize(
    ("i", "j", "w", "message"),
    [
        ([0, 3], [1, 100], [1, 1], "wanted nodes from 0 to 99, one a row, got an edge from 3 to 100"),
        ([0, -1], [1, 5], [1, 1], "wanted nodes from 0 to 99, one a row, got an edge from -1 to 5"),
        ([0, 3], [1, 90], [1, -2], "wanted finite weights of at least 0, got -2.0 between 3 and 90"),
        ([0, 3], [1, 90], [1, np.nan], "wanted finite weights of at least 0, got nan between 3 and 90"),
        ([3, 90], [90, 3], [1, 2], "got 1.0 from 3 to 90 and 2.0 from 90 to 3"),
        ([3, 3], [90, 90], [1, 2], "from 3 to 90"),
    ],
)
def test_edges_that_are_refused(tmp_path: Path, i: list[int], j: list[int], w: list[float], message: str) -> None:
    world = World(tmp_path, manifold_rows(100))
    with pytest.raises(InputError, match=message):
        world.build(Given(edges_file(tmp_path / "e.parquet", i, j, w)))


def test_matrices_that_are_refused(tmp_path: Path) -> None:
    world, W = World(tmp_path, manifold_rows(100)), random_graph(100).tolil()
    W[2, 70] = 5.0
    W[70, 2] = 0.0
    with pytest.raises(InputError, match=r"got 5\.0 from 2 to 70 and 0\.0 from 70 to 2"):
        world.build(Given(csr_store(tmp_path / "g.zarr", W.tocsr())))
    with pytest.raises(InputError, match=r"got 5\.0 from 2 to 70 and 0\.0 from 70 to 2"):
        world.build(Given(W.tocsr()))
    write_graph(tmp_path / "small.zarr", random_graph(90))
    with pytest.raises(InputError, match="wanted one node a row, 100, got a graph of 90"):
        world.build(Given(tmp_path / "small.zarr"))
    with pytest.raises(InputError, match="no edges to build"):
        world.build(Identity())


def test_a_given_graph_that_changes(tmp_path: Path) -> None:
    world, path = World(tmp_path, manifold_rows(100)), tmp_path / "e.parquet"
    first = world.build(Given(edges_file(path, [0, 3], [1, 4], [1, 1])))
    stamp = first.stamp(0, 1)
    second = world.build(Given(edges_file(path, [0, 3], [1, 4], [1, 2])))
    assert whole(second, 100)[3, 4] == 2.0 and second.stamp(0, 1) != stamp
    world.files()  # one build


@pytest.mark.parametrize("tasks", range(0, 12, 2))
def test_a_given_graph_that_changes_meanwhile(tmp_path: Path, tasks: int) -> None:
    """To one of more edges, in more runs."""
    world, path = World(tmp_path, manifold_rows(250)), tmp_path / "e.parquet"
    graph = Given(edges_file(path, range(249), range(1, 250)))

    def change() -> None:
        edges_file(path, [*range(249), *range(150)], [*range(1, 250), *range(2, 152)], np.full(399, 2.0))

    found = world.build(graph, engine=Killed(tasks, change))
    assert found.edges == 399 and set(whole(found, 250).data) == {2.0}
    world.files()  # one build


def test_a_given_graph_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges were read, and are written anew before the run of them is done."""
    world, path, often = World(tmp_path, manifold_rows(100)), tmp_path / "e.parquet", iter(range(100))
    graph, times = Given(edges_file(path, [0, 3], [1, 4], [1, 1])), 1

    def checked(*edges: Any, **options: Any) -> None:
        check_edges(*edges, **options)
        if (now := next(often)) < times:
            edges_file(path, [0, 3], [1, 4], [1, 2])
            os.utime(path, (now, now))

    monkeypatch.setattr(build_edges, "check_edges", checked)
    assert whole(world.build(graph), 100)[3, 4] == 2.0
    edges_file(path, [0, 3], [1, 4], [1, 1])
    times = 100
    with pytest.raises(IncompleteError, match="parquet changed while they were read, 3 times; run the job again"):
        world.build(graph)


def test_the_plan_counts_records_as_they_are() -> None:
    kept = (build_spec.ROW, build_knn.MEMBER, build_knn.LISTED, build_edges.EDGE)
    planned = (graph_sizes.ROW, graph_sizes.MEMBER, graph_sizes.LISTED, graph_sizes.EDGE)
    assert tuple(record.itemsize for record in kept) == planned


def test_more_neighbours_than_rows_cost_no_more_than_all(tmp_path: Path) -> None:
    zarr.open_group(str(tmp_path / "few.zarr"), mode="w").create_array("x", data=np.eye(30))
    rows = open_dataset(tmp_path / "few.zarr", targets=None)
    assert graph_sizes.GraphCosts.of(KNN(10**6), rows) == graph_sizes.GraphCosts.of(KNN(29), rows)
