"""A soak: fits under a fault every few seconds, each cycle's result compared bit for bit with one undisturbed process.

    python benchmarks/soak.py --minutes 30 --seed 0        -> benchmarks/results/soak.json

In each cycle rows are appended or a shard is rewritten, and `dorff fit` is started again and again until it publishes:
in one process, on a local cluster, or on a scheduler and workers of their own. Meanwhile workers, driver and scheduler
are killed, stopped, continued and told to end, reads and writes fail, files of the state, the model and the data are
damaged, deleted and rewritten. A cycle's choices follow from the seed and its number; `--cycle` runs one alone.
When nothing is published within `--patience` seconds of the last fault, or a command takes as long, that is a hang.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "faults")]

from harness import (  # noqa: E402
    SHARD,
    Cluster,
    Faults,
    Running,
    files,
    flip,
    found,
    one_process,
    sea,
    start,
    swap_shard,
    truncate,
    write_job,
    write_store,
)

from dorff.data import open_dataset  # noqa: E402

READ = r"sea\.zarr/x/c/"
FIRST_ROWS, MOST_ROWS = 30_000, 90_000
EVERY = 3.0  # seconds between faults, in the mean
FAULTS_A_CYCLE = 12
KINDS = ("serial", "local", "remote")


@dataclass(eq=False)
class Cycle:
    """A fit under faults; `log` says what befell it and how its commands ended."""

    rng: np.random.Generator
    folder: Path
    patience: float
    kind: str
    faults: Faults
    log: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    damaged: dict[Path, bytes] = field(default_factory=dict)
    hurt: bool = False  # whether the command that runs has seen damaged data, though they may be mended by now
    struck: bool = False  # whether a fault came since it began: one that came after it had published is yet to be met
    stopped: dict[int, float] = field(default_factory=dict)
    cluster: Cluster | None = None
    running: Running | None = None

    @property
    def store(self) -> Path:
        return self.folder / "sea.zarr"

    def run(self) -> None:
        """Faults, until there were enough of them; then quiet, until the fit has published."""
        self.faults.add("slow", READ, "sleep", amount=0.02, where="any")
        if self.kind == "remote":
            self.cluster = Cluster(self.faults, ttl=15.0)
            self.cluster.start_scheduler()
            self.cluster.start_workers(2)
        address = {"address": self.cluster.address} if self.cluster else {"type": self.kind}
        job = write_job(self.folder, self.store, cluster=address)
        try:
            self._fit(job)
        finally:
            self._continue()
            if self.running:
                self.running.__exit__()
            if self.cluster:
                self.cluster.__exit__()

    def _fit(self, job: Path) -> None:
        left, due = FAULTS_A_CYCLE, time.monotonic() + self.rng.exponential(EVERY)
        quiet = time.monotonic()
        while True:
            if self.running is None:
                self._replace_the_dead()
                self.running, self.hurt = start("fit", job, "--json", faults=self.faults), bool(self.damaged)
                self.struck = False
            for pid in [pid for pid, end in self.stopped.items() if time.monotonic() > end]:
                _signal(pid, signal.SIGCONT)
                del self.stopped[pid]
            if left and time.monotonic() > due:
                left, due, quiet = left - 1, time.monotonic() + self.rng.exponential(EVERY), time.monotonic()
                self._strike()
            if not left and not self.stopped and not (self.faults.folder / "once.json").exists():
                self._mend()
            if self.running.process.poll() is not None and self._ended(done=not left):
                return
            if time.monotonic() - quiet > self.patience:
                self.wrong.append("hang")
                return
            time.sleep(0.05)

    def _continue(self) -> None:
        for pid in self.stopped:
            _signal(pid, signal.SIGCONT)
        self.stopped.clear()

    def _ended(self, *, done: bool) -> bool:
        """Take note of how the command ended; whether the cycle is over."""
        assert self.running is not None
        if not self.cluster:  # a stopped worker of a driver that is gone would hold its output open for ever
            self._continue()
        ended, self.running = self.running.end(), None
        self.log.append(f"exit {ended.code}")
        if ended.code == 0 and not done:  # more to do, so that what comes next hits something
            self._mend()
            write_store(
                self.store, *sea(int(self.rng.integers(1, 8000)), seed=int(self.rng.integers(2**32))), append=True
            )
            self.log.append("rows appended")
        allowed = (0, 5, 6, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGSEGV)
        if ended.code == 3 and self.hurt and "dorff verify" in ended.err:
            self._mend()
        elif ended.code not in allowed:
            self.wrong.append(f"exit {ended.code}: {_said(ended.err)}")
        return done and ((ended.code == 0 and not self.struck) or bool(self.wrong))

    def _strike(self) -> None:
        self.struck = True
        strikes: list[Callable[[], str]] = [
            self._kill_worker, self._kill_worker, self._stop_worker, self._end_worker, self._kill_driver,
            self._end_driver, self._damage_state, self._damage_state, self._delete_receipt, self._damage_model,
            self._damage_input, self._rewrite_shard, self._fail_once, self._fail_once,
        ]  # fmt: skip
        if self.cluster:
            strikes += [self._kill_scheduler, self._more_workers]
        self.log.append(strikes[int(self.rng.integers(len(strikes)))]())

    def _workers(self) -> list[int]:
        if self.cluster:
            return [worker.pid for worker in self.cluster.workers if worker.poll() is None]
        assert self.running is not None
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.running.process.pid).children(recursive=True)
            return [child.pid for child in below if _is_worker(child)]
        return []

    def _worker(self) -> int | None:
        """A worker; the driver where it does the work itself; None where there is none yet."""
        if self.kind == "serial":
            return self.running.process.pid if self.running else None
        workers = self._workers()
        return workers[int(self.rng.integers(len(workers)))] if workers else None

    def _kill_worker(self) -> str:
        return f"worker SIGKILL{_signal(self._worker(), signal.SIGKILL)}"

    def _end_worker(self) -> str:
        return f"worker SIGTERM{_signal(self._worker(), signal.SIGTERM)}"

    def _stop_worker(self) -> str:
        pid = self._worker()
        if pid is not None:
            self.stopped[pid] = time.monotonic() + self.rng.uniform(1.0, 20.0)
        return f"worker SIGSTOP{_signal(pid, signal.SIGSTOP)}"

    def _kill_driver(self) -> str:
        assert self.running is not None
        return f"driver SIGKILL{_signal(self.running.process.pid, signal.SIGKILL)}"

    def _end_driver(self) -> str:
        assert self.running is not None
        return f"driver SIGTERM{_signal(self.running.process.pid, signal.SIGTERM)}"

    def _kill_scheduler(self) -> str:
        assert self.cluster is not None
        self.cluster.kill_scheduler()
        return "scheduler SIGKILL"

    def _more_workers(self) -> str:
        assert self.cluster is not None
        if len(self._workers()) < 4:
            self.cluster.start_workers(2)
        return "more workers"

    def _any_of(self, pattern: str) -> Path | None:
        there = [path for path in files(self.folder, pattern) if not path.name.startswith(".")]
        return there[int(self.rng.integers(len(there)))] if there else None

    def _damage(self, path: Path | None, name: str) -> str:
        how = (flip, truncate)[int(self.rng.integers(2))]
        if path is None:
            return f"{name} damaged: there was none"
        with suppress(FileNotFoundError, ValueError):  # gone meanwhile, or empty
            how(path, int(self.rng.integers(2**32)))
        return f"{name} {how.__name__}"

    def _damage_state(self) -> str:
        part = ("nodes", "receipts", "checkpoints")[int(self.rng.integers(3))]
        return self._damage(self._any_of(f"runs/*/{part}/*"), part)

    def _delete_receipt(self) -> str:
        path = self._any_of("runs/*/receipts/*")
        if path is not None:
            path.unlink(missing_ok=True)
        return "receipt deleted"

    def _damage_model(self) -> str:
        return self._damage(self._any_of("models/v*/**/*"), "model")

    def _damage_input(self) -> str:
        path = self._any_of("sea.zarr/[xy]/c/*/0")
        assert path is not None
        self.damaged.setdefault(path, path.read_bytes())
        self.hurt = True
        return self._damage(path, "input chunk")

    def _rewrite_shard(self) -> str:
        self._mend()
        other = self.folder / "other.zarr"
        shutil.rmtree(other, ignore_errors=True)
        shards = len(list((self.store / "x" / "c").iterdir()))
        write_store(other, *sea(shards * SHARD, seed=int(self.rng.integers(2**32))))
        swap_shard(self.store, int(self.rng.integers(shards - 1)), other)
        return "shard rewritten"

    def _fail_once(self) -> str:
        do = ("SIGKILL", "segfault", "raise", "write")[int(self.rng.integers(4))]
        place = (r"/nodes/\.", r"/receipts/\.", READ)[int(self.rng.integers(3 if do != "write" else 2))]
        skip = int(self.rng.integers(8))
        for hit in self.faults.folder.glob("once.*.hit"):
            hit.unlink(missing_ok=True)
        self.faults.add("once", place, do, amount=errno.EIO, where="any", skip=skip)
        return f"{do} while opening or writing {place}"

    def _mend(self) -> None:
        for path, raw in self.damaged.items():
            temporary = path.with_name("0.mended")
            temporary.write_bytes(raw)
            temporary.replace(path)
        self.damaged.clear()

    def _replace_the_dead(self) -> None:
        with suppress(FileNotFoundError):
            self.faults.remove("once")
        if not self.cluster:
            return
        if self.cluster.scheduler is None or self.cluster.scheduler.poll() is not None:
            self.cluster.start_scheduler()
        if len(self._workers()) < 2:
            self.cluster.start_workers(2)


def _said(err: str) -> str:
    """The last things that dorff said."""
    return " / ".join([line for line in err.splitlines() if line.startswith("dorff:")] or err.splitlines()[-3:])


def _is_worker(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "spawn_main" in " ".join(process.cmdline())
    return False


def _signal(pid: int | None, number: int) -> str:
    if pid is None:
        return ": there was none"
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return ""


def one_cycle(folder: Path, seed: int, number: int, patience: float) -> dict[str, Any]:
    """A cycle's record; its store goes on growing from cycle to cycle."""
    rng = np.random.default_rng([seed, number])
    store = folder / "sea.zarr"
    if _rows(store) > MOST_ROWS:
        for name in ("sea.zarr", "runs", "models"):
            shutil.rmtree(folder / name, ignore_errors=True)
    more = FIRST_ROWS if not store.exists() else int(rng.integers(1, 20_000))
    write_store(store, *sea(more, seed=int(rng.integers(2**32))), append=store.exists())
    faults = Faults(folder / "faults")
    shutil.rmtree(faults.folder, ignore_errors=True)
    faults.folder.mkdir()
    cycle = Cycle(rng, folder, patience, KINDS[number % len(KINDS)], faults)
    began = time.monotonic()
    cycle.run()
    lost, twice = 0, 0
    if not cycle.wrong:
        truth = one_process(folder / "truth", store)
        shutil.rmtree(folder / "truth")
        mine = found(folder / "job.yaml")
        lost, twice = max(0, truth.rows - mine.rows), max(0, mine.rows - truth.rows)
        try:
            mine.against(truth)
        except AssertionError as error:
            cycle.wrong.append(f"mismatch: {error}")
    return {
        "cycle": number, "kind": cycle.kind, "rows": _rows(store), "rows_lost": lost, "rows_twice": twice,
        "wrong": cycle.wrong, "seconds": round(time.monotonic() - began, 1), "log": cycle.log,
    }  # fmt: skip


def _rows(store: Path) -> int:
    return open_dataset(store).n if store.exists() else 0


def summary(records: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    injected = Counter(
        entry for record in records for entry in record["log"] if not entry.startswith(("exit", "rows appended"))
    )
    wrong = [entry for record in records for entry in record["wrong"]]
    return {
        "cycles": len(records), "seconds": round(seconds), "faults": sum(injected.values()),
        "hangs": sum(entry == "hang" for entry in wrong),
        "mismatches": sum(entry.startswith("mismatch") for entry in wrong),
        "unexpected_ends": sum(entry.startswith("exit") for entry in wrong),
        "rows_lost": sum(record["rows_lost"] for record in records),
        "rows_twice": sum(record["rows_twice"] for record in records),
        "ends": Counter(entry for record in records for entry in record["log"] if entry.startswith("exit")),
        "injected": dict(sorted(injected.items())), "python": platform.python_version(), "cores": os.cpu_count(),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cycle", type=int, help="run this cycle alone, of a store of its own")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds without a fault that are a hang")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "soak.json")
    options = parser.parse_args()
    began, records = time.monotonic(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="dorff-soak-") as folder:
        number = options.cycle or 0
        while time.monotonic() - began < 60 * options.minutes:
            records.append(one_cycle(Path(folder), options.seed, number, options.patience))
            print(json.dumps(records[-1]), flush=True)
            if options.cycle is not None or records[-1]["wrong"] == ["hang"]:
                break
            number += 1
    found_out = {"seed": options.seed, **summary(records, time.monotonic() - began), "records": records}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found_out, indent=1) + "\n")
    told = {name: value for name, value in found_out.items() if name != "records"}
    print(json.dumps(told, indent=1))
    return int(found_out["hangs"] + found_out["mismatches"] + found_out["unexpected_ends"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
