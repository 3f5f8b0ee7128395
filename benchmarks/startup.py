"""Seconds that dorff takes beside its work, of another version and of this one, measured in turn in one run.

    python benchmarks/startup.py [--old REF] [--repeats 5] [--out benchmarks/results]

The other version is checked out beside this one and removed at the end. Measured are whole processes, of wall seconds:
`import` is of what a fit needs, `estimator` of ORFFRegressor; the fits are of 20,000 rows of two inputs, 256 features;
`append` is `dorff ingest --append` of 144 rows and the fit that follows, of a fit with two workers; `append, large`
adds them to 400,000 rows with 1,024 features. `two workers` is a fit that has its workers however small it is. `bare
N` is a job of three lines, of N rows; the other version's has 1,024 features of median length-scale and the best of
nine ridges by GCV, or by five folds: `bare N, folds`. Each version runs everything once before, so that its bytecode
and its compiled loops are there. Medians, and the worst.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

HERE: Final = Path(__file__).resolve().parents[1]
MAIN: Final = "from dorff.cli import main; main()"
LOCAL: Final = {"type": "local", "workers": 2}
IMPORTS: Final = {"import": "import dorff.fit", "estimator": "from dorff import ORFFRegressor"}
#: Rows, features and cluster of a fit; the last two are followed by an append.
FITS: Final[dict[str, tuple[str, int, dict[str, Any]]]] = {
    "serial": ("small", 256, {"type": "serial"}),
    "local": ("small", 256, LOCAL),
    "two workers": ("small", 256, LOCAL | {"small_jobs": "workers"}),
    "append": ("small", 256, LOCAL),
    "append, large": ("large", 1024, LOCAL),
}
BARE: Final = (300, 1_000, 3_000, 9_000)
ROWS: Final = {"small": 20_000, "large": 400_000, "more": 144, **{f"bare {rows}": rows for rows in BARE}}
NAMES: Final = (*IMPORTS, *FITS, *(f"bare {rows}{by}" for rows in BARE for by in ("", ", folds")))


class Version:
    """A checked out dorff, with caches of its own in `home`, where its data and jobs are too."""

    def __init__(self, name: str, tree: Path, home: Path, *, words: bool) -> None:
        self.name, self.home, self._words = name, home, words
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._environment |= {
            "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(home / "bytecode"),
            "DORFF_CACHE_DIR": str(home / "loops"),
        }  # fmt: skip

    def run(self, code: str, *words: str) -> float:
        """Wall seconds of a process."""
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=self.home,
            env=self._environment,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{self.name}: {' '.join(words)}: {done.stderr.decode()}")
        return time.perf_counter() - began

    def ingest(self, source: str, store: str, *more: str) -> float:
        return self.run(MAIN, "ingest", source, store, "--inputs", "x", "--targets", "y", *more)

    def prepare(self) -> None:
        """The data, and the fits that rows are to be appended to."""
        for name, rows in ROWS.items():
            rng = np.random.default_rng(len(name))
            X = rng.standard_normal((rows, 2))
            np.savez(self.home / f"{name}.npz", x=X, y=np.sin(X) + 0.1 * rng.standard_normal((rows, 2)))
        for name in ROWS:
            self.ingest(f"{name}.npz", f"{name}.zarr")
        for name in (name for name in NAMES if name.startswith("bare")):
            store, _, folds = name.partition(", ")
            job = {"data": {"store": f"../{store}.zarr"}, "state": "state", "model": "model"}
            if not self._words:
                scalar = {"type": "gaussian", "lengthscale": "median"}
                solve = {"ridge": [10.0**power for power in range(-8, 1)], "select": "kfold" if folds else "gcv"}
                job |= {
                    "kernel": {"type": "decomposable", "scalar": scalar},
                    "features": {"count": 1024, "sampler": {"type": "orthogonal"}},
                    "solve": solve | ({"folds": {"by": "rows"}} if folds else {}), "cluster": {"type": "serial"},
                }  # fmt: skip
            (self.home / name).mkdir()
            (self.home / name / "job.yaml").write_text(json.dumps(job))
        for name, (store, count, cluster) in FITS.items():
            known = {key: value for key, value in cluster.items() if self._words or key != "small_jobs"}
            job = {
                "data": {"store": f"../{store}.zarr"},
                "features": {"count": count, "sampler": {"type": "orthogonal"}}, "solve": {"ridge": 1e-6},
                "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}},
                "cluster": known, "state": "state", "model": "model",
            }  # fmt: skip
            folder = self.home / name
            if name.startswith("append"):
                shutil.copytree(self.home / f"{store}.zarr", folder / "data.zarr")
                job["data"] = {"store": "data.zarr"}
            folder.mkdir(exist_ok=True)
            (folder / "job.yaml").write_text(json.dumps(job))
            if name.startswith("append"):
                self.run(MAIN, "fit", f"{name}/job.yaml")
                folder.rename(self.home / f"{name} before")

    def measure(self, name: str) -> float:
        if name in IMPORTS:
            return self.run(IMPORTS[name])
        folder = self.home / name
        if name.startswith("append"):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.home / f"{name} before", folder)
            return self.ingest("more.npz", f"{name}/data.zarr", "--append") + self.run(MAIN, "fit", f"{name}/job.yaml")
        for kept in ("state", "model"):
            shutil.rmtree(folder / kept, ignore_errors=True)
        return self.run(MAIN, "fit", f"{name}/job.yaml")


@contextmanager
def checked_out(ref: str, place: Path) -> Iterator[Path]:
    """The tree of a version, for the block."""
    subprocess.run(["git", "-C", HERE, "worktree", "add", "--quiet", "--detach", place, ref], check=True)
    try:
        yield place
    finally:
        subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", place], check=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", default="b9a18ae", metavar="REF", help="the other version, as git names it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[*NAMES], metavar="NAME", help="what is measured")
    parser.add_argument("--out", type=Path, default=HERE / "benchmarks" / "results")
    options = parser.parse_args(words)
    times: dict[str, dict[str, list[float]]] = {name: {"old": [], "new": []} for name in options.only}
    with tempfile.TemporaryDirectory(prefix="dorff-startup-") as folder:
        place = Path(folder)
        for name in ("old home", "new home"):
            (place / name).mkdir()
        with checked_out(options.old, place / "old tree") as tree:
            old = Version("old", tree, place / "old home", words=False)
            versions = [old, Version("new", HERE, place / "new home", words=True)]
            for version in versions:
                version.prepare()
                for name in options.only:
                    version.measure(name)
            for repeat in range(options.repeats):
                for name in options.only:
                    for version in versions if repeat % 2 else versions[::-1]:
                        times[name][version.name].append(version.measure(name))
    result = {
        name: {
            key: {"median": statistics.median(each), "worst": max(each), "seconds": each} for key, each in of.items()
        } | {"ratio": statistics.median(of["new"]) / statistics.median(of["old"])}
        for name, of in times.items()
    }  # fmt: skip
    print(json.dumps({"old": options.old, "repeats": options.repeats, **result}))
    print(f"{'seconds: median (worst)':24} {'old':>14} {'new':>14}  new / old")
    for name, one in result.items():
        old, new = (f"{one[key]['median']:.2f} ({one[key]['worst']:.2f})" for key in ("old", "new"))
        print(f"{name:24} {old:>14} {new:>14}  {one['ratio']:9.2f}")
    if set(options.only) == {*NAMES}:
        (options.out / "startup.json").write_text(json.dumps({"old": options.old, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
