"""Small real fits in processes of their own, the faults that befall them, and what they must come to all the same."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest
from command_line import call
from distributed import Client
from distributed.versions import VersionMismatchWarning

import dorff
from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.fit import fit
from dorff.kernels.scalar import FloatArray
from dorff.moments import Moments
from dorff.passes import PassSums, Tree
from dorff.passes import blocks as leaf_sizes
from dorff.plan import freeze_constants, make_plan
from dorff.spec.job import Job
from dorff.spec.reader import load_job
from dorff.store import load_model

HERE = Path(__file__).parent
# Processes run the dorff that these tests import.
_PATHS = os.pathsep.join([str(Path(dorff.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
ROWS, SHARD, LEAF = 60_000, 512, 4096
GAUSSIAN = {"type": "gaussian", "lengthscale": 1.0}
FIELD = {
    "type": "sum",
    "terms": [
        {"weight": 0.3, "kernel": {"type": "curl_free", "scalar": GAUSSIAN}},
        {"weight": 0.7, "kernel": {"type": "divergence_free", "scalar": GAUSSIAN}},
    ],
}


def seeds(count: int) -> list[int]:
    """Seeds of a test's faults, the same every time; DORFF_FAULT_SEED begins them elsewhere."""
    first = int(os.environ.get("DORFF_FAULT_SEED", "0"))
    return list(range(first, first + count))


def some_seeds(quick: int, count: int) -> list[Any]:
    """That many seeds, all but the first `quick` for slow runs."""
    return [
        seed if number < quick else pytest.param(seed, marks=pytest.mark.slow)
        for number, seed in enumerate(seeds(count))
    ]


def sea(rows: int = ROWS, *, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Inputs and targets (rows, 2) each."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 2))
    return X, np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.1 * rng.standard_normal((rows, 2))


def write_store(path: Path, X: FloatArray, Y: FloatArray, *, append: bool = False) -> Path:
    """The rows as `dorff ingest` writes them, whatever numbers they are, or added to what it wrote."""
    source = path.with_suffix(".npz")
    np.savez(source, x=X, y=Y)
    more = {"append": append, "shard_rows": None if append else SHARD, "missing": ["none"]}
    ingest([source], path, inputs=["x"], targets=["y"], **more)
    source.unlink()
    return path


def write_job(folder: Path, store: Path, **changes: Any) -> Path:
    """A job on `store` whose state and models are in `folder`; `changes` replace its keys. JSON is YAML. A local
    cluster has its workers, however small the job; features are random unless it says otherwise."""
    body: dict[str, Any] = {
        "data": {"store": str(store)}, "kernel": FIELD, "features": {"count": 64}, "solve": {"ridge": 1e-6},
        "cluster": {"type": "serial"}, "state": "runs", "model": "models",
    }  # fmt: skip
    body |= changes
    body["features"] = {"sampler": {"type": "orthogonal"}, **body["features"]}
    if body["cluster"].get("type") == "local":
        body["cluster"] = {"small_jobs": "workers", **body["cluster"]}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.yaml"
    path.write_text(json.dumps(body))
    return path


@contextmanager
def leaves_of(rows: int = LEAF) -> Iterator[None]:
    """Small leaves in this process's plans, as driver.py has them in its own."""
    before = leaf_sizes.SMALLEST_LEAF, leaf_sizes.LARGE_FIRST_LEAF
    leaf_sizes.SMALLEST_LEAF = leaf_sizes.LARGE_FIRST_LEAF = rows
    try:
        yield
    finally:
        leaf_sizes.SMALLEST_LEAF, leaf_sizes.LARGE_FIRST_LEAF = before


@dataclass(frozen=True, eq=False)
class Faults:
    """Faults that processes with `environment` meet when they open a file."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return {"PYTHONPATH": os.pathsep.join([str(HERE / "shim"), _PATHS]), "DORFF_TEST_FAULTS": str(self.folder)}

    def add(
        self, name: str, path: str, do: str, *, amount: float = 0, where: str = "worker", times: int = 1,
        skip: int = 0, target: Path | None = None,
    ) -> None:  # fmt: skip
        """When a file whose path matches is opened, by any process or only a worker or the driver, `do` it: `times`
        times (0: always), not at the first `skip` such openings, counted over all processes.

        SIGKILL, SIGSTOP, SIGTERM and segfault befall the process. raise (errno `amount`) befalls the opening, write
        every write to the file. sleep lasts `amount` seconds, always. fill uses up the file system at `target`; file
        size and memory limit the process, memory to `amount` bytes more than it has; cgroup puts it into the one at
        `target` and has it ask for `amount` bytes more; corrupt turns over a bit of the sums that it holds. log only
        counts.
        """
        body = {
            "path": path, "do": do, "amount": amount, "where": where, "times": times, "skip": skip,
            "target": str(target),
        }  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".{name}"
        temporary.write_text(json.dumps(body))
        temporary.replace(self.folder / f"{name}.json")

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.json").unlink()

    def hits(self, name: str) -> list[int]:
        """The processes that met it, in order, those that were only counted too."""
        found = []
        for file in sorted(self.folder.glob(f"{name}.*.hit")):
            with suppress(ValueError):  # not written yet
                found.append(int(file.read_text()))
        return found

    def logged_by(self, name: str) -> list[int]:
        """The processes that opened a log's path, each time."""
        path = self.folder / f"{name}.log"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def logged(self, name: str) -> int:
        return len(self.logged_by(name))

    def wait(self, name: str, count: int = 1, *, timeout: float = 600) -> int:
        """The process that met it the `count`-th time, when it has."""
        wait_until(lambda: len(self.hits(name)) >= count, timeout=timeout, what=f"fault {name}")
        return self.hits(name)[count - 1]


def _shim() -> ModuleType:
    """The faults' own module, for this process."""
    spec = importlib.util.spec_from_file_location("faults_shim", HERE / "shim" / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_SHIM = _shim()


def wait_until(condition: Callable[[], object], *, timeout: float = 600, what: str = "what is waited for") -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout} s"
        time.sleep(0.01)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def report(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass(eq=False)
class Running:
    """A `dorff` command in a process of its own; killed with all below it when the block ends."""

    process: subprocess.Popen[str]
    began: float = field(default_factory=time.monotonic)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        kill_tree(self.process.pid)
        self.process.communicate()

    def end(self, *, timeout: float = 120) -> Ended:
        """Wait for its end; one that hangs fails the test."""
        out, err = self.process.communicate(timeout=timeout)
        return Ended(self.process.returncode, out, err, time.monotonic() - self.began)

    def signal(self, number: int) -> None:
        assert self.process.poll() is None, self.process.communicate()
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the driver alone; it gets no chance to end its workers."""
        self.signal(signal.SIGKILL)
        self.process.communicate()


def kill_tree(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def start(
    *words: object, faults: Faults | None = None, leaf: int = LEAF, env: Mapping[str, str] | None = None,
    by: Sequence[str] = (),
) -> Running:  # fmt: skip
    """Start `dorff WORDS` with small leaves, `by` another command where one is given."""
    more = {
        "DORFF_TEST_LEAF": str(leaf),
        "PYTHONPATH": _PATHS,
        **(faults.environment if faults else {}),
        **(env or {}),
    }
    command = [*by, sys.executable, str(HERE / "driver.py"), *map(str, words)]
    return Running(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **more})
    )


def run_here(job: Path, *, faults: Faults | None = None, leaf: int = LEAF) -> Ended:
    """`dorff fit` in this process, which meets the faults of a driver."""
    began = time.monotonic()
    _SHIM.watch(str(faults.folder) if faults else "")
    try:
        with leaves_of(leaf):
            done = call("fit", job, "--json")
    finally:
        _SHIM.watch("")
    return Ended(done.exit_code, done.stdout, done.stderr, time.monotonic() - began)


def run_fit(job: Path, **options: Any) -> Ended:
    """`dorff fit` to its end."""
    with start("fit", job, "--json", **options) as running:
        return running.end()


def receipts(folder: Path) -> int:
    """How many leaves of the state in `folder` have receipts."""
    return len(list(folder.glob("runs/*/receipts/[0-9]*.json")))


def leaf_count(job: Path, leaf: int = LEAF) -> int:
    with leaves_of(leaf):
        return len(make_plan(load_job(job)).leaves)


def current(folder: Path) -> str:
    """The published version's name; empty where none is."""
    path = folder / "models" / "current"
    return path.read_text().split()[0] if path.exists() else ""


@dataclass(frozen=True, eq=False)
class Found:
    """The sums S, R, E, l, n of all folds, and the arrays of the model published from them."""

    rows: int
    sums: Mapping[str, FloatArray]
    model: Mapping[str, FloatArray]

    def against(self, truth: Found) -> tuple[int, int]:
        """Rows lost and rows counted twice, by n; AssertionError where a bit of anything differs."""
        lost, twice = max(0, truth.rows - self.rows), max(0, self.rows - truth.rows)
        wrong = self.differing(truth)
        assert not wrong, f"{wrong} differ from the one-process run's; rows lost {lost}, counted twice {twice}"
        assert not lost and not twice
        return lost, twice

    def differing(self, truth: Found) -> list[str]:
        """The sums and arrays of which a bit differs."""
        mine, theirs = {**self.sums, **self.model}, {**truth.sums, **truth.model}
        assert mine.keys() == theirs.keys()
        return [name for name, value in mine.items() if value.tobytes() != theirs[name].tobytes()]


def found(job: Path | Job, *, leaf: int = LEAF) -> Found:
    """What a finished fit left: read from its state by the receipts, and from its published model."""
    job = load_job(job) if isinstance(job, Path) else job
    with leaves_of(leaf):
        plan = make_plan(job)
    this = freeze_constants(plan)
    tree = Tree(PassSums.at(this), plan.dataset, plan.leaves, kept=plan.costs.kept_level)
    assert not tree.start(), "the published model's sums are not all there"
    bounds = [(receipt.start, receipt.stop) for _, receipt in sorted(tree.receipts.items())]
    assert bounds == [(leaf.start, leaf.stop) for leaf in plan.leaves], "a row's receipt is missing or double"
    total = tree.total(Moments)
    assert total is not None
    sums = {
        f"{name} {part}": np.asarray(getattr(of_part, name))
        for part, of_part in total.items()
        for name in ("packed", "n")
    }
    model = load_model(Path(job.model))
    arrays = {"coefficients": model.coefficients, "intercept": model.intercept, "scale": model.target_scale}
    return Found(sum(of_part.n for of_part in total.values()), sums, arrays)


def one_process(folder: Path, store: Path, *, leaf: int = LEAF, **changes: Any) -> Found:
    """The truth: the same job in one process, undisturbed, with a state and a model of its own in `folder`."""
    job = load_job(write_job(folder, store, **{**changes, "cluster": {"type": "serial"}}))
    with leaves_of(leaf):
        fit(job, engine=SerialEngine())
    return found(job, leaf=leaf)


@dataclass(eq=False)
class Cluster:
    """A Dask scheduler and workers as processes of their own, on loopback without TLS."""

    faults: Faults
    ttl: float = 300.0
    scheduler: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def __enter__(self) -> Cluster:
        self.start_scheduler()
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.workers, *([self.scheduler] if self.scheduler else [])]:
            kill_tree(process.pid)
            process.wait()

    def start_scheduler(self) -> None:
        """The first time on any port, then on the same one."""
        file = self.faults.folder / "scheduler"
        file.unlink(missing_ok=True)
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", self.port, "--no-dashboard", "--scheduler-file", file
        )
        wait_until(lambda: file.exists() and file.read_text().endswith("}"), what="the scheduler's start")
        self.port = int(re.findall(r"tcp://127.0.0.1:(\d+)", file.read_text())[0])

    def wait_for_workers(self, count: int) -> None:
        """Until there are that many, no fewer and no more."""
        with warnings.catch_warnings(action="ignore", category=VersionMismatchWarning), Client(self.address) as client:
            wait_until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == count, what=f"{count} workers")

    def kill_scheduler(self) -> None:
        assert self.scheduler is not None
        self.scheduler.kill()
        self.scheduler.wait()

    def start_workers(self, count: int, *, env: Mapping[str, str] | None = None) -> list[subprocess.Popen[bytes]]:
        new = [
            self._start(
                "worker", self.address, "--host", "127.0.0.1", "--nthreads", 1, "--no-nanny", "--no-dashboard",
                "--death-timeout", 20, "--memory-limit", "2GiB", env=env,
            )
            for _ in range(count)
        ]  # fmt: skip
        self.workers += new
        return new

    def _start(self, *words: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        settings = {
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{self.ttl}s",
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "2",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + str(words[0]), *map(str, words[1:])],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, **self.faults.environment, **settings, **(env or {})},
        )  # fmt: skip


def flip(path: Path, seed: int) -> None:
    """Turn one bit of a file over."""
    raw = bytearray(path.read_bytes())
    bit = int(np.random.default_rng(seed).integers(8 * len(raw)))
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)


def truncate(path: Path, seed: int) -> None:
    """Cut a file somewhere."""
    os.truncate(path, int(np.random.default_rng(seed).integers(path.stat().st_size)))


def swap_shard(store: Path, number: int, other: Path) -> None:
    """Put another store's rows in the place of a shard's, as whoever rewrites them should: file by file, whole."""
    for array in ("x", "y"):
        wanted = Path(array) / "c" / str(number) / "0"
        temporary = (store / wanted).with_name("0.new")
        temporary.write_bytes((other / wanted).read_bytes())
        temporary.replace(store / wanted)


def files(folder: Path, pattern: str) -> Sequence[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file())
