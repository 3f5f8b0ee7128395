"""Coverage of conformal bands where errors depend on each other: walks and drifters, held out by groups or blocks.

    python benchmarks/dependent.py [--groups 2 3 5 10 30 100] [--repeats 20] [--out benchmarks/results]

`walks` are random walks of 100 rows each, of three inputs and one target, whose errors are autoregressive (0.97 of the
error before); a fit has so many of them, named as groups, and its bands are tried on 30 walks that it has not seen.
`tracks` are those of the GLAD drifters that ship with dorff (32 rows each): so many are drawn for a fit, and the bands
are tried on the others. `one walk` is one long walk without groups, which is held out in blocks; its bands are tried on
a fifth of its blocks, which the fit lacks (`between`), on the same number of rows that follow (`after`) and on the 30
other walks (`walks`). Bands are those of a job with
`conformal: true` and a ridge that is chosen by k-fold.

A band that is refused for this level (too few groups) counts as `refused`; shares are over the fits that gave one.
`mean` is the mean over the repeats of the share of new targets inside, `worst` that of the worst repeat, `tenth` is the
tenth percentile of single new groups, `width` the median width of the bands over that of plain ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dorff import load_model
from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import fit
from dorff.model import Model
from dorff.plan.sampled import block_length
from dorff.spec.job import Job

FloatArray = npt.NDArray[np.float64]
Group = tuple[FloatArray, FloatArray]
LEVELS = (0.5, 0.8, 0.9, 0.95)
ROWS, NEW = 100, 30
LONG = {2: 200, 3: 400, 5: 800, 10: 1600, 30: 3200, 100: 6400}  # rows of one walk, in the place of groups
SCALAR = {"type": "gaussian", "lengthscale": 1.0}
WALK_KERNEL = {"type": "decomposable", "scalar": SCALAR}
DRIFT = {"type": "gaussian", "lengthscale": 15.0}
TRACK_KERNEL = {
    "type": "sum",
    "terms": [
        {"weight": 22.5, "kernel": {"type": "curl_free", "scalar": DRIFT}},
        {"weight": 202.5, "kernel": {"type": "divergence_free", "scalar": DRIFT}},
    ],
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Coverage at one level with so many groups."""

    data: str
    groups: int
    level: float
    refused: int
    mean: float | None
    worst: float | None
    tenth: float | None
    width: float | None


def walk(rng: np.random.Generator, n: int) -> Group:
    """Inputs (n, 3) and targets (n, 1) of a walk whose errors are autoregressive from their stationary law on."""
    X = rng.normal(size=3) + np.cumsum(0.1 * rng.normal(size=(n, 3)), axis=0)
    error = rng.normal(size=n)
    for row in range(1, n):
        error[row] = 0.97 * error[row - 1] + np.sqrt(1 - 0.97**2) * error[row]
    return X, (np.sin(X[:, 0]) + 0.5 * np.cos(X[:, 1]) + 0.5 * error)[:, None]


def tracks() -> list[Group]:
    """The drifters' tracks: the rows between jumps of more than 20 km."""
    with (files("dorff") / "demo_data" / "glad.csv").open() as file:
        rows = np.loadtxt(file, delimiter=",", skiprows=1)
    jumps = np.flatnonzero(np.hypot(*np.diff(rows[:, :2], axis=0).T) > 20.0) + 1
    return [(part[:, :2], part[:, 2:]) for part in np.split(rows, jumps) if len(part) > 3]


def fitted(groups: Sequence[Group], kernel: dict[str, Any], seed: int, *, named: bool) -> Model:
    """The model of a job of conformal bands, whose groups are `named` or not."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        X, Y = (np.concatenate(parts) for parts in zip(*groups, strict=True))
        numbers = np.repeat(np.arange(len(groups)), [len(one) for one, _ in groups])
        np.savez(home / "rows.npz", x=X, y=Y, group=numbers)
        ingest([home / "rows.npz"], home / "rows.zarr", inputs=["x"], targets=["y"], groups="group" if named else None)
        described = {
            "data": {"store": str(home / "rows.zarr")},
            "kernel": kernel,
            "features": {"count": 128, "sampler": {"type": "orthogonal"}, "seed": seed},
            "solve": {"conformal": True, "standardize": False, "ridge": {"from": 1e-6, "to": 1.0, "count": 7}},
            "cluster": {"type": "serial"},
            "state": str(home / "state"),
            "model": str(home / "model"),
        }
        fit(Job.model_validate(described), engine=SerialEngine())
        return load_model(home / "model")


class Trials:
    """What repeats found for one number of groups."""

    def __init__(self, data: str, groups: int) -> None:
        self._data, self._groups = data, groups
        self._shares: dict[float, list[FloatArray]] = {level: [] for level in LEVELS}
        self._widths: dict[float, list[float]] = {level: [] for level in LEVELS}
        self._refused = dict.fromkeys(LEVELS, 0)

    def add(self, model: Model, new: Sequence[Group]) -> None:
        """Try a model's bands on new groups."""
        for level in LEVELS:
            try:
                factor = model.factor(level, conformal=True)
            except InputError:
                self._refused[level] += 1
                continue
            shares = []
            for X, Y in new:
                low, high = model.band(X, level, conformal=True)
                shares.append(np.mean((low <= Y) & (high >= Y)))
            self._shares[level].append(np.array(shares))
            self._widths[level].append(float(np.mean(factor / model.factor(level, conformal=False))))

    @property
    def tried(self) -> bool:
        """Whether anything was."""
        return any(self._shares.values()) or any(self._refused.values())

    def results(self) -> list[Result]:
        """One for each level."""
        return [self._result(level) for level in LEVELS]

    def _result(self, level: float) -> Result:
        shares = self._shares[level]
        known = bool(shares)
        means = [one.mean() for one in shares]
        return Result(
            data=self._data,
            groups=self._groups,
            level=level,
            refused=self._refused[level],
            mean=float(np.mean(means)) if known else None,
            worst=float(np.min(means)) if known else None,
            tenth=float(np.quantile(np.concatenate(shares), 0.1)) if known else None,
            width=float(np.median(self._widths[level])) if known else None,
        )


def results_of(count: int, repeats: int) -> list[Result]:
    """All that is tried with `count` groups."""
    drifters, rows = tracks(), LONG[count]
    walks, drifts = Trials("walks", count), Trials("tracks", count)
    between = Trials("one walk, between", rows)
    after, others = Trials("one walk, after", rows), Trials("one walk, walks", rows)
    for repeat in range(repeats):
        rng = np.random.default_rng([count, repeat])
        new = [walk(rng, ROWS) for _ in range(NEW)]
        walks.add(fitted([walk(rng, ROWS) for _ in range(count)], WALK_KERNEL, repeat, named=True), new)

        X, Y = walk(rng, 2 * rows)
        length = block_length(rows, 5)
        blocks = np.arange(rows) // length
        kept = np.isin(blocks, rng.permutation(blocks.max() + 1)[: int(0.8 * (blocks.max() + 1))])
        model = fitted([(X[:rows][kept], Y[:rows][kept])], WALK_KERNEL, repeat, named=False)
        apart = [blocks == number for number in np.unique(blocks[~kept])]
        between.add(model, [(X[:rows][block], Y[:rows][block]) for block in apart])
        after.add(model, [(X[rows:], Y[rows:])])
        others.add(model, new)

        if count < len(drifters) - 5:
            order = rng.permutation(len(drifters))
            chosen = [drifters[at] for at in order[:count]]
            drifts.add(fitted(chosen, TRACK_KERNEL, repeat, named=True), [drifters[at] for at in order[count:]])
    tried = (walks, drifts, between, after, others) if drifts.tried else (walks, between, after, others)
    return [one for trials in tried for one in trials.results()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 3, 5, 10, 30, 100])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    found: list[Result] = []
    for count in options.groups:
        new = results_of(count, options.repeats)
        for one in new:
            print(one, flush=True)
        found += new
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps([asdict(one) for one in found], indent=1)
        (options.out / "dependent.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
