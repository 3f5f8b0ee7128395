"""A file that is kept, in the place of another of its kind: the same bits, or a refusal; no row counted twice."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import GAUSSIAN, leaves_of, sea, write_job, write_store

from dorff.engine import SerialEngine
from dorff.errors import DorffError, InputError, StoppedError
from dorff.errors.stopping import clear_stop, request_stop
from dorff.fit import fit
from dorff.manifold import building
from dorff.manifold.build_spec import read_parts
from dorff.passes import PassSums
from dorff.passes.frozen import seal_of
from dorff.passes.sweep import Sweep, _columns
from dorff.plan import freeze_constants, make_plan
from dorff.plan.graph_sizes import Sizes
from dorff.spec.reader import load_job
from dorff.storage.files import read_record
from dorff.store import Receipt, load_model, undamaged
from dorff.store.receipts import Checkpoint

LEAF, BEGUN = 512, 4096  # rows of a leaf; of one that has several blocks
SCALAR = {"type": "decomposable", "scalar": GAUSSIAN}
KNN = {"type": "knn", "append": "link"}
CHOICE = {"ridge": [1e-6, 1e-3], "select": "kfold"}
JOBS: dict[str, dict[str, Any]] = {
    "leaves": {},
    "folds of leaves": {"solve": {**CHOICE, "folds": {"count": 3}}},
    "folds of rows": {"solve": {**CHOICE, "folds": {"count": 3, "by": "rows"}}},
    "held out": {"kernel": SCALAR, "solve": {"ridge": 1e-6, "conformal": True}},
    "triangles too": {
        "kernel": SCALAR, "features": {"count": 256}, "solve": {"ridge": 1e-15}, "publish": {"digits": 0},
    },
    "graphs": {
        "kernel": SCALAR, "features": {"count": 16},
        "manifold": [{"graph": {**KNN, "neighbours": k}, "weight": 1e-6} for k in (3, 5)],
    },
    "streaming": {"solve": {"ridge": 1e-6, "route": "streaming"}},
}  # fmt: skip


class Interrupted(Exception):
    """Stands for whatever ends a driver."""


@dataclass(frozen=True)
class Scene:
    """What an earlier run left: the folder of a job, its state and its models. `truths` are what comes of it
    undisturbed, and of a fit of all rows at once: a graph that rows were linked to is another than one made anew, as
    any of several may be."""

    folder: Path
    truths: tuple[dict[str, bytes], ...]
    rows: int
    leaf: int

    def kinds(self) -> dict[str, list[Path]]:
        """The files that are kept, by what is the same but for hashes and numbers; parts of a graph together."""
        kinds: dict[str, list[Path]] = {}
        for path in sorted(path.relative_to(self.folder) for path in self.folder.glob("*/**/*") if path.is_file()):
            kind = re.sub(r"[0-9]+", "0", re.sub(r"[0-9a-f]{8,}", "#", str(path)))
            kinds.setdefault(re.sub(r"-0/[a-z]+/0\.", "-0/stage/0.", kind), []).append(path)
        return {kind: paths for kind, paths in kinds.items() if "lease" not in kind}

    def pairs(self, most: int | None, each: int | None) -> Iterator[tuple[Path, Path]]:
        """A file and another of its kind, of other bytes: of a kind `most` files, the last first, since these are sums
        of most leaves; for each `each` others, those of its size first."""
        for paths in self.kinds().values():
            raw = {path: (self.folder / path).read_bytes() for path in paths}
            step = 1 if most is None else max(1, len(paths) // most)
            for path in paths[::-step][:most]:
                others = [one for one in paths if raw[one] != raw[path]]
                others.sort(key=lambda one: (abs(len(raw[one]) - len(raw[path])), str(one)))
                yield from ((path, one) for one in others[:each])

    def check(self, folder: Path, put: Callable[[Path], None]) -> None:
        """Do this to a copy and fit: what was put there is noticed, or changes nothing. Runs as often as it takes."""
        shutil.copytree(self.folder, folder)
        put(folder)
        for _ in range(4):
            try:
                with leaves_of(self.leaf):
                    report = fit(load_job(folder / "job.yaml"), engine=SerialEngine())
            except DorffError as error:
                assert str(folder) in str(error), error
                continue
            assert report.rows_used == self.rows, f"{report.rows_used - self.rows} rows too many"
            assert arrays(folder) in self.truths
            shutil.rmtree(folder)
            return
        pytest.fail("never mended")


def arrays(folder: Path, model: Path | None = None) -> dict[str, bytes]:
    """Of the model published in a folder, or of another one."""
    read = load_model(model or folder / "models")
    return {name: getattr(read, name).tobytes() for name in ("coefficients", "intercept", "target_scale")}


@pytest.fixture(autouse=True)
def several_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of more than one."""
    sizes = Sizes(partition_rows=2048, input_bytes=16 * 1500)
    monkeypatch.setattr(building, "Sizes", lambda: sizes)


def begun(job: Path) -> None:
    """Leave a pass unfinished: half its leaves done, and checkpoints of others."""

    plan = make_plan(load_job(job))
    streaming = plan.costs.route == "streaming"

    def stop(done: int, _total: int) -> None:
        if done > plan.dataset.rows * (2.5 if streaming else 0.5):
            raise Interrupted

    with pytest.raises(Interrupted):
        fit(load_job(job), engine=SerialEngine(), progress=stop)
    if streaming:
        return
    this = freeze_constants(plan)
    for leaf in plan.leaves[:3]:
        if not (plan.directory / "receipts" / f"{leaf.number:06d}.json").exists():
            request_stop()
            try:
                with pytest.raises(StoppedError):
                    PassSums.at(this).leaf(plan.dataset, leaf)
            finally:
                clear_stop()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Scene]:
    """A job's state and models, by name: finished before rows were appended, or "begun"."""

    @cache
    def made(name: str) -> Scene:
        what, _, half = name.partition(", ")
        root, leaf = tmp_path_factory.mktemp("scene"), BEGUN if half else LEAF
        rows, words = 7 * leaf, {"features": {"count": 24}, **JOBS[what]}
        X, Y = sea(rows + 2 * leaf)
        store = write_store(root / "sea.zarr", X[:rows], Y[:rows])
        job = write_job(root / "scene", store, **words)
        with leaves_of(leaf):
            if not half and what != "streaming":
                fit(load_job(job), engine=SerialEngine())
            write_store(store, X[rows:], Y[rows:], append=True)
            if half or what == "streaming":
                begun(job)
            report = fit(load_job(write_job(root / "truth", store, **words)), engine=SerialEngine())
            for number, lost in enumerate([None, *sorted((root / "scene").glob("runs/*/graphs/*"))]):
                shutil.copytree(root / "scene", again := root / f"again-{number}")
                if lost is not None:
                    shutil.rmtree(again / lost.relative_to(root / "scene"))
                fit(load_job(again / "job.yaml"), engine=SerialEngine())
        truths = tuple(arrays(folder) for folder in (root / "truth", *root.glob("again-*")))
        assert all(one == truths[0] for one in truths) or "manifold" in words
        return Scene(root / "scene", truths, report.rows_used, leaf)

    return made


def misplace(scene: Scene, folder: Path, pairs: Iterable[tuple[Path, Path]]) -> None:
    """Put the second file of each pair in the place of the first, one pair at a time, and fit."""
    for number, (path, other) in enumerate(pairs):
        raw = (scene.folder / other).read_bytes()
        print(path, "<-", other)  # said where it fails
        scene.check(folder / f"{number}", lambda copy, path=path, raw=raw: (copy / path).write_bytes(raw))
    assert number > 5


NAMES = [*JOBS, "leaves, begun", "folds of rows, begun"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_any_file_in_any_others_place(name: str, scenes: Callable[[str], Scene], tmp_path: Path) -> None:
    """Each in three others' places, of jobs whose fits take longest in fewer: the next test reads every pair."""
    scene = scenes(name)
    few = {"graphs": (8, 1), "streaming": (None, 2), "triangles too": (None, 2)}
    misplace(scene, tmp_path, scene.pairs(*few.get(name, (None, 3))))


@pytest.mark.slow
def test_no_reader_takes_any_file_for_another(scenes: Callable[[str], Scene], tmp_path: Path) -> None:
    """Every pair of them, read alone."""
    seen = Counter[str]()
    for name in NAMES:
        scene = scenes(name)
        for kind, paths in scene.kinds().items():
            reader = next((read for pattern, read in READERS.items() if re.search(pattern, kind)), None)
            for path in paths if reader is not None else ():
                assert reader(scene.folder / path), path  # the control
            for path, other in permutations(paths, 2) if reader is not None else ():
                copy = tmp_path / scene.folder.parent.name / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes((scene.folder / other).read_bytes())
                assert not reader(copy), (path, other)
                seen[re.sub(r"^[-0#]+\.", "", Path(kind).name)] += 1
    assert {"moments", "sums", "json", "parts", "plan.json"} <= seen.keys(), seen
    assert {"graph.json", "generation.json", "done.json"} <= seen.keys(), seen


def _parts(path: Path) -> bool:
    with suppress(ValueError):
        return read_parts(path, [0]) != []
    return False


def _plan(path: Path) -> bool:
    body = json.loads(path.read_bytes())
    return bool(body.pop("check") == seal_of(body, path.parent))


#: Whether a file is read as what its name says.
READERS: dict[str, Callable[[Path], bool]] = {
    r"\.moments$|\.sums$": undamaged,
    r"receipts/0\.json$": lambda path: Receipt.load(path.parent, int(path.stem)) is not None,
    r"checkpoints/0\.json$": lambda path: Checkpoint.load(path.parent, int(path.stem)) is not None,
    r"graphs/.*/stage/0\.json$": lambda path: Receipt.load(path.parent, int(path.stem)) is not None,
    r"graphs/.*\.json$": lambda path: read_record(path) is not None,
    r"\.parts$": _parts,
    r"plan\.json$": _plan,
}


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["with its arrays", "with all of it"])
def test_a_plan_in_anothers_place(whole: bool, scenes: Callable[[str], Scene], tmp_path: Path) -> None:
    """Two plans of one job: the sums of its rows, and their triangle. Each file fits the other."""
    scene = scenes("triangles too")
    first, second = sorted((scene.folder / "runs").glob("*/plan.json"))
    for number, (one, other) in enumerate([(first, second), (second, first)]):

        def put(copy: Path, one: Path = one, other: Path = other) -> None:
            place = copy / "runs" / one.parent.name
            if whole:
                shutil.rmtree(place)
                shutil.copytree(other.parent, place)
            for name in ("plan.json", "arrays.npz"):
                shutil.copy(other.with_name(name), place / name)

        scene.check(tmp_path / f"{number}", put)


def test_columns_of_another_sweep_are_refused(scenes: Callable[[str], Scene], tmp_path: Path) -> None:
    """With the file that says what they are."""
    with leaves_of(LEAF):
        this = freeze_constants(make_plan(load_job(scenes("streaming").folder / "job.yaml")))
    sweeps = [Sweep(tmp_path / "solve" / name, name) for name in ("a", "b", "c")]
    for number, sweep in enumerate(sweeps):
        sweep.write(this, np.full((4, 2), float(number)))
    assert np.array_equal(_columns(sweeps[1].directory)[1], np.ones((4, 2)))  # the control
    for name in ("columns", "columns.json"):
        shutil.copy(sweeps[1].directory / name, sweeps[0].directory / name)
    (sweeps[2].directory / "columns.json").write_bytes(b"{}")
    for sweep in (sweeps[0], sweeps[2]):
        with pytest.raises(InputError, match=r"columns of a sweep are damaged \(.* another sweep's\); run the job"):
            _columns(sweep.directory)


def version_files(version: Path) -> list[Path]:
    """What may be put in another's place: files, arrays with their metadata, and all of it."""
    below = [path.relative_to(version) for path in sorted(version.rglob("*"))]
    return [Path(), *(path for path in below if (version / path).is_file() or path.parent == Path())]


def replace(place: Path, by: Path) -> None:
    if by.is_file():
        shutil.copy(by, place)
    else:
        shutil.rmtree(place)
        shutil.copytree(by, place)


@pytest.mark.slow
def test_a_model_with_parts_of_another_version(scenes: Callable[[str], Scene], tmp_path: Path) -> None:
    """Refused where it is read, naming it; and the next fit publishes the right one again."""
    scene, made = scenes("folds of leaves"), tmp_path / "made"
    shutil.copytree(scene.folder, made)
    with leaves_of(LEAF):
        fit(load_job(made / "job.yaml"), engine=SerialEngine())
    names = version_files(made / "models" / "v000002")
    refused = 0
    for number, name in enumerate(names):
        copy = tmp_path / f"{number}"
        shutil.copytree(made, copy)
        models = copy / "models"
        old, new = models / "v000001" / name, models / "v000002" / name
        same = old.is_file() and old.read_bytes() == new.read_bytes()
        replace(new, old)
        for place in (models, models / "v000002"):
            try:
                assert arrays(copy, place) == scene.truths[0], name
            except InputError as error:
                refused += 1
                assert not same and "v000002" in str(error)
        if number % 8 == 0 or len(name.parts) == 1:
            with leaves_of(LEAF):
                report = fit(load_job(copy / "job.yaml"), engine=SerialEngine())
            assert report.leaves_computed == 0 and arrays(copy) == scene.truths[0]
    assert refused > 10


def test_arrays_of_one_model_in_each_others_place(scenes: Callable[[str], Scene], tmp_path: Path) -> None:
    """Of the same shape: the metadata of each go with it."""
    shutil.copytree(scenes("folds of leaves").folder / "models", tmp_path / "models")
    version = tmp_path / "models" / "v000001"
    for name, other in (("intercept", "target_scale"), ("target_scale", "intercept")):
        shutil.copytree(version, tmp_path / name)
        replace(tmp_path / name / name, version / other)
        with pytest.raises(InputError, match=rf"array {name} is damaged, or another's; publish it again"):
            load_model(tmp_path / name)


def test_current_of_another_root_is_refused(scenes: Callable[[str], Scene], tmp_path: Path) -> None:
    for name in ("leaves", "folds of leaves"):
        shutil.copytree(scenes(name).folder / "models", tmp_path / name)
    shutil.copy(tmp_path / "leaves" / "current", tmp_path / "folds of leaves" / "current")
    with pytest.raises(InputError, match=r"v000001: zarr\.json is not the one that .*current was written for"):
        load_model(tmp_path / "folds of leaves")
    name = "v000001"
    (tmp_path / "leaves" / "current").write_text(f"{name} {zlib.crc32(name.encode()):08x}")  # as it was written before
    assert load_model(tmp_path / "leaves").p == 2
