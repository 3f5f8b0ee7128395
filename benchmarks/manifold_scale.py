"""A manifold term out of core: 10^6 rows of MNIST enlarged by shifts, a thousand of them labelled.

    python benchmarks/manifold_scale.py --data DIR [--rows 1000000] [--features 1024] [--folder F]
                                        [--stages two kill one forms] [--forms NAME ...] [--out benchmarks/results]

Row i is training image i mod 60000, moved by up to two pixels: the (i // 60000)-th of 25 shifts, none first. One row
in a thousand has its label (more where there are fewer than 10^6 rows), each of another image; the targets of the
others are NaN. Sharded Zarr, float32. All fits are `dorff fit` in processes of their own; 10 nearest
neighbours, across leaves.

- `two`: two workers. Its plan and what it measured: peak bytes against the plan's, edges, seconds.
- `kill`: another state, two workers; every process killed (SIGKILL) once in each phase: rows summed, graph built, T
  summed, as the files of the state show; each time begun again.
- `one`: another state, one worker. The three models' arrays are compared bitwise.
- `forms`: T again in the state of `two`, whose rows and graph are there: by edges, by differences (rank-2k), squared,
  and within leaves. Core-seconds a row from the tasks' receipts, over those of S of all rows (another state, targets
  for all: the digits); the bound of the edge form is edges a row + 1. Building the graph is not in these figures, but
  within leaves, where neighbours are found in the pass itself; its wall time is in `two`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from datasets import FloatArray
from mnist import images, labels

from dorff import load_model
from dorff.data import ArrayLayout, ShardWriter, open_dataset, shard_and_unit_rows, write_metadata

SHIFTS = sorted(((i, j) for i in range(-2, 3) for j in range(-2, 3)), key=lambda s: (abs(s[0]) + abs(s[1]), s))
CLASSES, SIDE, PATIENCE = 10, 28, 3600.0
FORMS = {
    "edges": {"form": "edges"},
    "differences": {"form": "difference", "laplacian": "unnormalised"},
    "squared": {"power": 2},
    "edges, within leaves": {"form": "edges", "graph": {"within": "leaf"}},
}


def enlarge(folder: Path, store: Path, rows: int) -> None:
    """Write the rows, a shard in memory at a time."""
    X, y = images(folder, "train").astype(np.float32).reshape(-1, SIDE, SIDE), labels(folder, "train")
    shard, unit = shard_and_unit_rows(SIDE**2, CLASSES)
    columns = {"x": SIDE**2, "y": CLASSES, "digit": 1}
    layouts = {name: ArrayLayout(count, shard, unit, "float32") for name, count in columns.items()}
    every = max(1, min(1000, rows // 1000))
    with ExitStack() as stack:
        xs, ys, digits = (stack.enter_context(ShardWriter(store / name, layouts[name])) for name in layouts)
        for start in range(0, rows, shard):
            number = np.arange(start, min(start + shard, rows))
            image, copy = number % len(X), number // len(X)
            moved = np.empty((len(number), SIDE, SIDE), np.float32)
            for one in np.unique(copy):
                down, right = SHIFTS[one % len(SHIFTS)]
                here = copy == one
                moved[here] = np.roll(X[image[here]], (down, right), axis=(1, 2))  # their rims are empty
            xs.write(moved.reshape(len(number), -1))
            targets = np.eye(CLASSES, dtype=np.float32)[y[image]]
            targets[number % every != copy] = np.nan  # of the n-th copy others than of those before it
            ys.write(targets)
            digits.write(y[image][:, None].astype(np.float32))
    names = {name: tuple(f"{name}{i}" for i in range(count)) for name, count in columns.items()}
    write_metadata(store, layouts, rows=rows, columns=names)


@dataclass(frozen=True)
class Job:
    """A job file, its state and its model."""

    home: Path
    name: str
    state: Path

    @property
    def path(self) -> Path:
        return self.home / f"{self.name}.yaml"

    @property
    def model(self) -> Path:
        return self.home / f"model-{self.name.replace(' ', '-').replace(',', '')}"

    def write(self, features: int, workers: int, term: dict[str, Any] | None) -> Job:
        """With a term, of the labelled rows; without, of all, their digits."""
        more: dict[str, Any] = {}
        if term is not None:
            graph = {"type": "knn", "neighbours": 10, **term.get("graph", {})}
            usual = {"weight": 100.0, "laplacian": "normalised", "scale": "mean"}
            more = {"manifold": {**usual, **term, "graph": graph}}
        targets = {"targets": "digit"} if term is None else {"targets": "y", "nan": "unlabelled"}
        self.path.write_text(yaml.safe_dump({
            "data": {"store": str(self.home / "rows.zarr"), "inputs": "x", **targets},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 5.0}},
            "features": {"count": features}, "solve": {"ridge": 1e-5}, **more,
            "cluster": {"type": "local", "workers": workers, "memory": "4GiB"},
            "state": str(self.state), "model": str(self.model),
        }))  # fmt: skip
        return self

    def start(self, command: str = "fit") -> subprocess.Popen[str]:
        words = [sys.executable, "-c", "from dorff.cli import main; main()", command, str(self.path), "--json"]
        log = (self.home / f"{self.name}.log").open("a")
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)

    def run(self, command: str = "fit") -> dict[str, Any]:
        began, process = time.perf_counter(), self.start(command)
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"dorff {command} {self.path} ended with {process.returncode}: see its .log")
        found: dict[str, Any] = json.loads(out)
        return {**found, "wall_seconds": time.perf_counter() - began}


def receipts(state: Path, *, terms: bool) -> list[dict[str, Any]]:
    """What is recorded of leaves, or of the tasks of T."""
    pattern = "**/terms/*/receipts/*.json" if terms else "**/receipts/*.json"
    paths = [path for path in state.glob(pattern) if terms or not {"terms", "graphs"} & set(path.parts)]
    return [json.loads(path.read_text())["record"] for path in paths]


def phases(state: Path) -> Iterator[tuple[str, Callable[[], bool]]]:
    """By name, and whether a run has come to it."""
    yield "rows", lambda: len(receipts(state, terms=False)) >= 1
    yield "graph", lambda: any(state.glob("**/graphs/*/*"))
    yield "T", lambda: len(receipts(state, terms=True)) >= 1


def killed(job: Job) -> dict[str, Any]:
    """The fit, every process of it killed once in each phase; what the last run says."""
    befell = []
    for phase, there in phases(job.state):
        process, began = job.start(), time.monotonic()
        while process.poll() is None and not there():
            if time.monotonic() - began > PATIENCE:
                raise SystemExit(f"{phase} was not come to in {PATIENCE:.0f} seconds")
            time.sleep(0.05)
        befell.append(f"{phase}: {'killed' if process.poll() is None else f'ended with {process.returncode} before'}")
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # the driver and its workers: a session of their own
        process.communicate()
    return {**job.run(), "kills": befell}


def digest(job: Job) -> str:
    """Of all numbers of the published model."""
    model, found = load_model(job.model), hashlib.sha256()
    for array in (model.coefficients, model.intercept, model.target_scale, model.frequencies):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def accuracy(job: Job, folder: Path) -> float:
    Z: FloatArray = images(folder, "t10k")
    return float(np.mean(load_model(job.model).predict(Z).argmax(axis=1) == labels(folder, "t10k")))


def said(report: dict[str, Any]) -> dict[str, Any]:
    keys = ("rows_used", "rows_unlabelled", "leaves_computed", "leaves_reused", "wall_seconds", "peak_bytes",
            "plan_peak_bytes", "rung", "status", "graphs", "kills")  # fmt: skip
    return {key: report[key] for key in keys if key in report}


def forms(home: Path, features: int, workers: int, state: Path, names: Iterable[str]) -> dict[str, Any]:
    """Core-seconds a row of T, by form, and of S; edges a row."""
    rows = open_dataset(home / "rows.zarr").n
    all_rows = Job(home, "all rows", home / "state-all")
    all_rows.write(features, workers, None).run()
    of_S = sum(receipt["seconds"] for receipt in receipts(all_rows.state, terms=False)) / rows
    found: dict[str, Any] = {"S": {"core_seconds_a_row": of_S}}
    for name in names:
        term = FORMS[name]
        before = {receipt_key(receipt) for receipt in receipts(state, terms=True)}
        report = Job(home, f"form {name}", state).write(features, workers, term).run()
        new = [receipt for receipt in receipts(state, terms=True) if receipt_key(receipt) not in before]
        seconds = sum(receipt["seconds"] for receipt in new) / rows
        edges = report["graphs"][0]["edges"] / rows
        found[name] = {"core_seconds_a_row": seconds, "over_S": seconds / of_S, "edges_a_row": edges,
                       "rows_read_a_row": sum(receipt["rows_read"] for receipt in new) / rows,
                       "bound": edges + 1 if term.get("form") == "edges" else None, "tasks": len(new)}  # fmt: skip
        print(name, found[name], flush=True)
    return found


def receipt_key(receipt: dict[str, Any]) -> str:
    return json.dumps(receipt, sort_keys=True)


def main() -> None:
    """Run the stages; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds mnist")
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="where rows, states and models are kept (a new temporary folder)")
    parser.add_argument("--stages", nargs="+", choices=("two", "kill", "one", "forms"),
                        default=["two", "kill", "one", "forms"])  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, help="of the forms' jobs")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    home = options.folder or Path(tempfile.mkdtemp(prefix="dorff-manifold-"))
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "rows.zarr" / "zarr.json").exists():
        enlarge(options.data / "mnist", home / "rows.zarr", options.rows)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "manifold_scale.json"
    body: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if (body.get("rows"), body.get("features")) != (options.rows, options.features):
        body = {"rows": options.rows, "features": options.features, "cores": os.cpu_count()}
    jobs = {name: Job(home, name, home / f"state-{name}") for name in ("two", "kill", "one")}
    for name in options.stages:
        if name == "forms":
            body["forms"] = forms(home, options.features, options.workers, jobs["two"].state, options.forms)
        else:
            job = jobs[name].write(options.features, 1 if name == "one" else 2, {"form": "difference"})
            body.setdefault("plan", job.run("plan") if name == "two" else None)
            report = said(killed(job) if name == "kill" else job.run())
            within = report["peak_bytes"] is None or report["peak_bytes"] <= report["plan_peak_bytes"]
            body[name] = {**report, "within_plan": within, "digest": digest(job)}
            body[name]["test_accuracy"] = accuracy(job, options.data / "mnist")
            print(name, body[name], flush=True)
        there = [body[key]["digest"] for key in jobs if key in body]
        body["bitwise_the_same"] = len(set(there)) == 1 if len(there) > 1 else None
        path.write_text(json.dumps(body, indent=1) + "\n")
    print("one, two and killed bitwise the same:", body["bitwise_the_same"])


if __name__ == "__main__":
    main()
